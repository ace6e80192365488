"""What comparing replicas every so many steps costs, of a step."""

import json
import os
from statistics import median

from programs import run, spread


def measure(setting, rounds):
    """One row: the medians over all rounds, and the share of each."""
    command = [setting.program("bench_replicas"), *(["1", "1"] if setting.quick else [])]
    found = [json.loads(run(command, dict(os.environ), setting.deadline)) for _ in range(rounds)]
    row = {name: found[0][name] for name in ("model", "ranks", "every")}
    row |= {name: median(one[name] for one in found) for name in ("step_seconds", "comparison_seconds")}
    return [row | {"share": spread([one["share"] for one in found])}]
