"""What the planner's search for a layout takes on very many devices, as `lockstep plan --json` says it; its page comes after that."""

import json
import os

from programs import run, spread

DEVICES = 16_384
LIMIT = 1.0  # seconds
JOBS = {"llama3-405b": (2048, 8192), "qwen3-235b-a22b": (2048, 8192), "deepseek-v3": (2048, 4096)}  # sequences of a step, tokens of one


def once(setting, model):
    """Candidates, seconds."""
    sequences, tokens = JOBS[model]
    command = [setting.program("lockstep"), "plan", "--json", f"--cluster={DEVICES}xh100", f"--model.preset={model}"]
    command += [f"--train.global_batch={sequences}", f"--train.seq_len={tokens}"]
    said = json.loads(run(command, dict(os.environ), setting.deadline))["search"]
    return said["candidates"], said["seconds"]


def measure(setting, rounds):
    """A row for each model."""
    rows = []
    for model in JOBS:
        print(f"plan {model} on {DEVICES} devices", flush=True)
        found = [once(setting, model) for _ in range(rounds)]
        rows.append({"model": model, "devices": DEVICES, "candidates": found[0][0], "seconds": spread([seconds for _, seconds in found])})
    return rows
