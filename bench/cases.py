"""What is trained: a case is one program on one model and layout; a row is our case beside those it is compared with."""

from dataclasses import dataclass, replace

GROUPS = ("single", "ranks", "ranks-large", "collectives", "tokenizer", "startup", "gemm")
DEFAULT_GROUPS = ("single", "ranks", "collectives", "tokenizer", "startup", "gemm")
VOCABULARY = {"gpt2-124m": 50257, "gpt2-10m": 8192, "llama-15m": 32000}


@dataclass(frozen=True)
class Work:
    """One optimizer step."""

    model: str
    batch: int  # sequences, over all ranks
    seq_len: int
    steps: int  # timed steps of a round

    def name(self):
        return f"{self.model} {self.batch}x{self.seq_len}"

    def tokens(self):
        return self.batch * self.seq_len


@dataclass(frozen=True)
class Case:
    program: str  # lockstep | pytorch
    how: str  # lockstep: parallel.data_parallel; pytorch: eager | compile | ddp
    work: Work
    precision: str = "fp32"  # fp32 | bf16; pytorch has autocast (fp32 weights) and bf16 (no fp32 weights)
    ranks: int = 1
    threads: int = 2  # of one rank

    def layout(self):
        return f"{self.ranks}x{self.threads}"

    def kind(self):
        """Which of the programs that do the same work."""
        if self.program == "lockstep":
            return "lockstep" if self.ranks == 1 else f"lockstep {self.how}"
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


def works(quick):
    if quick:  # enough to see that every case runs
        return Work("gpt2-124m", 4, 16, 1), Work("gpt2-124m", 1, 64, 1), Work("gpt2-10m", 8, 32, 1), Work("llama-15m", 8, 32, 1)
    return Work("gpt2-124m", 4, 256, 2), Work("gpt2-124m", 1, 1024, 2), Work("gpt2-10m", 8, 256, 6), Work("llama-15m", 8, 256, 5)


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


def training_rows(groups, quick):
    wide, _, gpt2, _ = works(quick)
    rows = single_rows(quick) if "single" in groups else []
    rows += rank_rows(gpt2, servers=True) if "ranks" in groups else []
    rows += rank_rows(wide, servers=False) if "ranks-large" in groups else []
    rows += [Row(Case("lockstep", "ring", wide), (Case("pytorch", "eager", wide),))] if "startup" in groups else []
    first = {}
    for row in rows:
        first.setdefault(row.ours, row)
    return list(first.values())


def cases_of(rows):
    """Each case once, those of a row next to each other."""
    return list(dict.fromkeys(case for row in rows for case in (row.ours, *row.peers, *row.bases)))
