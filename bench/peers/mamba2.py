"""A PyTorch twin of Lockstep's Mamba-2: the same sizes and parameters, written the way a fast PyTorch model is written.

One fused projection for z, x, B, C and dt, one depth-wise convolution, the scan in chunks as products of matrices (Dao and Gu 2024,
sections 6 and 7), the gated norm by the fused RMSNorm, one cross entropy over all logits.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn


def scan(x, delta, a, b, c, chunk):
    """y_t = state_t C_t with state_t = exp(a delta_t) state_(t-1) + delta_t x_t B_t^T.

    x [B, S, H, P], delta [B, S, H], a [H], b and c [B, S, G, N] -> [B, S, H, P]; S is a multiple of the chunk."""
    batch, length, heads, width = x.shape
    groups, state = b.shape[2:]
    chunks, each = length // chunk, heads // groups
    # [B, chunks, G, ...]: a head reads the group it belongs to, by broadcasting over the heads of a group.
    x = (x * delta.unsqueeze(-1)).view(batch, chunks, chunk, groups, each, width).permute(0, 1, 3, 4, 2, 5)  # [.., each, Q, P]
    b, c = (part.view(batch, chunks, chunk, groups, state).transpose(2, 3).unsqueeze(3) for part in (b, c))  # [.., 1, Q, N]
    log_decay = (delta * a).view(batch, chunks, chunk, groups, each).permute(0, 1, 3, 4, 2).cumsum(-1)  # [.., each, Q]

    # Inside a chunk: C B^T, what is left of a token after the decays between the two.
    later = torch.ones(chunk, chunk, dtype=torch.bool, device=x.device).tril()
    left = (log_decay.unsqueeze(-1) - log_decay.unsqueeze(-2)).masked_fill(~later, -torch.inf).exp()
    inside = ((c @ b.transpose(-1, -2)) * left) @ x

    # Behind each chunk, from a state of zero before it.
    end = log_decay[..., -1:]
    own = (x * (end - log_decay).exp().unsqueeze(-1)).transpose(-1, -2) @ b  # [.., each, P, N]
    # Before each chunk: one after the other.
    before, whole = [torch.zeros_like(own[:, 0])], end.exp().unsqueeze(-1)
    for number in range(chunks - 1):
        before.append(before[-1] * whole[:, number] + own[:, number])
    passed = (c @ torch.stack(before, 1).transpose(-1, -2)) * log_decay.exp().unsqueeze(-1)
    return (inside + passed).permute(0, 1, 4, 2, 3, 5).reshape(batch, length, heads, width)


class Mixer(nn.Module):
    def __init__(self, shape, chunk):
        super().__init__()
        self.shape, self.chunk = shape, chunk
        self.enter = nn.Linear(shape.hidden, shape.projected(), bias=False)
        self.convolution = nn.Conv1d(shape.convolved(), shape.convolved(), shape.convolution, groups=shape.convolved(), padding=shape.convolution - 1)
        step = torch.exp(torch.rand(shape.heads) * math.log(100) + math.log(0.001))  # 0.001 .. 0.1, even in the logarithm
        self.step_bias = nn.Parameter(step + torch.log(-torch.expm1(-step)))  # softplus of it is the step
        self.log_decay = nn.Parameter(torch.empty(shape.heads).uniform_(1, 16).log())
        self.skip = nn.Parameter(torch.ones(shape.heads))
        self.norm = nn.RMSNorm(shape.inner(), eps=1e-5)
        self.leave = nn.Linear(shape.inner(), shape.hidden, bias=False)

    def forward(self, hidden):
        shape, (batch, length, _) = self.shape, hidden.shape
        z, mixed, dt = self.enter(hidden).split((shape.inner(), shape.convolved(), shape.heads), -1)
        mixed = F.silu(self.convolution(mixed.transpose(1, 2))[..., :length]).transpose(1, 2)
        x, b, c = mixed.split((shape.inner(), shape.groups * shape.state, shape.groups * shape.state), -1)
        x = x.reshape(batch, length, shape.heads, shape.head_size)
        b, c = (part.reshape(batch, length, shape.groups, shape.state) for part in (b, c))
        delta = F.softplus(dt.float() + self.step_bias)
        y = scan(x, delta, -self.log_decay.exp(), b, c, min(self.chunk, length)) + x * self.skip.unsqueeze(-1)
        return self.leave(self.norm(y.flatten(2) * F.silu(z)))


class Block(nn.Module):
    def __init__(self, shape, chunk):
        super().__init__()
        self.norm, self.mixer = nn.RMSNorm(shape.hidden, eps=1e-5), Mixer(shape, chunk)

    def forward(self, x):
        return x + self.mixer(self.norm(x))


class Mamba2(nn.Module):
    """tokens, targets [B, S] -> mean loss."""

    def __init__(self, shape, chunk):
        super().__init__()
        self.tokens = nn.Embedding(shape.vocab_size, shape.hidden)
        self.blocks = nn.ModuleList(Block(shape, chunk) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.hidden, eps=1e-5)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens, targets):
        x = self.tokens(tokens)
        for block in self.blocks:
            x = block(x)
        return self.loss_of(x, targets)

    def loss_of(self, x, targets):
        logits = F.linear(self.norm(x), self.tokens.weight)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())
