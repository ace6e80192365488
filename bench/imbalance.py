"""What an uneven load of experts costs a step, and that the update of the routers' bias evens it out."""

import json
import os
from statistics import median

from programs import run, spread

RANKS = (2, 4)  # each has its share of 8 experts


def measure(setting, rounds):
    """A row for each load: medians over all rounds; `slower` is the step over that of the even load of the same round."""
    rows = []
    for ranks in RANKS:
        command = [setting.program("bench_imbalance"), str(ranks), *(["1"] if setting.quick else [])]
        rows += merged([json.loads(run(command, dict(os.environ), setting.deadline)) for _ in range(rounds)])
    return rows


def merged(found):
    """Of rounds of the program, which begin with the even load."""
    even = [rows[0]["seconds"] for rows in found]
    return [
        {key: rows[0][key] for key in ("ranks", "what")}
        | {key: median(row[key] for row in rows) for key in ("of_rank", "of_expert", "seconds")}
        | {"slower": spread([row["seconds"] / seconds for row, seconds in zip(rows, even)])}
        for rows in zip(*found)
    ]
