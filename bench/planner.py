"""Predicted against measured steps of layouts of one small model on this machine, after one calibration.

As a group of bench.py, or alone:   .venv/bin/python bench/planner.py build/release [--rounds 3] [--out build/planner.json]
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import median

from cases import VOCABULARY, Case, Work
from programs import BenchError, Setting, lockstep_options, run, run_case, spread
from tables import table
from token_files import write_random_tokens

LIMIT = 0.08  # a predicted step lies so near the measured one
MODEL, BATCH, TOKENS = "gpt2-10m", 8, 256
CALIBRATED = "2x1"  # the layout whose traced steps the constants are fitted to


def work(quick):
    return Work(MODEL, BATCH, 32 if quick else TOKENS, 1 if quick else 4)


def layouts(quick=False):
    """20 cases; the first is calibrated on, and predicted like the others."""
    one = Case("lockstep", "ring", work(quick))
    two, four = replace(one, ranks=2, threads=1), replace(one, ranks=4, threads=1)
    stages = replace(two, pp=2, microbatches=BATCH)
    return [
        two,
        one,
        replace(one, threads=1),
        replace(one, microbatches=2),
        replace(one, microbatches=4),
        replace(one, recompute="selective"),
        replace(one, recompute="full"),
        replace(two, microbatches=4),
        *(replace(two, zero=zero) for zero in (1, 2, 3)),
        replace(two, tp=2),
        replace(two, tp=2, sequence_parallel=True),
        replace(two, cp=2, context="ring"),
        replace(stages, schedule="gpipe"),
        replace(stages, schedule="1f1b"),
        replace(stages, schedule="zb-h1"),
        replace(stages, schedule="interleaved", virtual_stages=2),
        four,
        replace(four, tp=2),
    ]


def name_of(case):
    how = f" zero {case.zero}" if case.zero else ""
    cut = f" m{case.microbatches}" if case.microbatches > 1 else ""
    return f"{case.layout()}{how}{cut}"


def calibrate(case, setting):
    """A run whose last steps are traced; its folder."""
    run_case(case, replace(setting, trace=True))
    kept = setting.scratch / "calibrated"
    shutil.rmtree(kept, ignore_errors=True)
    shutil.copytree(setting.scratch / "run", kept)
    return kept


def predicted(case, calibrated, setting):
    """What `lockstep plan` says of a step, in seconds, with its low and high end."""
    command = [setting.program("lockstep"), "plan", "--json", "-n", str(case.ranks), "--cluster", "here", "--calibrate", str(calibrated)]
    said = json.loads(run([*command, *lockstep_options(case, setting)], dict(os.environ), setting.deadline))
    if said["layout"]["from"] != "configuration":
        raise BenchError(f"{name_of(case)}: the plan is of a layout that was searched for")
    return said["step"]


def measure(setting, rounds):
    """A row for each layout: the ratio of the predicted step to the measured one in each round. Of a round the calibration comes first and is of
    that round, since the machine's speed moves from hour to hour."""
    cases = layouts(setting.quick)
    write_random_tokens(setting.scratch / MODEL, 500_000, VOCABULARY[MODEL])
    found = {case: [] for case in cases}
    for number in range(1, rounds + 1):
        calibrated = calibrate(cases[0], setting)
        for case in cases if number % 2 else reversed(cases):
            step = predicted(case, calibrated, setting)
            seconds = median(run_case(case, setting).step_seconds)
            found[case].append((step, seconds))
            print(f"round {number}  {name_of(case):<40} {1e3 * step['seconds']:8.1f} ms predicted {1e3 * seconds:8.1f} measured", flush=True)
    return [row_of(case, steps) for case, steps in found.items()]


def row_of(case, steps):
    inside = sum(step["low"] <= seconds <= step["high"] for step, seconds in steps)
    return {
        "layout": name_of(case),
        "calibrated": CALIBRATED,
        "ranks": case.ranks,
        "predicted_ms": median(step["seconds"] for step, _ in steps) * 1000,
        "measured_ms": median(seconds for _, seconds in steps) * 1000,
        "ratio": spread([step["seconds"] / seconds for step, seconds in steps]),
        "in_band": inside / len(steps),
    }


def off(row):
    """How far the prediction lies from the measured step, as spread() has it: median, smallest and largest of the rounds."""
    found = row["ratio"]
    ends = [abs(found[end] - 1) for end in ("smallest", "largest")]
    return {"ratio": abs(found["ratio"] - 1), "smallest": min(ends), "largest": max(ends)}


def cells(rows):
    """Of the table in docs/benchmarks.md: heads, and a row for each layout."""
    heads = ["layout", "predicted ms", "measured ms", "predicted / measured", "off by", "in the band"]
    lines = []
    for row in rows:
        ratio = row["ratio"]
        spread_text = f"{ratio['ratio']:.3f} ({ratio['smallest']:.3f}..{ratio['largest']:.3f})"
        lines.append([row["layout"], f"{row['predicted_ms']:.1f}", f"{row['measured_ms']:.1f}", spread_text, f"{off(row)['ratio']:.1%}", f"{row['in_band']:.0%}"])
    return heads, lines


def parse_arguments():
    parser = argparse.ArgumentParser(description="Predicted against measured steps, after one calibration.")
    parser.add_argument("build", type=Path, help="where `make bench` left the programs: build/release")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one short round: does it run?")
    parser.add_argument("--out", type=Path, help="write the rows into this file, as JSON")
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    with tempfile.TemporaryDirectory(prefix="lockstep-planner-") as scratch:
        folder = Path(scratch)
        setting = Setting(arguments.build.resolve(), folder, folder, arguments.quick, 1 if arguments.quick else 2)
        rows = measure(setting, 1 if arguments.quick else arguments.rounds)
    print(f"\n{table(*cells(rows))}")
    if arguments.out:
        arguments.out.write_text(json.dumps(rows, indent=1) + "\n")
    missed = [row["layout"] for row in rows if off(row)["ratio"] > LIMIT]
    print(f"{len(rows) - len(missed)} of {len(rows)} layouts within {LIMIT:.0%}" + (f"; not {', '.join(missed)}" if missed else ""))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BenchError as error:
        sys.exit(f"planner: {error}")
