"""Commands that end: each has a deadline, and what it started ends with it."""
import os
import re
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

GRACE = 3  # seconds between asking a process to end and killing it
KEPT = 100_000  # characters of what a command said


class Clock:
    """What is left of a number of seconds."""

    def __init__(self, seconds):
        self.begin = time.monotonic()
        self.end = self.begin + seconds

    def left(self):
        return max(0.0, self.end - time.monotonic())

    def part(self, seconds):
        """So many seconds of it, where there are as many."""
        return Clock(min(seconds, self.left()))


@dataclass(frozen=True)
class Done:
    code: int | None  # None: ended at its deadline
    seconds: float
    said: str  # standard output and error, the end of it

    @property
    def ok(self):
        return self.code == 0

    @property
    def how(self):
        """For a report: why it is not ok."""
        if self.code is None:
            return f"not done after {self.seconds:.0f} s"
        return f"ended by signal {-self.code}" if self.code < 0 else f"exit code {self.code}"


def signal_group(process, number):
    """False where nobody of its session is left."""
    try:
        os.killpg(process.pid, number)
        return True
    except (ProcessLookupError, PermissionError):
        return False


def is_left(group):
    """Somebody of the process group runs; a zombie does not."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, of = path.read_text().rpartition(")")[2].split()[:3]
        except (OSError, ValueError):
            continue
        if int(of) == group and state not in "ZX":
            return True
    return False


def wait(process, seconds):
    """For all of its group: what a killed process held is free only when it is gone."""
    deadline = time.monotonic() + seconds
    while process.poll() is None or is_left(process.pid):
        if time.monotonic() > deadline:
            return
        time.sleep(0.01)


def end(process):
    """The process and all that it started in its session; one that the kernel does not let go is left behind."""
    if signal_group(process, signal.SIGTERM):
        wait(process, GRACE)
        signal_group(process, signal.SIGKILL)
        wait(process, GRACE)


def run(command, seconds, log, environment=None, folder=None):
    """Done of a command that has so many seconds; what it says is appended to the file `log`."""
    begin = time.monotonic()
    with open(log, "ab") as file:
        start = file.tell()
        try:
            process = subprocess.Popen(
                [str(word) for word in command], stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
                env={**os.environ, **(environment or {})}, cwd=folder, start_new_session=True,
            )
        except OSError as error:
            return Done(127, 0.0, str(error))
        try:
            code = process.wait(timeout=max(0.1, seconds))
        except subprocess.TimeoutExpired:
            code = None
        finally:
            end(process)
    return Done(code, time.monotonic() - begin, said_in(log, start))


def said_in(log, start):
    with open(log, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(start, size - KEPT))
        return file.read().decode(errors="replace")


def output(command, seconds=20, environment=None):
    """What a command that succeeds says on standard output, without blanks at its ends; None for any other."""
    try:
        done = subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              errors="replace", timeout=seconds, env={**os.environ, **(environment or {})})
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def last_lines(text, count=15, width=220):
    """The last lines that are not empty, each cut to `width`."""
    lines = [line.rstrip()[:width] for line in text.splitlines() if line.strip()]
    return "\n".join(lines[-count:])


def without_colours(text):
    return re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", text)
