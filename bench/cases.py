"""What is trained: a case is one program on one model and layout; a row is our case beside those it is compared with."""

import sys
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.append(str(Path(__file__).parent / "peers"))
from shapes import LLAMA_LAYERS, SHAPES, STATE_SPACES, balanced_blocks  # noqa: E402

GROUPS = ("single", "ranks", "ranks-large", "tensor", "tensor-llama", "pipeline", "zero", "zero-llama", "experts", "context", "state-space", "imbalance", "recompute", "adamw", "replicas", "pages", "planner", "search", "generate", "collectives", "tokenizer", "startup", "gemm")
DEFAULT_GROUPS = tuple(group for group in GROUPS if group not in ("ranks-large", "tensor-llama", "zero-llama"))  # what fits into 90 minutes
VOCABULARY = {"gpt2-124m": 50257, "gpt2-10m": 8192, "gpt2-10m-15l": 4864, "llama-15m": 32000, "llama-15m-12h": 32000, "mixtral-22m": 8192, "llama-long": 2048}
VOCABULARY |= {name: SHAPES[name].vocab_size for name in ("gpt2-1.5b", *(f"llama3-8b-{layers}l" for layers in LLAMA_LAYERS))}
VOCABULARY |= {"mamba2-130m": STATE_SPACES["mamba2-130m"].vocab_size, "mamba2-long": 2048, "attention-long": 2048}
# What a model of bench/peers/shapes.py has other than its preset: the 6 heads of llama-15m do not divide by 4 ranks.
# 15 blocks and a head as dear as one of them: 16 equal parts for 2, 4 or 8 stages.
CHANGES = {
    "llama-15m-12h": ("llama-15m", ("--model.heads=12", "--model.kv_heads=12")),
    "gpt2-10m-15l": ("gpt2-10m", ("--model.layers=15",)),
}
CHANGES["mixtral-22m"] = ("mixtral-test", ("--model.hidden=384", "--model.heads=12", "--model.expert_ffn=384", "--model.max_seq_len=512"))
# One block for long sequences: attention is nearly all of a step.
CHANGES["llama-long"] = ("llama-15m", ("--model.layers=1", "--model.hidden=128", "--model.heads=4", "--model.kv_heads=4", "--model.ffn=512", "--model.max_seq_len=32768"))
# One layer for sequences that grow: a state space, and attention of the same width, each without an MLP.
LONG = ("--model.layers=1", "--model.hidden=128", "--model.max_seq_len=65536")
CHANGES["mamba2-long"] = ("mamba2-test", (*LONG, "--model.state_heads=8", "--model.state_head_size=32", "--model.state_groups=1", "--model.state_size=64", "--model.state_chunk=256"))
CHANGES["attention-long"] = ("llama-15m", (*LONG, "--model.heads=4", "--model.kv_heads=4", "--model.mixers=A", "--model.feed_forwards=-"))
CHANGES |= {f"llama3-8b-{layers}l": ("llama3-8b", (f"--model.layers={layers}",)) for layers in LLAMA_LAYERS}
ZERO_MARKS = {(1, 2): 0.96, (1, 4): 0.96, (2, 2): 0.96, (2, 4): 0.96, (3, 2): 0.94, (3, 4): 0.90}  # (zero, ranks)
ZERO_PEERS = {1: ("zero",), 2: ("fsdp-keep",), 3: ("fsdp",)}  # --how of peers/train_fsdp_torch.py
# (schedule, stages of a rank): --schedule of peers/train_pp_torch.py
PIPELINE_PEERS = {("gpipe", 1): "gpipe", ("1f1b", 1): "1f1b", ("interleaved", 2): "interleaved", ("zb-h1", 1): "zb", ("zb-v", 2): "zb-v"}
# And those that torch.distributed.pipelining does not have; they are held against theory alone. Naive is known: stages take turns.
PIPELINE_ALONE = (("zb-h2", 1), ("dualpipe-v", 2))
PIPELINE_CROWDED = (("1f1b", 1), ("zb-v", 2))  # on 4 ranks, which share two cores
# Those whose update goes ahead of the gradient norm; measured with an update that waits as well.
AHEAD = (("zb-h2", 1), ("zb-v", 2))
PIPELINE_MICROBATCHES = 8
PIPELINE_MARKS = {"theory": 1.06, "simulated": 0.10, "overhead_us": 20}  # at most
MARKS = {(2, 2): 0.92, (4, 4): 0.82, (4, 2): 0.88}  # (ranks, tp): the share of our own 1x2 that is aimed at

EXPERT_MARKS = {2: 0.90, 4: 0.80}  # ranks that share out the experts: the share of our own 1x2
CONTEXT_MARKS = {2: 0.92, 4: 0.85}  # ranks that each hold a part of a sequence: the same, at CONTEXT_MARKED tokens
CONTEXT_MARKED = 16384
CONTEXT_STEPS = {4096: (4, 2), 16384: (2, 1), 32768: (1, 1)}  # tokens of the one sequence: timed steps of a round, steps before them
STATE_SPACE_MARKS = {"peer": 1.3, "share": 0.90}  # times the faster PyTorch; of our own 1x2 over two ranks
STATE_SPACE_PEERS = ("eager", "compile", "transformers")  # --how of peers/train_mamba2_torch.py
GROWTH = ("mamba2-long", "attention-long")  # the same width, each on sequences of these tokens
GROWTH_STEPS = {1024: (8, 2), 4096: (4, 2), 16384: (2, 1), 65536: (1, 1)}  # timed steps of a round, steps before them
CONTEXTS = ("ring", "all_to_all", "all_gather")  # parallel.context


@dataclass(frozen=True)
class Work:
    """One optimizer step."""

    model: str
    batch: int  # sequences, over all ranks
    seq_len: int
    steps: int  # timed steps of a round
    warmup: int = 0  # steps before them; 0: as many as the setting says

    def name(self):
        return f"{self.model} {self.batch}x{self.seq_len}"

    def tokens(self):
        return self.batch * self.seq_len


@dataclass(frozen=True)
class Case:
    program: str  # lockstep | pytorch
    how: str  # lockstep: parallel.data_parallel; pytorch: eager | compile | compile-blocks | transformers | ddp | dtensor | pipelining | gathered-keys | those of ZERO_PEERS
    work: Work
    precision: str = "fp32"  # fp32 | bf16; pytorch has autocast (fp32 weights) and bf16 (no fp32 weights)
    ranks: int = 1
    threads: int = 2  # of one rank
    tp: int = 1  # ranks that share one copy of the model
    sequence_parallel: bool = False  # of the rows between linears; with tp > 1
    recompute: str = "none"  # lockstep: memory.recompute
    zero: int = 0  # which states the ranks share out
    pp: int = 1  # ranks that hold the stages of one copy of the model
    schedule: str = "1f1b"
    virtual_stages: int = 1  # of one of them
    microbatches: int = 1  # of a step and replica
    ep: int = 1  # ranks that share out the experts
    cp: int = 1  # ranks that each hold a part of every sequence
    context: str = ""  # lockstep: parallel.context
    contiguous: bool = False  # lockstep: one piece of each sequence a rank, not two (parallel.context_split)
    waits: bool = False  # lockstep: the update waits for the gradient norm (parallel.post_validation off)

    def layout(self):
        split = f" tp{self.tp}" if self.tp > 1 else ""
        split += f" ep{self.ep}" if self.ep > 1 else ""
        split += f" cp{self.cp}" if self.cp > 1 else ""
        split += f" {self.context}" if self.context else ""
        split += " contiguous" if self.contiguous else ""
        again = f" {self.recompute}" if self.recompute != "none" else ""
        stages = f" pp{self.pp} {self.schedule}{' waits' if self.waits else ''}" if self.pp > 1 else ""
        return f"{self.ranks}x{self.threads}{split}{' sp' if self.sequence_parallel else ''}{stages}{again}"

    def replicas(self):
        return self.ranks // (self.tp * self.pp * self.cp)

    def ahead(self):
        return (self.schedule, self.virtual_stages) in AHEAD and self.program == "lockstep" and not self.waits

    def blocks(self):
        """Of every stage, the same on both sides."""
        return balanced_blocks(SHAPES[self.work.model], self.work.seq_len, self.pp * self.virtual_stages)

    def kind(self):
        """Which of the programs that do the same work."""
        if self.program == "lockstep":
            how = f"zero {self.zero}" if self.zero else self.how
            return "lockstep" if self.replicas() == 1 else f"lockstep {how}"
        casts = {"fp32": "", "autocast": " autocast", "bf16": " pure bf16"}
        return f"pytorch {self.how}{casts[self.precision]}"

    def dtype(self):
        return "fp32" if self.precision == "fp32" else "bf16"

    def name(self):
        return f"{self.work.name()} {self.dtype()} {self.layout()} {self.kind()}"


@dataclass(frozen=True)
class Row:
    ours: Case
    peers: tuple = ()  # PyTorch on the same work: the fastest of them counts
    bases: tuple = ()  # our own cases of which ours is a share
    peer_base: Case | None = None  # PyTorch's case of which its peers are a share
    mark: float | None = None  # the share of the first base that is aimed at
    limit: bool = True  # its matrix products are measured: the GEMM limit


def works(quick):
    if quick:  # enough to see that every case runs
        return Work("gpt2-124m", 4, 16, 1), Work("gpt2-124m", 1, 64, 1), Work("gpt2-10m", 8, 32, 1), Work("llama-15m", 8, 32, 1)
    return Work("gpt2-124m", 4, 256, 2), Work("gpt2-124m", 1, 1024, 2), Work("gpt2-10m", 8, 256, 4), Work("llama-15m", 8, 256, 4)


def single_row(work, precision, ways):
    casts = ("fp32",) if precision == "fp32" else ("autocast", "bf16")
    peers = tuple(Case("pytorch", how, work, cast) for how in ways for cast in casts)
    return Row(Case("lockstep", "ring", work, precision), peers)


def single_rows(quick=False):
    """One rank with two threads."""
    wide, long, gpt2, llama = works(quick)
    parts = [(wide, "fp32"), (long, "fp32"), (wide, "bf16")]
    parts += [(work, precision) for work in (gpt2, llama) for precision in ("fp32", "bf16")]
    compiled = [(gpt2, "fp32")] if quick else parts  # compiling takes longer than a quick round
    return [single_row(*part, ("eager", "compile") if part in compiled else ("eager",)) for part in parts]


def rank_rows(work, servers):
    """Several ranks of one thread on the same two cores, beside one rank of two threads and DDP."""
    one = Case("lockstep", "ring", work)
    ddp_one = Case("pytorch", "eager", work)
    rows = [Row(one, (ddp_one,))]
    for ranks in (2, 4, 8) if servers else (2, 4):
        ring = replace(one, ranks=ranks, threads=1)
        peers = (replace(ddp_one, how="ddp", ranks=ranks, threads=1),) if ranks < 8 else ()
        rows.append(Row(ring, peers, (one,)))
        if servers:
            rows.append(Row(replace(ring, how="parameter_server"), (), (one, ring)))
    return rows


def tensor_rows(work):
    """One copy of the model over several ranks of one thread, and two copies over four, beside DTensor's same layout."""
    one, alone = Case("lockstep", "ring", work), Case("pytorch", "eager", work)
    rows = [Row(one, (alone,))]
    for (ranks, tp), mark in MARKS.items():
        for rows_split in (False, True):
            split = {"ranks": ranks, "threads": 1, "tp": tp, "sequence_parallel": rows_split}
            peer = replace(alone, how="dtensor", **split)
            rows.append(Row(replace(one, **split), (peer,), (one,), alone, mark))
    return rows


def pipeline_rows(work):
    """Stages on 2 and 4 ranks of one thread, beside torch.distributed.pipelining with the same stages and microbatches."""
    one = Case("lockstep", "ring", work, microbatches=PIPELINE_MICROBATCHES)
    bases = (one, replace(one, threads=1))  # of the second one all work follows
    rows = [Row(base) for base in bases]
    for pp in (2, 4):
        for schedule, virtual_stages in (*PIPELINE_PEERS, *PIPELINE_ALONE) if pp == 2 else PIPELINE_CROWDED:
            ours = replace(one, ranks=pp, threads=1, pp=pp, schedule=schedule, virtual_stages=virtual_stages)
            peers = (replace(ours, program="pytorch", how="pipelining"),) if (schedule, virtual_stages) in PIPELINE_PEERS else ()
            rows.append(Row(ours, peers, bases))
            if ours.ahead() and pp == 2:
                rows.append(Row(replace(ours, waits=True), (), bases))
    return rows


def recompute_rows(work):
    """What it costs to keep less, beside keeping all."""
    one = Case("lockstep", "ring", work)
    return [Row(replace(one, recompute=choice), (), (one,)) for choice in ("selective", "full")]


def zero_rows(work):
    """States shared out over the ranks, beside what PyTorch has for the same."""
    one, alone = Case("lockstep", "ring", work), Case("pytorch", "eager", work)
    rows = [Row(one, (alone,))]
    for (zero, ranks), mark in ZERO_MARKS.items():
        split = {"ranks": ranks, "threads": 1, "zero": zero}
        peers = tuple(replace(alone, how=how, **split) for how in ZERO_PEERS[zero])
        rows.append(Row(replace(one, **split), peers, (one,), alone, mark))
    return rows


def expert_rows(work):
    """One rank beside PyTorch with grouped products, and the experts shared out over ranks of one thread."""
    one = Case("lockstep", "ring", work)
    rows = [Row(one, (Case("pytorch", "eager", work),))]
    return rows + [Row(replace(one, ranks=ep, threads=1, ep=ep), (), (one,), mark=mark) for ep, mark in EXPERT_MARKS.items()]


def context_rows(quick):
    """One sequence on one rank beside PyTorch, and in parts on ranks of one thread: each mode, zigzag, beside PyTorch's gathered keys."""
    rows = []
    for tokens, steps in {256: (1, 1), 512: (1, 1)}.items() if quick else CONTEXT_STEPS.items():
        one = Case("lockstep", "ring", Work("llama-long", 1, tokens, *steps))
        alone = replace(one, program="pytorch", how="eager")
        rows.append(Row(one, (alone,), limit=False))
        for cp, mark in CONTEXT_MARKS.items():
            peer = replace(alone, how="gathered-keys", ranks=cp, threads=1, cp=cp)
            for context in CONTEXTS:
                ours = replace(one, ranks=cp, threads=1, cp=cp, context=context)
                rows.append(Row(ours, (peer,), (one,), alone, mark if tokens == CONTEXT_MARKED else None, limit=False))
    return rows


def state_space_rows(quick):
    """A step of a Mamba-2 on one rank beside PyTorch and over two ranks of one thread; one layer on ever longer sequences, beside attention."""
    one = Case("lockstep", "ring", Work("mamba2-130m", 1, 64 if quick else 1024, 1 if quick else 2))
    peers = tuple(replace(one, program="pytorch", how=how) for how in STATE_SPACE_PEERS if not (quick and how == "compile"))
    halves = [replace(one, ranks=2, threads=1, **split) for split in ({"tp": 2}, {"tp": 2, "sequence_parallel": True}, {"cp": 2, "context": "ring", "contiguous": True})]
    rows = [Row(one, peers), *(Row(half, (), (one,), mark=STATE_SPACE_MARKS["share"]) for half in halves)]
    for tokens, steps in {128: (1, 1), 512: (1, 1)}.items() if quick else GROWTH_STEPS.items():
        rows += [Row(Case("lockstep", "ring", Work(model, 1, tokens, *steps)), limit=False) for model in GROWTH]
    return rows


def training_rows(groups, quick):
    wide, _, gpt2, llama = works(quick)
    rows = single_rows(quick) if "single" in groups else []
    rows += rank_rows(gpt2, servers=True) if "ranks" in groups else []
    rows += rank_rows(wide, servers=False) if "ranks-large" in groups else []
    rows += tensor_rows(gpt2) if "tensor" in groups else []
    rows += tensor_rows(replace(llama, model="llama-15m-12h")) if "tensor-llama" in groups else []
    if "pipeline" in groups:
        rows += pipeline_rows(replace(gpt2, model="gpt2-10m-15l", batch=PIPELINE_MICROBATCHES, steps=1 if quick else 2))
    rows += [row for work in (gpt2, llama) for row in recompute_rows(work)] if "recompute" in groups else []
    rows += zero_rows(gpt2) if "zero" in groups else []
    rows += zero_rows(llama) if "zero-llama" in groups else []
    rows += expert_rows(replace(gpt2, model="mixtral-22m")) if "experts" in groups else []
    rows += context_rows(quick) if "context" in groups else []
    rows += state_space_rows(quick) if "state-space" in groups else []
    rows += [Row(Case("lockstep", "ring", wide), (Case("pytorch", "eager", wide),))] if "startup" in groups else []
    first = {}
    for row in rows:
        first.setdefault(row.ours, row)
    return list(first.values())


def cases_of(rows):
    """Each case once, those of a row next to each other."""
    cases = (case for row in rows for case in (row.ours, *row.peers, *row.bases, row.peer_base) if case)
    return list(dict.fromkeys(cases))
