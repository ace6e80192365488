"""Runs one case as a process and returns what it measured."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from cases import CHANGES, PIPELINE_PEERS, STATE_SPACES, VOCABULARY

PEERS = Path(__file__).parent / "peers"
TRACED = 2  # steps
TCMALLOC = Path("/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4")


class BenchError(Exception):
    pass


@dataclass(frozen=True)
class Setting:
    programs: Path  # where lockstep and the programs of bench/ are
    scratch: Path
    cache: Path  # what torch.compile keeps from run to run
    quick: bool = False
    warmup: int = 2  # steps
    deadline: float = 600  # seconds a process may take
    device: str = "cpu"  # cuda: both sides on the first GPU
    trace: bool = False  # Lockstep: steps after the timed ones are traced, of a pipeline anyway
    traced: int = TRACED  # so many
    profile: bool = False  # the PyTorch twin's report has the time of each kernel

    def program(self, name):
        return str(self.programs / name)


@dataclass
class Result:
    step_seconds: list  # after the warm-up
    step_faults: list = field(default_factory=list)  # minor page faults of the same steps; empty: not measured
    startup: float = 0.0  # seconds from starting the process to the beginning of the first step
    exposed: dict = field(default_factory=dict)  # Lockstep, rank 0: what it waited for -> its share of each timed step
    data_wait: float | None = None  # Lockstep: share of the timed steps spent fetching the batch
    peak_bytes: int | None = None  # Lockstep: what it measured of the rank that had most allocated at once
    pipeline: dict | None = None  # Lockstep in stages: what `lockstep show program --measured` says of traced steps after the timed ones
    report: dict | None = None  # the PyTorch twin's report


def peer_allocator():
    return "tcmalloc" if TCMALLOC.exists() else "glibc malloc"


def peer_environment(setting, threads):
    """Of the peers: their threads, and tcmalloc where it is installed."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "RAYON_NUM_THREADS": str(threads)}
    environment["TORCHINDUCTOR_CACHE_DIR"] = str(setting.cache)
    if TCMALLOC.exists():
        environment["LD_PRELOAD"] = str(TCMALLOC)
    return environment


def spread(ratios):
    """Of the rounds: their median, smallest and largest."""
    return {"ratio": median(ratios), "smallest": min(ratios), "largest": max(ratios)}


def tail(text):
    return "\n".join(text.strip().splitlines()[-15:])


def run(command, environment, deadline):
    """Standard output of a command that succeeds; all it started ends with it."""
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        output, errors = process.communicate(timeout=deadline)
    except BaseException as error:
        end(process)
        if isinstance(error, subprocess.TimeoutExpired):
            raise BenchError(f"not done after {deadline:.0f} s: {' '.join(command)}") from None
        raise
    if process.returncode != 0:
        raise BenchError(f"exit {process.returncode}: {' '.join(command)}\n{tail(output + errors)}")
    return output


def run_peer(script, options, setting, threads):
    """What the last line of bench/peers/<script> says."""
    command = [sys.executable, str(PEERS / script), *map(str, options)]
    return json.loads(run(command, peer_environment(setting, threads), setting.deadline).splitlines()[-1])


def lockstep_options(case, setting):
    work = case.work
    preset, changes = CHANGES.get(work.model, (work.model, ()))
    split = [f"--parallel.tp={case.tp}", f"--parallel.sequence_parallel={str(case.sequence_parallel).lower()}"]
    stages = []
    if case.pp > 1:
        stages = [f"--parallel.pp={case.pp}", f"--parallel.schedule={case.schedule}"]
        stages += [f"--parallel.virtual_stages={case.virtual_stages}"]
        stages += ["--parallel.post_validation=off"] if case.waits else []
        stages += [f"--parallel.layers_per_stage={','.join(map(str, case.blocks()))}"]
    return [
        f"--model.preset={preset}",
        *changes,
        *(split if case.tp > 1 else []),
        *([f"--parallel.ep={case.ep}"] if case.ep > 1 else []),
        *([f"--parallel.cp={case.cp}", f"--parallel.context={case.context}"] if case.cp > 1 else []),
        *(["--parallel.context_split=contiguous"] if case.contiguous else []),
        *stages,
        f"--memory.recompute={case.recompute}",
        f"--model.vocab_size={VOCABULARY[work.model]}",
        f"--data.train={setting.scratch / work.model}",
        f"--train.seq_len={work.seq_len}",
        f"--train.global_batch={work.batch}",
        f"--train.micro_batch={work.batch // case.replicas() // case.microbatches}",
        f"--train.precision={case.precision}",
        f"--train.threads={case.threads}",
        f"--parallel.data_parallel={case.how}",
        f"--parallel.zero={case.zero}",
        *([f"--train.device={setting.device}"] if setting.device != "cpu" else []),
    ]


def end(process):
    """It and all it started."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def minor_faults(pid):
    """Of all threads of a process since it began; see proc(5)."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[7])


def metric_rows(path):
    """Whole lines of metrics.jsonl."""
    return [json.loads(line) for line in path.read_text().rpartition("\n")[0].splitlines()] if path.exists() else []


def step_rows(path):
    """Those that are steps."""
    return [row for row in metric_rows(path) if "perf/step_ms" in row]


def watch(process, metrics, steps, deadline):
    """Waits for so many steps; returns their rows and the page faults of the process at the end of each."""
    faults, size, end = [], -1, time.monotonic() + deadline
    while True:
        if process.poll() is not None:
            raise BenchError(f"exit {process.returncode} before its steps were done")
        if time.monotonic() > end:
            raise BenchError(f"not done after {deadline:.0f} s")
        time.sleep(0.01)
        now = metrics.stat().st_size if metrics.exists() else -1
        if now == size:
            continue
        size, rows = now, step_rows(metrics)
        faults += [minor_faults(process.pid)] * (len(rows) - len(faults))
        if len(rows) >= steps:
            return rows[:steps], faults[:steps]


def cores():
    return sorted(os.sched_getaffinity(0))


def pin_ranks(launcher, ranks):
    """Each rank on a core of its own, with all its threads; those it starts later follow. Nothing where there are fewer cores."""
    if not 1 < ranks <= len(cores()):
        return
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    for core, child in zip(cores(), sorted(map(int, children))):  # started in the order of their ranks
        for thread in os.listdir(f"/proc/{child}/task"):
            os.sched_setaffinity(int(thread), {core})


def wait_for(process, path, deadline):
    end = time.monotonic() + deadline
    while not path.exists():
        if process.poll() is not None:
            raise BenchError(f"exit {process.returncode} before there was {path.name}")
        if time.monotonic() > end:
            raise BenchError(f"no {path.name} after {deadline:.0f} s")
        time.sleep(0.01)


def traced_numbers(directory, ranks, setting):
    """Traced steps in numbers, and simulated with the times of their actions."""
    command = [setting.program("lockstep"), "show", "program", str(directory / "config.resolved.toml"), "-n", str(ranks)]
    return json.loads(run([*command, "--measured", str(directory / "trace"), "--json"], dict(os.environ), setting.deadline))


def exposed_shares(rows):
    """{what rank 0 waited for: its share of each step}, from perf/exposed_comm/*; 0 where a step has none."""
    prefix = "perf/exposed_comm/"
    names = dict.fromkeys(name for row in rows for name in row if name.startswith(prefix))
    return {name.removeprefix(prefix): [row.get(name, 0.0) for row in rows] for name in names}


def run_lockstep(case, setting):
    """Ends the program once its steps are done: the checkpoint at the end of a run is not measured. In a pipeline, or where
    the setting says so, steps after the timed ones are traced. Where the update goes ahead of the norm, steps that are logged wait
    for it: one line for all timed steps, with their mean."""
    directory, warmup = setting.scratch / "run", case.work.warmup or setting.warmup
    shutil.rmtree(directory, ignore_errors=True)
    every = case.work.steps if case.ahead() else 1
    lines = (3 if every > 1 else 2) if case.ahead() else warmup + case.work.steps  # ahead: first step, warm-up, the timed
    steps = 2 * every if case.ahead() else lines
    command = [setting.program("lockstep"), "train", "-n", str(case.ranks), *lockstep_options(case, setting)]
    command += [f"--run.dir={directory}", f"--train.steps={steps + 100_000}", f"--train.log_every={every}"]
    command += ["--train.eval_every=0", "--checkpoint.every=0", "--checkpoint.resume=none"]
    traced = case.pp > 1 or setting.trace
    command += [f"--trace.steps={steps + 1}-{steps + setting.traced}"] if traced else []
    metrics = directory / "metrics.jsonl"
    with tempfile.TemporaryFile("w+") as output:
        begin = time.time()
        process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
        try:
            if case.pp > 1:
                watch(process, metrics, 1, setting.deadline)
                pin_ranks(process.pid, case.ranks)
            rows, faults = watch(process, metrics, lines, setting.deadline)
            if traced:
                wait_for(process, directory / "report.html", setting.deadline)
        except BenchError as error:
            output.seek(0)
            raise BenchError(f"{error}: {' '.join(command)}\n{tail(output.read())}") from None
        finally:
            end(process)
    timed = rows[-1:] if case.ahead() else rows[warmup :]
    seconds = sum(row["perf/step_ms"] for row in timed)
    return Result(
        [row["perf/step_ms"] / 1000 for row in timed],
        step_faults=[b - a for a, b in zip(faults[warmup - 1 :], faults[warmup :])] if case.ranks == 1 and not case.work.warmup else [],  # of a steady step
        exposed=exposed_shares(timed),
        startup=rows[0]["time"] - rows[0]["perf/step_ms"] / 1000 - begin,
        data_wait=sum(row["data/wait"] * row["perf/step_ms"] for row in timed) / seconds,
        pipeline=traced_numbers(directory, case.ranks, setting) if case.pp > 1 else None,
        peak_bytes=round(max(row["mem/peak_gib"] for row in rows) * 2**30),
    )


def torch_options(case, setting):
    work = case.work
    options = ["--model", work.model, "--tokens", f"{setting.scratch / work.model}.bin"]
    options += ["--device", setting.device] if setting.device != "cpu" else []
    options += ["--profile"] if setting.profile else []
    return [*options, "--batch", work.batch, "--seq-len", work.seq_len, "--ranks", case.ranks, "--threads", case.threads]


def torch_script(case):
    """And what it takes besides torch_options()."""
    if case.work.model in STATE_SPACES:
        return "train_mamba2_torch.py", ["--how", case.how]
    if case.zero:
        return "train_fsdp_torch.py", ["--how", case.how]
    if case.pp > 1:
        schedule = PIPELINE_PEERS[(case.schedule, case.virtual_stages)]
        blocks = ",".join(map(str, case.blocks()))
        pinned = ["--pin"] if case.ranks <= len(cores()) else []
        return "train_pp_torch.py", ["--schedule", schedule, "--microbatches", case.microbatches, "--blocks", blocks, *pinned]
    if case.cp > 1:
        return "train_cp_torch.py", []
    if case.tp > 1:
        return "train_tp_torch.py", ["--tp", case.tp]
    return "train_torch.py", ["--precision", case.precision]


def run_torch(case, setting):
    script, options = torch_script(case)
    options = [*torch_options(case, setting), *options, "--warmup", case.work.warmup or setting.warmup, "--steps", case.work.steps]
    options += [f"--{case.how}"] if script == "train_torch.py" and case.how in ("compile", "compile-blocks") else []
    options += ["--sequence-parallel"] if case.sequence_parallel else []
    begin = time.time()
    report = run_peer(script, options, setting, case.threads)
    faults = report["step_faults"] if case.ranks == 1 else []
    return Result(report["step_seconds"], faults, report["first_step_begin"] - begin, report=report)


def torch_memory(case, setting):
    """The most bytes that a rank of FSDP2 or ZeroRedundancyOptimizer had allocated at once; in a run of its own."""
    script, options = torch_script(case)
    options = [*torch_options(case, setting), *options, "--warmup", 1, "--steps", 1, "--memory"]
    return run_peer(script, options, setting, case.threads)["allocated_bytes"]


def run_case(case, setting):
    return run_lockstep(case, setting) if case.program == "lockstep" else run_torch(case, setting)


def show(what, case, setting):
    command = [setting.program("lockstep"), "show", what, "--json", "-n", str(case.ranks), *lockstep_options(case, setting)]
    return json.loads(run(command, dict(os.environ), setting.deadline))


def lockstep_parameters(case, setting):
    """Parameters of one replica, by the bytes that `lockstep show` predicts for them."""
    element_size = 2 if case.precision == "bf16" else 4
    return show("layout", case, setting)["ranks"][0]["bytes"]["parameters"] // element_size


def predicted_peak(case, setting):
    """The most bytes that a rank has allocated at once, by the formulas."""
    return max(rank["bytes"]["total"] for rank in show("memory", case, setting)["ranks"])


def busiest_rank_bytes(case, setting):
    """Bytes that a step puts on the links of the rank that sends and receives most; predicted == recorded is a test."""
    moved = [0] * case.ranks
    for rank in show("traffic", case, setting)["ranks"]:
        for call in rank["calls"]:
            for peer, sent in call["sent"].items():
                moved[rank["rank"]] += sent
                moved[int(peer)] += sent
    return max(moved)
