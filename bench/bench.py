"""Speed of Lockstep beside PyTorch on the same work, as ratios of one run. See docs/benchmarks.md.

    .venv/bin/python bench/bench.py build/release [--group single,ranks] [--only TEXT] [--quick]
    .venv/bin/python bench/bench.py build/release --page docs/benchmarks.md
"""

import argparse
import importlib.metadata
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median, quantiles

import adamw
import collectives
import generate
import imbalance
import pages
import planner
import replicas
import search
import tokenizer
from cases import DEFAULT_GROUPS, GROUPS, VOCABULARY, cases_of, training_rows
from gemm import products_of
from page import PAGE_ROUNDS, PAGE_SECONDS, check_tree, write_page
from programs import BenchError, Setting, peer_allocator
from tables import markdown
from token_files import write_random_tokens
from training import Measurements, Rounds, against_theory, case_row, comparison, measure

CORES = 2  # one rank with two threads, or several ranks with one
PROGRAMS = {"adamw": "bench_adamw", "collectives": "bench_collectives", "imbalance": "bench_imbalance", "replicas": "bench_replicas", "tokenizer": "bench_tokenize"}  # that a group needs beside `lockstep`


def parse_arguments():
    parser = argparse.ArgumentParser(description="Speed of Lockstep beside PyTorch on the same work.")
    parser.add_argument("build", type=Path, help="where `make bench` left the programs: build/release")
    parser.add_argument("--group", default=",".join(DEFAULT_GROUPS), help=f"some of {','.join(GROUPS)} (default %(default)s)")
    parser.add_argument("--only", default="", metavar="TEXT", help="training rows whose own case has this in its name: bf16, 4x1")
    parser.add_argument("--quick", action="store_true", help="one short round of everything: does it run?")
    parser.add_argument("--rounds", type=int, default=3, help="at most this many")
    parser.add_argument("--seconds", type=float, help="no round begins that would end later (default 1200)")
    parser.add_argument("--out", type=Path, default=Path("build/bench"), help="PREFIX of the .json and .md that are written")
    parser.add_argument("--page", type=Path, metavar="FILE", help="write all figures of one build into this page: every group, "
                        f"{PAGE_ROUNDS} rounds or more, within {PAGE_SECONDS / 60:.0f} minutes on idle cores")
    arguments = parser.parse_args()
    arguments.seconds = arguments.seconds or (PAGE_SECONDS if arguments.page else 1200)
    arguments.groups = arguments.group.split(",")
    check(arguments)
    return arguments


def check(arguments):
    for group in arguments.groups:
        if group not in GROUPS:
            raise BenchError(f"--group {group}: one of {', '.join(GROUPS)}")
    for name in ("lockstep", *(PROGRAMS[group] for group in arguments.groups if group in PROGRAMS)):
        if not os.access(arguments.build / name, os.X_OK):
            raise BenchError(f"{arguments.build / name} is not a program: `make bench` builds it")
    if arguments.rounds < 1:
        raise BenchError("--rounds is 1 or more")
    if arguments.page:
        check_page(arguments)
    if len(os.sched_getaffinity(0)) < CORES:
        raise BenchError(f"{CORES} cores are needed, this process may use {len(os.sched_getaffinity(0))}")


def check_page(arguments):
    """A page is the whole of one commit."""
    if set(arguments.groups) < set(DEFAULT_GROUPS) or arguments.only or arguments.quick or arguments.rounds < PAGE_ROUNDS:
        raise BenchError(f"--page takes every group in {PAGE_ROUNDS} rounds or more: leave out --group, --only, --quick, --rounds")
    check_tree(arguments.page)


def version_of(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        raise BenchError(f"no {package} in this Python: run it by .venv/bin/python, which `make build` sets up") from None


def machine():
    cpu = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "?")
    return {"cpu": cpu, "cores": os.cpu_count(), "system": f"{platform.system()} {platform.release()}"}


def commit():
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    found = subprocess.run(command, capture_output=True, text=True)
    return found.stdout.strip() or "of no commit"


def relative_noise(measurements):
    """How far the quartiles of a case's steps lie apart, over its median: the middle case."""
    found = []
    for case in measurements.rounds:
        steps = measurements.all(case, "step_seconds")
        if len(steps) >= 4:
            low, middle, high = quantiles(steps, n=4)
            found.append((high - low) / middle)
    return median(found) if found else None


def train(arguments, setting, end, after_round):
    """Rounds of the training groups; the GEMM limit belongs to them."""
    rows = training_rows(arguments.groups, setting.quick)
    rows = [row for row in rows if arguments.only in row.ours.name()]
    products = products_of(rows) if rows else []
    if "gemm" not in arguments.groups:
        products = []
    elif not rows:
        products = products_of(training_rows(["single"], setting.quick))
    if not rows and not products:
        return after_round([], products, Measurements())
    for model in {case.work.model for case in cases_of(rows)}:
        write_random_tokens(setting.scratch / model, 500_000, VOCABULARY[model])
    rounds = Rounds(1 if setting.quick else arguments.rounds, end)
    measure(rows, products, rounds, setting, lambda rows, measurements: after_round(rows, products, measurements))


def training_report(rows, products, measurements, setting):
    limits = measurements.limits
    return {
        "comparisons": [comparison(row, measurements, setting) for row in rows],
        "pipelines": [against_theory(row.ours, row.bases[1], measurements) for row in rows if row.ours.pp > 1],
        "cases": [case_row(case, measurements) for case in cases_of(rows)],
        "gemm": [
            {"model": p.model, "tokens": p.tokens, "precision": p.precision, "rate": limits.rate(p), "shapes": limits.shapes(p)}
            for p in products
            if p not in measurements.failed
        ],
        "noise": relative_noise(measurements),
        "failed": {task.name(): why for task, why in measurements.failed.items()},
    }


def measure_all(arguments, setting, write):
    """Short groups first: what remains of --seconds is for the rounds of training. `write(report)` after every round of them."""
    begin, load = time.monotonic(), os.getloadavg()[0]
    rounds = 1 if setting.quick else arguments.rounds
    report = {"machine": machine(), "load_before": load, "torch": version_of("torch"), "peer_allocator": peer_allocator()}
    report |= {"command": " ".join(["bench.py", *sys.argv[1:]]), "commit": commit(), "quick": setting.quick}
    found = collectives.measure(setting, rounds) if "collectives" in arguments.groups else None
    report["collectives"] = collectives.rows(found) if found else []
    found = tokenizer.measure(setting, rounds) if "tokenizer" in arguments.groups else None
    report["tokenizer"] = tokenizer.rows(found) if found else []
    report["adamw"] = adamw.measure(setting, rounds) if "adamw" in arguments.groups else []
    report["imbalance"] = imbalance.measure(setting, rounds) if "imbalance" in arguments.groups else []
    report["replicas"] = replicas.measure(setting, rounds) if "replicas" in arguments.groups else []
    report["pages"] = pages.measure(setting, rounds) if "pages" in arguments.groups else []
    report["planner"] = planner.measure(setting, rounds) if "planner" in arguments.groups else []
    report["search"] = search.measure(setting, rounds) if "search" in arguments.groups else []
    found = generate.measure(setting, rounds) if "generate" in arguments.groups else None
    report["generate"] = generate.rows(found, setting) if found else []

    def after_round(rows, products, measurements):
        nonlocal report
        report |= training_report(rows, products, measurements, setting)
        report |= {"rounds": max(map(len, measurements.rounds.values()), default=0)}
        write(report | {"seconds": time.monotonic() - begin, "load_after": os.getloadavg()[0]})
        if arguments.page and measurements.failed:
            raise BenchError(f"no page: {', '.join(task.name() for task in measurements.failed)} failed; see {arguments.out}.json")

    train(arguments, setting, begin + arguments.seconds, after_round)


def main():
    arguments = parse_arguments()
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-") as scratch:
        cache = (arguments.out.parent / "bench-inductor").resolve()
        setting = Setting(arguments.build.resolve(), Path(scratch), cache, arguments.quick, 1 if arguments.quick else 2)
        measure_all(arguments, setting, lambda report: write(arguments.out, report))
    report = json.loads(Path(f"{arguments.out}.json").read_text())
    print(f"\n{markdown(report)}\nfigures: {arguments.out}.json and {arguments.out}.md")
    if report["failed"]:
        raise BenchError(f"{len(report['failed'])} cases failed, the rest is measured: {', '.join(report['failed'])}")
    if arguments.page:
        write_page(arguments.page, report)
        print(f"page: {arguments.page}")
    return 0


def write(out, report):
    Path(f"{out}.json").write_text(json.dumps(report, indent=1) + "\n")
    Path(f"{out}.md").write_text(markdown(report))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("bench: terminated"))  # what it started ends with it
    try:
        sys.exit(main())
    except BenchError as error:
        sys.exit(f"bench: {error}")
    except KeyboardInterrupt:
        sys.exit("bench: interrupted")
