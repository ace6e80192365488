"""What is measured: one case is one program on one model and layout; a comparison is two cases of the same work."""

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Case:
    program: str  # lockstep | pytorch
    how: str  # lockstep: parallel.data_parallel; pytorch: eager | compile | ddp
    model: str
    precision: str = "fp32"
    ranks: int = 1
    threads: int = 2  # of one rank

    def cores(self):
        return self.ranks * self.threads

    def name(self):
        how = f" {self.how}" if self.program == "pytorch" or self.ranks > 1 else ""
        return f"{self.model} {self.precision} {self.ranks}x{self.threads} {self.program}{how}"


@dataclass(frozen=True)
class Comparison:
    ours: Case
    other: Case

    def name(self):
        return f"{self.ours.name()}  vs  {self.other.name()}"


VOCABULARY = {"gpt2-10m": 8192, "llama-15m": 32000}


def comparisons(with_compile=False, one_thread=False):
    gpt2, llama = "gpt2-10m", "llama-15m"
    pairs = []
    for model, precision in ((gpt2, "fp32"), (llama, "fp32"), (gpt2, "bf16")):
        ours = Case("lockstep", "ring", model, precision)
        if one_thread:
            alone = replace(ours, threads=1)
            pairs.append(Comparison(alone, replace(alone, program="pytorch", how="eager")))
        pairs.append(Comparison(ours, Case("pytorch", "eager", model, precision)))
        if with_compile:
            pairs.append(Comparison(ours, Case("pytorch", "compile", model, precision)))
    one_rank = Case("lockstep", "ring", gpt2)
    ring = Case("lockstep", "ring", gpt2, ranks=2, threads=1)
    server = Case("lockstep", "parameter_server", gpt2, ranks=2, threads=1)
    ddp = Case("pytorch", "ddp", gpt2, ranks=2, threads=1)
    pairs += [Comparison(ring, one_rank), Comparison(ring, ddp), Comparison(server, one_rank), Comparison(server, ring)]
    return pairs


def cases_of(pairs):
    """Each case once, those of a comparison next to each other."""
    return list(dict.fromkeys(case for pair in pairs for case in (pair.ours, pair.other)))
