"""What a page of `lockstep show` takes for very many ranks: from starting the process to its end, and the memory it had at most."""

import os
import subprocess
import time

from programs import BenchError, spread

PAGES = ("program", "layout", "memory", "traffic")
LIMITS = {16_384: {"ms": 100, "mb": 100}, 1 << 20: {"ms": 1000, "mb": 400}}  # ranks -> at most
JOB = ("--model.preset=llama3-8b", "--parallel.tp=8", "--parallel.pp=8", "--parallel.zero=1")
NO_ROOM = 4  # exit of a page that is written whole, of a plan that does not fit this host


def once(setting, page, ranks):
    """Milliseconds, megabytes."""
    command = [setting.program("lockstep"), "show", page, "-n", str(ranks), *JOB]
    begin = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    seconds = time.monotonic() - begin
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in ((0, NO_ROOM) if page == "memory" else (0,)):
        raise BenchError(f"exit {process.returncode}: {' '.join(command)}")
    return 1e3 * seconds, 1024 * used.ru_maxrss / 1e6


def measure(setting, rounds):
    """A row for each page and number of ranks."""
    rows = []
    for ranks in LIMITS:
        for page in PAGES:
            print(f"show {page} -n {ranks}", flush=True)
            found = [once(setting, page, ranks) for _ in range(rounds)]
            rows.append({"page": page, "ranks": ranks, "ms": spread([ms for ms, _ in found]), "mb": max(mb for _, mb in found)})
    return rows
