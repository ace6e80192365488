"""AdamW over flat fp32 buffers beside PyTorch's fused kernel, in turns within one process."""

import json
import os
from statistics import median

from programs import run, spread

CALLS = 15  # of each kernel in a round


def measure(setting, rounds):
    """Rows of the program: per size and number of threads the medians over all rounds, and the ratio of each."""
    command = [setting.program("bench_adamw"), "3" if setting.quick else str(CALLS)]
    found = [json.loads(run(command, dict(os.environ), setting.deadline)) for _ in range(rounds)]
    return [
        {key: median(row[key] for row in rows) for key in ("elements", "threads", "lockstep_seconds", "torch_seconds")}
        | {"times_as_fast": spread([row["rate"] for row in rows])}
        for rows in zip(*found)
    ]
