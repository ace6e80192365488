"""Predicted against measured steps of layouts of small models on this machine, from constants that are fitted to one other layout of one of them.

As a group of bench.py, or alone:   .venv/bin/python bench/planner.py build/release [--rounds 3] [--out build/planner.json]
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from statistics import mean, median

from cases import VOCABULARY, Case, Work
from programs import BenchError, Setting, end, lockstep_options, metric_rows, run, run_case, spread, step_rows, watch
from token_files import write_random_tokens

LIMIT = 0.08  # a predicted step lies so near the measured one
FITTED = "gpt2-10m"
TRACED = 9  # steps of a run that constants are fitted to; the first is left out
BETWEEN = 4  # layouts from one such run to the next
TURNS = 5
OTHERS = ("llama-15m", "mixtral-22m")  # no step of theirs is known to the fit


def of_model(model, quick):
    """One rank with two threads; two and four ranks with one; two stages."""
    one = Case("lockstep", "ring", Work(model, 8, 32 if quick else 256, 1 if quick else 4))
    two, four = replace(one, ranks=2, threads=1), replace(one, ranks=4, threads=1)
    return one, two, four, replace(two, pp=2, microbatches=8)


def fitted(quick=False):
    """What constants are fitted to. It is the reference, too: how fast the machine is at the moment."""
    return replace(of_model(FITTED, quick)[1], microbatches=2)


def layouts(quick=False):
    """20 cases; fitted() is none of them."""
    one, two, four, stages = of_model(FITTED, quick)
    llama, llama_two, llama_four, llama_stages = of_model(OTHERS[0], quick)
    return [
        one,
        replace(one, microbatches=4),
        replace(one, recompute="selective"),
        replace(one, recompute="full"),
        two,
        *(replace(two, zero=zero) for zero in (1, 2, 3)),
        replace(two, tp=2, sequence_parallel=True),
        replace(two, cp=2, context="ring"),
        *(replace(stages, schedule=schedule) for schedule in ("gpipe", "1f1b")),
        replace(stages, schedule="interleaved", virtual_stages=2),
        four,
        replace(four, tp=2, pp=2, microbatches=4),
        llama,
        replace(llama_two, tp=2, sequence_parallel=True),
        replace(llama_stages, schedule="zb-h1", waits=True),
        replace(llama_four, pp=2, microbatches=4, zero=1),
        replace(of_model(OTHERS[1], quick)[1], ep=2),
    ]


def name_of(case):
    how = f" zero {case.zero}" if case.zero else ""
    cut = f" m{case.microbatches}" if case.microbatches > 1 else ""
    return f"{case.work.model} {case.layout()}{how}{cut}"


def traced_run(setting, number):
    """A traced run of what constants are fitted to: its folder, and the seconds of its steps but the first."""
    folder = setting.scratch / f"fitted-{number}"
    run_case(fitted(setting.quick), replace(setting, trace=True, traced=2 if setting.quick else TRACED))
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(setting.scratch / "run", folder)
    return folder, traced_seconds(folder / "trace")


def calibrate(setting, folders):
    """A file that describes this machine, fitted to traced runs."""
    case, machine = fitted(setting.quick), setting.scratch / "machine.toml"
    command = [setting.program("lockstep"), "plan", "--json", "-n", str(case.ranks), "--cluster", "here", "--machine", str(machine)]
    command += [argument for folder in folders for argument in ("--calibrate", str(folder))]
    run([*command, *lockstep_options(case, setting)], dict(os.environ), setting.deadline)
    return machine


def traced_seconds(folder):
    """Of each step but the first, from the first action of any rank to the end of the last: without writing the traces."""
    steps = defaultdict(list)
    for path in folder.glob("step-*-rank-*.json"):
        trace = json.loads(path.read_text())
        steps[trace["step"]] += [(start, end) for _, start, end, *_ in trace["records"]]
    seconds = [max(end for _, end in of_step) - min(start for start, _ in of_step) for _, of_step in sorted(steps.items())]
    return seconds[1:] or seconds


def children(pid):
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []  # it has ended


class Paced:
    """A case that runs for a few steps when it is told to, and stands still in between."""

    def __init__(self, case, setting, name):
        self.metrics, self.rows = setting.scratch / name / "metrics.jsonl", 0
        shutil.rmtree(setting.scratch / name, ignore_errors=True)
        command = [setting.program("lockstep"), "train", "-n", str(case.ranks), *lockstep_options(case, setting), f"--run.dir={setting.scratch / name}"]
        command += ["--train.steps=100000", "--train.log_every=1", "--train.eval_every=0", "--checkpoint.every=0", "--checkpoint.resume=none"]
        self.deadline, self.command = setting.deadline, command
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)

    def signal(self, number):
        """To it and to its ranks, which are processes of groups of their own."""
        for pid in (self.process.pid, *children(self.process.pid)):
            os.kill(pid, number)

    def steps(self, count):
        """Seconds of so many steps, behind one in which it may have stood still."""
        self.signal(signal.SIGCONT)
        try:
            rows, _ = watch(self.process, self.metrics, self.rows + 1 + count, self.deadline)
        except BenchError as error:
            raise BenchError(f"{error}: {' '.join(self.command)}") from None
        self.signal(signal.SIGSTOP)
        found, self.rows = rows[self.rows + 1 :], len(step_rows(self.metrics))
        return [row["perf/step_ms"] / 1000 for row in found]

    def end(self):
        self.signal(signal.SIGCONT)
        end(self.process)


def imbalance(metrics, ep):
    """Of experts: load of the busiest rank over the mean, as steps print it; the mean over blocks and steps. 1 without experts on several ranks."""
    found = []
    for row in metric_rows(metrics) if ep > 1 else ():
        if row.get("event") != "expert_load":
            continue
        for name, loads in row.items():
            if not name.startswith("blocks.") or "/" in name:
                continue
            of_experts = [int(load) for load in loads.split()]
            here = len(of_experts) // ep
            of_ranks = [sum(of_experts[i : i + here]) for i in range(0, len(of_experts), here)]
            found.append(max(of_ranks) * ep / sum(of_ranks))
    return mean(found) if found else 1


def side_by_side(case, setting):
    """Median seconds of a step of the case, and of the reference: by turns, a few steps each, since the machine's speed moves within seconds; and the
    imbalance of the case's experts."""
    turns, count = (1, 1) if setting.quick else (TURNS, 2)
    running = []
    try:
        for which, name in ((case, "case"), (fitted(setting.quick), "reference")):
            running.append(Paced(which, setting, name))
            running[-1].steps(1)  # warms up
        found = [[paced.steps(count) for paced in running] for _ in range(turns)]
    finally:
        for paced in running:
            paced.end()
    return *(median(seconds for turn in found for seconds in turn[i]) for i in range(2)), imbalance(running[0].metrics, case.ep)


def predicted(case, machine, setting, load):
    """What `lockstep plan` says of a step, in seconds, with its low and high end; experts are loaded as in the run."""
    command = [setting.program("lockstep"), "plan", "--json", "-n", str(case.ranks), "--cluster", str(machine)]
    command += [f"--imbalance={load:.3f}"] if case.ep > 1 else []
    said = json.loads(run([*command, *lockstep_options(case, setting)], dict(os.environ), setting.deadline))
    if said["layout"]["from"] != "configuration":
        raise BenchError(f"{name_of(case)}: the plan is of a layout that was searched for")
    return said["step"]


def measure(setting, rounds):
    """A row for each layout. A round traces what constants are fitted to again and again, so that no moment of the machine decides them, and each layout
    runs by turns with it: as many times as that is slower than in its traces, the machine is."""
    cases = layouts(setting.quick)
    for model in (FITTED, *OTHERS):
        write_random_tokens(setting.scratch / model, 500_000, VOCABULARY[model])
    found = {case: [] for case in cases}
    for number in range(1, rounds + 1):
        folders, then, seconds = [], [], {}
        for i, case in enumerate(cases if number % 2 else reversed(cases)):
            if i % (len(cases) if setting.quick else BETWEEN) == 0:
                folder, steps = traced_run(setting, i)
                folders.append(folder)
                then += steps
            seconds[case] = side_by_side(case, setting)
        machine = calibrate(setting, folders)
        for case, (measured, now, load) in seconds.items():
            step, speed = predicted(case, machine, setting, load), median(then) / now
            found[case].append({"step": step, "seconds": measured, "speed": speed})
            print(f"round {number}  {name_of(case):<42} {1e3 * step['seconds']:8.1f} ms predicted {1e3 * measured:8.1f} measured, "
                  f"the machine at {speed:.2f} of its speed", flush=True)
    return [row_of(case, steps) for case, steps in found.items()]


def row_of(case, steps):
    """Measured seconds are those at the speed of the traces."""
    steady = [(one["step"], one["seconds"] * one["speed"]) for one in steps]
    inside = sum(step["low"] <= seconds <= step["high"] for step, seconds in steady)
    return {
        "layout": name_of(case),
        "ranks": case.ranks,
        "predicted_ms": median(step["seconds"] for step, _ in steady) * 1000,
        "measured_ms": median(one["seconds"] for one in steps) * 1000,
        "speed": spread([one["speed"] for one in steps]),
        "ratio": spread([step["seconds"] / seconds for step, seconds in steady]),
        "in_band": inside / len(steady),
    }


def off(row):
    """How far the prediction lies from the measured step, as spread() has it: median, smallest and largest of the rounds."""
    found = row["ratio"]
    ends = [abs(found[end] - 1) for end in ("smallest", "largest")]
    return {"ratio": abs(found["ratio"] - 1), "smallest": min(ends), "largest": max(ends)}


def cells(rows):
    """Of the table in docs/benchmarks.md: heads, and a row for each layout."""
    heads = ["layout", "predicted ms", "measured ms", "machine's speed", "predicted / measured", "off by", "in the band"]
    lines = []
    for row in rows:
        ratio = row["ratio"]
        spread_text = f"{ratio['ratio']:.3f} ({ratio['smallest']:.3f}..{ratio['largest']:.3f})"
        lines.append([row["layout"], f"{row['predicted_ms']:.1f}", f"{row['measured_ms']:.1f}", f"{row['speed']['ratio']:.2f}", spread_text,
                      f"{off(row)['ratio']:.1%}", f"{row['in_band']:.0%}"])
    return heads, lines


def parse_arguments():
    parser = argparse.ArgumentParser(description="Predicted against measured steps, after a calibration on another layout.")
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
    heads, lines = cells(rows)
    print("\n" + "\n".join("  ".join(cell.ljust(42 if i == 0 else 22) for i, cell in enumerate(line)) for line in (heads, *lines)))
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
