"""Speed on one GPU beside torch.compile of the same model, as ratios of the same minutes. scripts/gpu_check.sh calls it.

    python bench/gpu.py build/cuda --seconds 300 --out build/gpu_check/measure.json [--ncu PATH] [--only gpt2-124m]

What is most telling comes first; what no time is left for is named. The figures are written after each task, so that whoever is
cut leaves those before. docs/gpu.md says what they are.
"""

import argparse
import csv
import json
import os
import re
import signal
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from statistics import median

from cases import VOCABULARY, Case, Row, Work
from gemm import products_of
from peers.shapes import LLAMA_LAYERS
from programs import BenchError, Setting, lockstep_options, run, run_lockstep, run_peer, show, spread
from token_files import write_random_tokens
from training import Rounds, measure

SMALL = Work("gpt2-124m", batch=32, seq_len=1024, steps=20)
BATCHES = (16, 8, 4)  # of gpt2-1.5b: the largest that fits
FILL = 0.8  # of the GPU's memory, by our prediction: the twin needs more, for its logits
COMPILED_WHOLE = ("gpt2-124m",)  # of the others each block alone: to compile 48 of them as one takes minutes
NCU_SKIPS, NCU_COUNTS = 1500, 1500  # launches: the first step's, then some steps'


class Figures:
    """What is known so far, in a file; tasks within the time that is left."""

    def __init__(self, out, seconds):
        self.out, self.end = out, time.monotonic() + seconds
        self.found = {"comparisons": [], "kernels": {}, "failed": {}, "not_done": []}

    def left(self):
        return self.end - time.monotonic()

    def save(self):
        part = Path(f"{self.out}.part")
        part.write_text(json.dumps(self.found, indent=1) + "\n")
        os.replace(part, self.out)

    def task(self, name, needs, most, call):
        """`call(seconds)` where at least `needs` seconds are left, with `most` of them; one that fails is named."""
        if self.left() < needs:
            self.found["not_done"].append((name, f"{max(0, self.left()):.0f} s were left of the {needs} s that it takes"))
        else:
            print(f"{name}: {self.left():.0f} s are left", flush=True)
            try:
                call(min(most, self.left()))
            except Exception as error:  # whatever it is, the other tasks are still worth having
                self.found["failed"][name] = f"{type(error).__name__}: {error}"
                print(f"{name}: {error}", flush=True)
        self.save()


def case_of(work, program="lockstep"):
    if program == "lockstep":
        return Case(program, "ring", work, "bf16", threads=os.cpu_count())
    how = "compile" if work.model in COMPILED_WHOLE else "compile-blocks"
    return Case(program, how, work, "autocast", threads=os.cpu_count())


def peak(work, setting):
    """The most bytes of the device at one time, predicted."""
    return show("memory", case_of(work), setting)["ranks"][0]["bytes"]["peak"]


def fitting(works, setting, memory):
    """The first of these works that fits."""
    for work in works:
        if peak(work, setting) <= FILL * memory:
            return work
    raise BenchError(f"none of {', '.join(work.name() for work in works)} fits {memory / 2**30:.0f} GiB")


def large_works(setting, memory):
    """gpt2-1.5b, and a Llama of 8B shape with as many layers as fit."""
    yield "gpt2-1.5b", lambda: fitting([Work("gpt2-1.5b", batch, 1024, 8) for batch in BATCHES], setting, memory)
    yield "llama3-8b", lambda: fitting([Work(f"llama3-8b-{layers}l", 2, 4096, 6) for layers in LLAMA_LAYERS], setting, memory)


def write_tokens(work, setting):
    write_random_tokens(setting.scratch / work.model, 500_000, min(VOCABULARY[work.model], 1 << 15))


def train(work, figures, setting, seconds):
    """One work on both sides in turns, in two rounds where there is time."""
    write_tokens(work, setting)
    setting = replace(setting, deadline=max(30, 0.6 * seconds), profile=True)
    row = Row(case_of(work), (case_of(work, "pytorch"),))

    def after_round(rows, measurements):
        figures.found["comparisons"] = [found for found in figures.found["comparisons"] if found["work"] != work.name()]
        figures.found["comparisons"] += [compared(row, measurements, setting) for row in rows]
        figures.save()

    measurements = measure([row], products_of([row]), Rounds(2, time.monotonic() + seconds), setting, after_round)
    figures.found["failed"] |= {task.name(): why for task, why in measurements.failed.items()}
    if work.model == SMALL.model:
        for result in [found for peer in row.peers for found in measurements.rounds[peer].values()][:1]:
            figures.found["kernels"]["pytorch"] = shares([(name, calls, took) for name, calls, took in result.report["kernels"]])


def compared(row, measurements, setting):
    found = figures_of(row.ours, measurements, "peak_bytes")
    found |= {"work": row.ours.work.name(), "predicted_bytes": peak(row.ours.work, setting), "peers": []}
    for peer in row.peers:
        found["peers"].append(figures_of(peer, measurements, "report") | {"program": peer.kind()})
    best = measurements.fastest(row.peers)
    return found | ({"times_as_fast": spread(measurements.ratios(row.ours, best))} if best else {})


def figures_of(case, measurements, memory):
    steps = measurements.all(case, "step_seconds")
    limit = measurements.limits.seconds(case.work, "bf16")
    bytes_of = [found["peak_bytes"] if memory == "report" else found for found in measurements.each_round(case, memory)]
    return {
        "median_ms": median(steps) * 1000, "fastest_ms": min(steps) * 1000, "tokens_per_s": case.work.tokens() / median(steps),
        "share_of_limit": limit / median(steps) if limit else None, "peak_bytes": max(bytes_of),
        "startup_s": median(measurements.each_round(case, "startup")), "step_ms": [seconds * 1000 for seconds in steps],
    }


def actions(setting, seconds):
    """Host time of the actions of a traced step, by kind and layer: on a GPU the time that it takes to launch their work."""
    write_tokens(SMALL, setting)
    case = case_of(replace(SMALL, steps=2))
    run_lockstep(case, replace(setting, trace=True, warmup=3, deadline=seconds))
    texts = show("program", case, setting)["ranks"][0]["actions"]
    traces = sorted((setting.scratch / "run/trace").glob("step-*-rank-0.json"), key=lambda path: int(path.name.split("-")[1]))
    return by_kind(texts, json.loads(traces[-1].read_text())["records"])


def by_kind(texts, records):
    """records: [action, start, end, overhead] in seconds. Rows in the order of the step."""
    spent = defaultdict(list)
    for action, start, end, overhead in records:
        words = texts[action].split()
        layer = re.sub(r"\d+$", "", words[1]) if len(words) > 1 else ""
        spent[f"{words[0]} {layer}".strip()].append(end - start + overhead)
    return [{"kind": kind, "count": len(times), "host_us": 1e6 * median(times), "host_ms": 1e3 * sum(times)} for kind, times in spent.items()]


def shares(kernels):
    """Rows of (name, calls, seconds), the longest first."""
    total = sum(seconds for _, _, seconds in kernels) or 1.0
    rows = [{"name": name, "calls": round(calls), "us": 1e6 * seconds / max(calls, 1), "share": seconds / total} for name, calls, seconds in kernels]
    return sorted(rows, key=lambda row: -row["share"])


def kernels_of_lockstep(ncu, setting, seconds):
    """ncu times each launch of some steps alone, with the caches as they are and the clocks left alone."""
    write_tokens(SMALL, setting)
    said = setting.scratch / "ncu.csv"
    command = [ncu, "--target-processes", "all", "--csv", "--print-units", "base", "--log-file", str(said), "--metrics", "gpu__time_duration.sum"]
    command += ["--clock-control", "none", "--cache-control", "none", "--kill", "yes"]
    command += ["--launch-skip", str(NCU_SKIPS), "--launch-count", str(NCU_COUNTS), setting.program("lockstep"), "train", "-n", "1"]
    command += [*lockstep_options(case_of(SMALL), setting), f"--run.dir={setting.scratch / 'profiled'}", "--train.steps=100000"]
    command += ["--train.log_every=1", "--train.eval_every=0", "--checkpoint.every=0", "--checkpoint.resume=none"]
    try:
        run(command, dict(os.environ), seconds)
        trouble = "it said nothing"
    except BenchError as error:  # ncu ends what it profiles
        trouble = str(error)
    kernels = read_ncu(said.read_text() if said.exists() else "")
    if not kernels:
        raise BenchError(f"{ncu} gave no times: {trouble}")
    return shares(kernels)


UNITS = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "s": 1.0}  # ns or nsecond, us, ms, s


def read_ncu(text):
    """[(kernel, calls, seconds)] of ncu's CSV, which may stand between lines of its own."""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    spent = defaultdict(list)
    for row in csv.DictReader(lines):
        if row.get("Metric Name") == "gpu__time_duration.sum":
            value = float(row["Metric Value"].replace(",", ""))
            spent[row["Kernel Name"]].append(value * UNITS[row["Metric Unit"][0]])
    return [(name, len(times), sum(times)) for name, times in spent.items()]


def measure_all(arguments, figures, setting):
    def ceilings(seconds):
        figures.found["ceilings"] = run_peer("ceilings.py", [], replace(setting, deadline=seconds), os.cpu_count())

    def nccl(seconds):
        figures.found["nccl"] = run_peer("nccl_start.py", [], replace(setting, deadline=seconds), os.cpu_count())

    def host_times(seconds):
        figures.found["actions"] = actions(setting, seconds)

    def kernels(seconds):
        figures.found["kernels"]["lockstep"] = kernels_of_lockstep(arguments.ncu, setting, seconds)

    figures.task("ceilings", 15, 60, ceilings)
    if arguments.only in SMALL.model:
        figures.task(SMALL.model, 40, 150, lambda seconds: train(SMALL, figures, setting, seconds))
        figures.task("host time per action", 15, 60, host_times)
        figures.task("NCCL's start", 15, 45, nccl)
        if arguments.ncu:
            figures.task("kernels of Lockstep", 30, 90, kernels)
        else:
            figures.found["not_done"].append(("kernels of Lockstep", "no ncu on this machine"))
    memory = figures.found.get("ceilings", {}).get("bytes", 0)
    for name, choose in large_works(setting, memory):
        if arguments.only in name:
            figures.task(name, 60, 200, lambda seconds, choose=choose: train(choose(), figures, setting, seconds))


def parse_arguments():
    parser = argparse.ArgumentParser(description="Speed on one GPU beside torch.compile of the same model.")
    parser.add_argument("build", type=Path, help="where the preset cuda was built: build/cuda")
    parser.add_argument("--seconds", type=float, default=500, help="no task begins that would not fit (default %(default)s)")
    parser.add_argument("--out", type=Path, default=Path("build/gpu.json"))
    parser.add_argument("--ncu", default="", help="NVIDIA's profiler of kernels; none: their times are not measured")
    parser.add_argument("--only", default="", metavar="TEXT", help="models that have this in their name")
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    figures = Figures(arguments.out, arguments.seconds)
    build = arguments.build.resolve()
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-") as scratch:
        setting = Setting(build, Path(scratch), build.parent / "bench-inductor", warmup=4, device="cuda")
        try:
            measure_all(arguments, figures, setting)
        finally:
            figures.save()
    print(f"figures: {arguments.out}")
    return 1 if figures.found["failed"] else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("gpu: terminated"))  # what it started ends with it
    sys.exit(main())
