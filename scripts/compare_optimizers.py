#!/usr/bin/env python3
"""In which step Muon is at AdamW's final validation loss: the same run twice, on the same samples from the same initial values.

    compare_optimizers.py LOCKSTEP RUN.toml [-n N] [--section.field=value ...]

Overrides are given to both runs, those of Muon alone (--optimizer.muon_*, momentum, nesterov, ns_*) change nothing for AdamW. The learning
rate of AdamW is that of the file. Runs go to runs/compare-adamw and runs/compare-muon, which must not be there yet.
"""
import json
import subprocess
import sys
from pathlib import Path

EVALUATIONS = 40  # of a run, the last one at its end


def train(lockstep, arguments, kind, every):
    name = f"compare-{kind}"
    if (Path("runs") / name).exists():
        sys.exit(f"runs/{name} is there already: remove it, or keep it elsewhere")
    subprocess.run([lockstep, "train", *arguments, f"--run.name={name}", f"--run.dir=runs/{name}", f"--optimizer.kind={kind}",
                    f"--train.eval_every={every}", "--checkpoint.every=0"], check=True)
    rows = [json.loads(line) for line in (Path("runs") / name / "metrics.jsonl").read_text().splitlines()]
    return [(row["step"], row["validation/loss"]) for row in rows if row.get("event") == "eval"]


def steps_of(lockstep, arguments):
    shown = subprocess.run([lockstep, "config", "show", *arguments], check=True, capture_output=True, text=True).stdout
    line, = (line for line in shown.splitlines() if line.startswith("steps = ") and "trace" not in line and line.split()[2].isdigit())
    return int(line.split()[2])


def first_at(losses, wanted):
    """The first evaluated step with a loss of `wanted` or less; None where there is none."""
    return next((step for step, loss in losses if loss <= wanted), None)


def report(adamw, muon):
    steps, wanted = adamw[-1]
    reached = first_at(muon, wanted)
    lines = [f"AdamW: validation loss {wanted:.4f} after {steps} steps", f"Muon:  validation loss {muon[-1][1]:.4f} after {muon[-1][0]} steps"]
    if reached is None:
        return lines + ["Muon does not reach AdamW's final validation loss"]
    return lines + [f"Muon is at AdamW's final validation loss after {reached} steps: {steps - reached} fewer, {100 * (steps - reached) / steps:.0f} %"]


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    lockstep, arguments = sys.argv[1], sys.argv[2:]
    without_ranks = [word for i, word in enumerate(arguments) if word != "-n" and (i == 0 or arguments[i - 1] != "-n")]
    every = max(1, steps_of(lockstep, without_ranks) // EVALUATIONS)
    adamw = train(lockstep, arguments, "adamw", every)
    muon = train(lockstep, arguments, "muon", every)
    print("\n".join(["", *report(adamw, muon)]))


if __name__ == "__main__":
    main()
