"""PyTorch twins of Lockstep's models: the same shapes and parameters, written the way a fast PyTorch model is written.

One fused projection for q, k and v, scaled_dot_product_attention (the flash kernel on CPUs too), tanh GELU or SwiGLU,
and one cross entropy over all logits. Where the shape has fewer key and value heads, the attention kernel shares them out.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, shape):
        super().__init__()
        bias = shape.family == "gpt2"
        self.heads, self.kv_heads = shape.heads, shape.kv_heads or shape.heads
        self.qkv = nn.Linear(shape.hidden, shape.qkv_size(), bias=bias)
        self.out = nn.Linear(shape.hidden, shape.hidden, bias=bias)

    def forward(self, x, rotary):
        batch, length, _ = x.shape
        if self.kv_heads == self.heads:
            q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).transpose(1, 3).unbind(2)
        else:
            heads = self.heads, self.kv_heads, self.kv_heads
            q, k, v = self.qkv(x).view(batch, length, sum(heads), -1).transpose(1, 2).split(heads, dim=1)
        if rotary is not None:
            q, k = rotate(q, rotary), rotate(k, rotary)
        return self.out(self.attend(q, k, v).transpose(1, 2).flatten(2))

    def attend(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.kv_heads != self.heads)


class GeluMlp(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.up = nn.Linear(shape.hidden, shape.ffn)
        self.down = nn.Linear(shape.ffn, shape.hidden)

    def forward(self, x):
        return self.down(F.gelu(self.up(x), approximate="tanh"))


class SwiGlu(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.gate_up = nn.Linear(shape.hidden, 2 * shape.ffn, bias=False)
        self.down = nn.Linear(shape.ffn, shape.hidden, bias=False)

    def forward(self, x):
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(F.silu(gate) * up)


class Experts(nn.Module):
    """The k best of E, weighted with the softmax over their logits; tokens sorted by expert, one grouped product for all."""

    def __init__(self, shape):
        super().__init__()
        self.per_token, self.count = shape.experts_per_token, shape.experts
        self.router = nn.Linear(shape.hidden, shape.experts, bias=False)
        self.gate_up = nn.Parameter(0.02 * torch.randn(shape.experts, shape.hidden, 2 * shape.ffn))
        self.down = nn.Parameter(0.02 * torch.randn(shape.experts, shape.ffn, shape.hidden))

    def forward(self, x):
        rows = x.flatten(0, -2)
        logits = F.linear(rows.float(), self.router.weight.float())
        best, chosen = logits.topk(self.per_token, dim=-1)
        weights = best.softmax(-1)
        order = chosen.flatten().argsort(stable=True)
        source = order // self.per_token
        ends = torch.bincount(chosen.flatten(), minlength=self.count).cumsum(0).to(torch.int32)
        gate, up = torch._grouped_mm(rows[source], self.gate_up, offs=ends).chunk(2, dim=-1)
        out = torch._grouped_mm(F.silu(gate) * up, self.down, offs=ends)
        out = out * weights.flatten()[order].unsqueeze(-1).to(out.dtype)
        return torch.zeros_like(rows).index_add(0, source, out.to(rows.dtype)).view_as(x), self.losses(logits, chosen, x.shape)

    def losses(self, logits, chosen, shape):
        """The auxiliary loss of every sequence, as Lockstep's default has it."""
        batch, length = shape[0], shape[1]
        share = F.one_hot(chosen, self.count).sum(1).view(batch, length, -1).sum(1) / (length * self.per_token)
        mean = logits.softmax(-1).view(batch, length, -1).mean(1)
        return 0.01 * self.count * (share * mean).sum(-1).mean()


def norm(shape):
    return nn.LayerNorm(shape.hidden) if shape.family == "gpt2" else nn.RMSNorm(shape.hidden, eps=1e-5)


class Block(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.attention_norm, self.attention = norm(shape), Attention(shape)
        self.mlp_norm, self.mlp = norm(shape), (Experts if shape.experts else GeluMlp if shape.family == "gpt2" else SwiGlu)(shape)
        self.auxiliary = 0.0  # of the last forward pass

    def forward(self, x, rotary):
        x = x + self.attention(self.attention_norm(x), rotary)
        y = self.mlp(self.mlp_norm(x))
        if isinstance(y, tuple):
            y, self.auxiliary = y
        return x + y


class Transformer(nn.Module):
    """tokens, targets [B, S] -> mean loss."""

    def __init__(self, shape):
        super().__init__()
        self.tokens = nn.Embedding(shape.vocab_size, shape.hidden)
        self.positions = nn.Embedding(shape.max_seq_len, shape.hidden) if shape.family == "gpt2" else None
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = norm(shape)
        self.head = None if shape.tied else nn.Linear(shape.hidden, shape.vocab_size, bias=False)
        if shape.family != "gpt2":
            cos, sin = rotary_table(shape.hidden // shape.heads, shape.max_seq_len, shape.rope_theta)
            self.register_buffer("cos", cos, persistent=False)
            self.register_buffer("sin", sin, persistent=False)
        self.apply(initialize)

    def forward(self, tokens, targets):
        length = tokens.shape[1]
        x = self.tokens(tokens)
        rotary = None
        if self.positions is not None:
            x = x + self.positions.weight[:length]
        else:
            rotary = self.cos[:length], self.sin[:length]
        for block in self.blocks:
            x = block(x, rotary)
        return self.loss_of(x, targets) + sum(block.auxiliary for block in self.blocks)

    def loss_of(self, x, targets):
        logits = F.linear(self.norm(x), self.tokens.weight if self.head is None else self.head.weight)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())  # in fp32 under autocast


def initialize(module):
    if isinstance(module, (nn.Linear, nn.Embedding)):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)


def rotary_table(size, length, theta):
    """cos and sin [S, K]; the halves of a head turn together."""
    frequencies = torch.exp(-math.log(theta) * torch.arange(0, size, 2) / size)
    angles = torch.outer(torch.arange(length), frequencies).repeat(1, 2)
    return angles.cos(), angles.sin()


def rotate(x, rotary):
    cos, sin = (table.to(x.dtype) for table in rotary)
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin
