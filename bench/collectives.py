"""All-reduce between processes of this machine: Lockstep beside Gloo, and beside what memory allows.

The floor: an all-reduce of n tensors of B bytes reads each of them once and writes each of them once, whatever its
algorithm. `floor` is the time in which the same ranks do that to the same tensors, each to its own in place, all at once.
The tensors are private to their processes, so bytes that one rank takes from another pass through memory that both share:
for every rank (n - 1) / n of B is copied in, summed out, and as sums copied out again. `floor by copies` is the
time of these 3 (n - 1) / n copies of B bytes, all ranks at once.
"""

import json
import os
from collections import defaultdict
from statistics import median

from programs import run, run_peer, spread

SIZES = (4 << 10, 1 << 20, 25 << 20)
RANKS = (2, 4)


def measure(setting, rounds):
    """{(ranks, bytes, program): [row of a round]}"""
    seconds = 0.05 if setting.quick else 0.4
    found = defaultdict(list)

    def lockstep(options):
        command = [setting.program("bench_collectives"), *map(str, options)]
        return json.loads(run(command, {**os.environ, "OMP_NUM_THREADS": "1"}, setting.deadline))

    def gloo(options):
        return run_peer("all_reduce.py", options, setting, 1)

    for number in range(rounds):
        programs = [("lockstep", lockstep), ("gloo", gloo)]
        for ranks in RANKS:
            for name, program in programs if number % 2 == 0 else reversed(programs):
                print(f"round {number + 1}  all_reduce {ranks} ranks {name}", flush=True)
                for row in program([ranks, *SIZES, "--seconds", seconds])["sizes"]:
                    found[ranks, row["bytes"], name].append(row)
    return found


def rows(found):
    table = []
    for ranks in RANKS:
        for size in SIZES:
            ours, theirs = found[ranks, size, "lockstep"], found[ranks, size, "gloo"]
            taken = median(row["seconds"] for row in ours)
            other = median(row["seconds"] for row in theirs)
            ratios = [b["seconds"] / a["seconds"] for a, b in zip(ours, theirs)]
            floor = median(row["pass"] for row in ours)
            copies = 3 * (ranks - 1) / ranks * median(row["copy"] for row in ours)
            row = {"ranks": ranks, "bytes": size, "lockstep_us": taken * 1e6, "gloo_us": other * 1e6}
            row["times_as_fast"] = spread(ratios)
            if size >= 1 << 20:
                row |= {"floor_us": floor * 1e6, "share_of_floor": floor / taken}
                row |= {"copies_us": copies * 1e6, "share_of_copies": copies / taken}
                row["copy_bytes_per_s"] = ranks * size / median(row["copy"] for row in ours)
            table.append(row)
    return table
