"""Speed of Lockstep beside PyTorch on the same work, as ratios of one run. See docs/benchmarks.md.

    .venv/bin/python bench/bench.py build/release/lockstep [--quick] [--compile] [--json build/bench.json]
"""

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from statistics import median

from cases import VOCABULARY, cases_of, comparisons
from programs import BenchError, Setting, lockstep_parameters, peer_allocator, run_case
from token_files import write_random_tokens

CORES = 2  # one rank with two threads, or two ranks with one; --one-thread adds cases that use one core


def parse_arguments():
    parser = argparse.ArgumentParser(description="Speed of Lockstep beside PyTorch on the same work.")
    parser.add_argument("lockstep", type=Path, help="the program: build/release/lockstep")
    parser.add_argument("--quick", action="store_true", help="one short round: do all cases run?")
    parser.add_argument("--compile", action="store_true", help="also PyTorch with torch.compile (needs a C++ compiler)")
    parser.add_argument("--one-thread", action="store_true", help="also 1 rank x 1 thread: steadier on a busy machine")
    parser.add_argument("--only", default="", metavar="TEXT", help="comparisons with this in their name: bf16, ddp")
    parser.add_argument("--rounds", type=int, default=3, help="at most this many")
    parser.add_argument("--seconds", type=float, default=330, help="no round begins that would end later")
    parser.add_argument("--steps", type=int, default=5, help="timed steps of a case in a round")
    parser.add_argument("--json", type=Path, default=Path("build/bench.json"), help="where the figures go")
    arguments = parser.parse_args()
    if not os.access(arguments.lockstep, os.X_OK):
        raise BenchError(f"{arguments.lockstep} is not a program: `make build` leaves it at build/release/lockstep")
    if min(arguments.rounds, arguments.steps) < 1:
        raise BenchError("--rounds and --steps are 1 or more")
    if len(os.sched_getaffinity(0)) < CORES:
        raise BenchError(f"{CORES} cores are needed, this process may use {len(os.sched_getaffinity(0))}")
    try:
        import torch  # noqa: F401
    except ImportError:
        raise BenchError("no torch in this Python: run it by .venv/bin/python, which `make build` sets up") from None
    return arguments


def machine():
    cpu = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "?")
    return {"cpu": cpu, "cores": os.cpu_count(), "system": f"{platform.system()} {platform.release()}"}


def load_average():
    return os.getloadavg()[0]


class Measurements:
    """Step times by case and round."""

    def __init__(self):
        self.rounds = defaultdict(list)  # case -> [Result of a round]

    def add(self, case, result):
        self.rounds[case].append(result)

    def steps(self, case):
        return [seconds for result in self.rounds[case] for seconds in result.step_seconds]

    def ratios(self, pair):
        """Of each round: how many times as fast as the other ours is, median step against median step."""
        both = zip(self.rounds[pair.ours], self.rounds[pair.other])
        return [median(other.step_seconds) / median(ours.step_seconds) for ours, other in both]

    def reports(self, **fields):
        """(case, report of the twin) of the cases with these fields."""
        return [
            (case, result.report)
            for case, results in self.rounds.items()
            if all(getattr(case, name) == value for name, value in fields.items())
            for result in results
            if result.report
        ]

    def gemm_limit(self, precision):
        """FLOP/s of one core in the best matrix product seen."""
        reports = self.reports(precision=precision)
        return max(report["gemm_flops_per_s"] / case.cores() for case, report in reports)

    def flops_per_step(self, model):
        return self.reports(model=model)[0][1]["flops_per_step"]


def measure(cases, arguments, setting):
    """Rounds of all cases, every second one backwards, so that a slow minute of the machine meets both sides."""
    measurements = Measurements()
    begin = time.monotonic()
    longest = 0.0
    for number in range(1 if arguments.quick else arguments.rounds):
        round_begin = time.monotonic()
        if number > 0 and round_begin - begin + longest > arguments.seconds:
            print(f"no round {number + 1}: it would end after --seconds {arguments.seconds:.0f}")
            break
        for case in cases if number % 2 == 0 else reversed(cases):
            result = run_case(case, setting)
            measurements.add(case, result)
            milliseconds = f"{median(result.step_seconds) * 1000:8.0f} ms"
            print(f"round {number + 1}  {case.name():<48} {milliseconds}   load {load_average():.1f}", flush=True)
        longest = max(longest, time.monotonic() - round_begin)
    return measurements


def check_twins(measurements, setting):
    """The twins have the parameters of the models they stand for."""
    for case, results in measurements.rounds.items():
        if case.program != "pytorch":
            continue
        ours = lockstep_parameters(replace(case, program="lockstep", how="ring"), setting)
        theirs = results[0].report["parameters"]
        if ours != theirs:
            raise BenchError(f"{case.name()}: {theirs} parameters, Lockstep's model has {ours}")


def case_rows(cases, measurements, setting):
    rows = []
    for case in cases:
        steps = measurements.steps(case)
        flops, limit = measurements.flops_per_step(case.model), case.cores() * measurements.gemm_limit(case.precision)
        mfus = [result.mfu for result in measurements.rounds[case] if result.mfu is not None]
        rows.append(
            {
                "case": case.name(),
                "allocator": peer_allocator() if case.program == "pytorch" else "as built",
                "median_ms": median(steps) * 1000,
                "fastest_ms": min(steps) * 1000,
                "tokens_per_s": setting.batch * setting.seq_len / median(steps),
                "share_of_gemm_limit": flops / median(steps) / limit,
                "perf_mfu": median(mfus) if mfus else None,
                "step_ms": [seconds * 1000 for seconds in steps],
            }
        )
    return rows


def ratio_rows(pairs, measurements):
    rows = []
    for pair in pairs:
        ratios = measurements.ratios(pair)
        fastest = min(measurements.steps(pair.other)) / min(measurements.steps(pair.ours))
        rows.append(
            {"comparison": pair.name(), "ratio": median(ratios), "rounds": ratios, "ratio_of_fastest": fastest}
        )
    return rows


def print_tables(report):
    print(f"\n{'case':<48} {'median ms':>9} {'fastest':>8} {'tokens/s':>9} {'of GEMM':>8} {'own mfu':>8}  allocator")
    for row in report["cases"]:
        mfu = f"{row['perf_mfu']:8.0%}" if row["perf_mfu"] is not None else f"{'-':>8}"
        print(
            f"{row['case']:<48} {row['median_ms']:9.0f} {row['fastest_ms']:8.0f} {row['tokens_per_s']:9.0f} "
            f"{row['share_of_gemm_limit']:8.0%} {mfu}  {row['allocator']}"
        )
    print(f"\n{'times as fast':<90} {'ratio':>6} {'rounds':>13} {'of fastest':>11}")
    for row in report["comparisons"]:
        spread = f"{min(row['rounds']):.2f}..{max(row['rounds']):.2f}"
        print(f"{row['comparison']:<90} {row['ratio']:6.2f} {spread:>13} {row['ratio_of_fastest']:11.2f}")


def print_setting(report):
    limits = ", ".join(f"{name} {rate / 1e9:.0f} GFLOP/s" for name, rate in report["gemm_limit"].items())
    on = report["machine"]
    print(f"\nmachine      {on['cpu']}, {on['cores']} cores, {on['system']}")
    print(f"load         {report['load_before']:.1f} before, {report['load_after']:.1f} after (1-minute average)")
    print(f"work         {report['batch']} x {report['seq_len']} tokens a step, {report['steps']} steps a round")
    print(f"GEMM limit   {limits} a core (torch.mm of 768 x 768, best of all rounds)")
    print(f"PyTorch      {report['torch']}, {report['peer_allocator']}")
    if report["load_before"] > 0.5:
        print("note         other programs were running before this one began: the figures are noisy")


def main():
    arguments = parse_arguments()
    pairs = [pair for pair in comparisons(arguments.compile, arguments.one_thread) if arguments.only in pair.name()]
    if not any(pair.other.program == "pytorch" for pair in pairs):  # its report holds the GEMM rate
        raise BenchError(f"--only {arguments.only}: no comparison with PyTorch has this in its name")
    cases = cases_of(pairs)
    load_before = load_average()
    print(f"load {load_before:.1f} before; {len(cases)} cases")
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-") as scratch:
        setting = Setting(
            lockstep=arguments.lockstep.resolve(),
            scratch=Path(scratch),
            batch=4 if arguments.quick else 8,
            seq_len=128 if arguments.quick else 256,
            warmup=1 if arguments.quick else 2,
            steps=2 if arguments.quick else arguments.steps,
            deadline=300,
        )
        for model, vocab_size in VOCABULARY.items():
            write_random_tokens(setting.scratch / model, 500_000, vocab_size)
        measurements = measure(cases, arguments, setting)
        check_twins(measurements, setting)

    precisions = sorted({case.precision for case in cases}, reverse=True)
    report = {
        "machine": machine(),
        "load_before": load_before,
        "load_after": load_average(),
        "batch": setting.batch,
        "seq_len": setting.seq_len,
        "steps": setting.steps,
        "gemm_limit": {precision: measurements.gemm_limit(precision) for precision in precisions},
        "torch": measurements.reports(program="pytorch")[0][1]["torch"],
        "peer_allocator": peer_allocator(),
        "cases": case_rows(cases, measurements, setting),
        "comparisons": ratio_rows(pairs, measurements),
    }
    print_tables(report)
    print_setting(report)
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps(report, indent=1) + "\n")
    print(f"figures      {arguments.json}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BenchError as error:
        sys.exit(f"bench: {error}")
    except KeyboardInterrupt:
        sys.exit("bench: interrupted")
