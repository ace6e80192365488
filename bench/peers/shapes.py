"""The sizes of the models that are measured, and the FLOPs that follow from them."""

from dataclasses import dataclass, replace
from functools import lru_cache


@dataclass(frozen=True)
class Shape:
    family: str  # gpt2 | llama | mixtral
    layers: int
    hidden: int
    heads: int
    ffn: int
    vocab_size: int
    max_seq_len: int
    kv_heads: int = 0  # 0: as many as heads
    tied: bool = True
    rope_theta: float = 10000.0
    experts: int = 0  # of a block, each of width ffn; 0: an MLP
    experts_per_token: int = 0

    def qkv_size(self):
        """Rows of the fused projection."""
        return self.hidden + 2 * (self.kv_heads or self.heads) * (self.hidden // self.heads)

    def attention_flops_per_token(self, seq_len):
        """FLOPs of scores and weighted values of one training token; of the causal half, which is what is computed."""
        return 6 * self.layers * self.hidden * seq_len

    def products(self):
        """(name, how often, inputs, outputs) of the linear layers of a forward pass."""
        wide = self.ffn if self.family == "gpt2" else 2 * self.ffn  # gate and up are one product
        each = self.layers * (self.experts or 1)
        return [
            ("qkv", self.layers, self.hidden, self.qkv_size()),
            ("proj", self.layers, self.hidden, self.hidden),
            ("up", each, self.hidden, wide),
            ("down", each, self.ffn, self.hidden),
            ("head", 1, self.hidden, self.vocab_size),
        ]

    def rows(self, name, tokens):
        """Of such a product in a step: of an expert its share of an even load."""
        return tokens * self.experts_per_token // self.experts if self.experts and name in ("up", "down") else tokens


@dataclass(frozen=True)
class StateSpace:
    """Blocks of a state space alone (Mamba-2)."""

    layers: int
    hidden: int
    heads: int
    head_size: int
    state: int
    vocab_size: int
    groups: int = 1
    convolution: int = 4
    chunk: int = 256
    family: str = "mamba2"

    def inner(self):
        return self.heads * self.head_size

    def convolved(self):
        return self.inner() + 2 * self.groups * self.state

    def projected(self):
        return self.inner() + self.convolved() + self.heads

    def with_layers(self, layers):
        return replace(self, layers=layers or self.layers)

    def attention_flops_per_token(self, seq_len):
        """FLOPs of the scan of one training token, in place of attention's: in a chunk its causal half, and two products with states."""
        chunk = min(self.chunk, seq_len)
        inside = chunk * (self.groups * self.state + self.inner())
        return 3 * self.layers * (inside + 4 * self.inner() * self.state)

    def products(self):
        return [
            ("in", self.layers, self.hidden, self.projected()),
            ("out", self.layers, self.inner(), self.hidden),
            ("head", 1, self.hidden, self.vocab_size),
        ]

    def rows(self, name, tokens):
        return tokens


# The presets of lockstep/arch/model_config.cpp with the vocabulary the benchmark gives them.
SHAPES = {
    "gpt2-124m": Shape("gpt2", layers=12, hidden=768, heads=12, ffn=3072, vocab_size=50257, max_seq_len=1024),
    "gpt2-10m": Shape("gpt2", layers=4, hidden=384, heads=12, ffn=1536, vocab_size=8192, max_seq_len=512),
    "llama-15m": Shape("llama", layers=6, hidden=288, heads=6, ffn=768, vocab_size=32000, max_seq_len=256),
    "gpt2-1.5b": Shape("gpt2", layers=48, hidden=1600, heads=25, ffn=6400, vocab_size=50257, max_seq_len=1024),
    "llama3-8b": Shape("llama", layers=32, hidden=4096, heads=32, ffn=14336, vocab_size=128256, max_seq_len=8192, kv_heads=8, tied=False,
                       rope_theta=500000.0),
}
SHAPES["mixtral-22m"] = Shape("mixtral", layers=4, hidden=384, heads=12, ffn=384, vocab_size=8192, max_seq_len=512, kv_heads=4, tied=False,
                              experts=8, experts_per_token=2)
# For pipelines: the head costs as much as a block, so that 2, 4 and 8 stages are cut into equal parts.
SHAPES["gpt2-10m-15l"] = replace(SHAPES["gpt2-10m"], layers=15, vocab_size=4864)
SHAPES["llama-15m-12h"] = replace(SHAPES["llama-15m"], heads=12)  # heads that divide by 4 ranks
# For long sequences: one block, so that attention is nearly all of a step.
SHAPES["llama-long"] = Shape("llama", layers=1, hidden=128, heads=4, ffn=512, vocab_size=2048, max_seq_len=32768)
# For one GPU: as many of its layers as fit.
LLAMA_LAYERS = (32, 28, 24, 20, 16, 12, 8, 4)
SHAPES |= {f"llama3-8b-{layers}l": replace(SHAPES["llama3-8b"], layers=layers) for layers in LLAMA_LAYERS}
# Of state spaces, which have peers of their own (mamba2.py).
STATE_SPACES = {
    "mamba2-130m": StateSpace(layers=24, hidden=768, heads=24, head_size=64, state=128, vocab_size=50288),
    "mamba2-test": StateSpace(layers=2, hidden=32, heads=4, head_size=16, state=8, vocab_size=61, groups=1, chunk=8),  # what --check takes
}
MEASURED = {**SHAPES, **STATE_SPACES}  # those with a GEMM limit


def balanced_blocks(shape, seq_len, stages):
    """Blocks of every stage of a pipeline, so that the dearest one costs least, and else as even as can be; the last has the head."""
    block = sum(m * n for name, _, m, n in shape.products() if name != "head") + shape.hidden * seq_len
    head = shape.hidden * shape.vocab_size

    @lru_cache(maxsize=None)
    def cut(stage, blocks):
        """(cost of the dearest stage, sum of the squares, blocks of each) of the stages from `stage` on."""
        if stage == stages - 1:
            cost = blocks * block + head
            return cost, cost**2, (blocks,)
        most = blocks - (stages - 1 - stage)  # every stage has one
        found = [(count, cut(stage + 1, blocks - count)) for count in range(1, most + 1)]
        return min((max(count * block, cost), (count * block) ** 2 + squares, (count, *rest)) for count, (cost, squares, rest) in found)

    return cut(0, shape.layers)[2]
