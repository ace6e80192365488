"""Runs one case as a process and returns what it measured."""

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from cases import VOCABULARY

TRAIN_TORCH = Path(__file__).parent / "peers" / "train_torch.py"
TCMALLOC = Path("/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4")


class BenchError(Exception):
    pass


@dataclass
class Result:
    step_seconds: list  # after the warm-up
    mfu: float | None = None  # Lockstep's own perf/mfu, median of the steps
    report: dict | None = None  # the PyTorch twin's report


@dataclass(frozen=True)
class Setting:
    lockstep: Path
    scratch: Path
    batch: int
    seq_len: int
    warmup: int
    steps: int
    deadline: float  # seconds a process may take


def peer_allocator():
    return "tcmalloc" if TCMALLOC.exists() else "glibc malloc"


def run(command, environment, deadline):
    """Standard output of a command that succeeds; all it started ends with it."""
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        output, errors = process.communicate(timeout=deadline)
    except BaseException as error:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        if isinstance(error, subprocess.TimeoutExpired):
            raise BenchError(f"not done after {deadline:.0f} s: {' '.join(command)}") from None
        raise
    if process.returncode != 0:
        last = "\n".join((output + errors).strip().splitlines()[-15:])
        raise BenchError(f"exit {process.returncode}: {' '.join(command)}\n{last}")
    return output


def lockstep_options(case, setting):
    return [
        f"--model.preset={case.model}",
        f"--model.vocab_size={VOCABULARY[case.model]}",
        f"--data.train={setting.scratch / case.model}",
        f"--train.seq_len={setting.seq_len}",
        f"--train.global_batch={setting.batch}",
        f"--train.micro_batch={setting.batch // case.ranks}",
        f"--train.precision={case.precision}",
        f"--train.threads={case.threads}",
        f"--parallel.data_parallel={case.how}",
    ]


def run_lockstep(case, setting):
    directory = setting.scratch / "run"
    shutil.rmtree(directory, ignore_errors=True)
    steps = setting.warmup + setting.steps
    command = [str(setting.lockstep), "train", "-n", str(case.ranks), *lockstep_options(case, setting)]
    command += [f"--run.dir={directory}", f"--train.steps={steps}", "--train.log_every=1", "--train.eval_every=0"]
    command += [f"--checkpoint.every={steps}", "--checkpoint.resume=none"]  # none before the last step
    run(command, dict(os.environ), setting.deadline)

    rows = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    rows = [row for row in rows if "perf/step_ms" in row and row["step"] > setting.warmup]
    if len(rows) != setting.steps:
        raise BenchError(f"{directory}/metrics.jsonl: {len(rows)} steps after the warm-up, expected {setting.steps}")
    mfu = sorted(row["perf/mfu"] for row in rows)[len(rows) // 2]
    return Result([row["perf/step_ms"] / 1000 for row in rows], mfu=mfu)


def run_torch(case, setting):
    environment = {**os.environ, "OMP_NUM_THREADS": str(case.threads)}
    if TCMALLOC.exists():
        environment["LD_PRELOAD"] = str(TCMALLOC)
    command = [sys.executable, str(TRAIN_TORCH), "--model", case.model, "--precision", case.precision]
    command += ["--tokens", f"{setting.scratch / case.model}.bin"]
    command += ["--batch", str(setting.batch), "--seq-len", str(setting.seq_len)]
    command += ["--ranks", str(case.ranks), "--threads", str(case.threads)]
    command += ["--warmup", str(setting.warmup), "--steps", str(setting.steps)]
    if case.how == "compile":
        command.append("--compile")
    report = json.loads(run(command, environment, setting.deadline).splitlines()[-1])
    return Result(report["step_seconds"], report=report)


def run_case(case, setting):
    return run_lockstep(case, setting) if case.program == "lockstep" else run_torch(case, setting)


def lockstep_parameters(case, setting):
    """Parameters of one replica, by the bytes that `lockstep show` predicts for them."""
    command = [str(setting.lockstep), "show", "layout", "--json", *lockstep_options(case, setting)]
    layout = json.loads(run(command, dict(os.environ), setting.deadline))
    return layout["ranks"][0]["bytes"]["parameters"] // (2 if case.precision == "bf16" else 4)
