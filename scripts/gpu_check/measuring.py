"""bench/gpu.py on the programs that were built; its figures are read also where it was cut."""
import json
from pathlib import Path

from commands import last_lines, run

RESERVE = 8  # seconds that its own end has


def measure(root, machine, build, folder, clock, log):
    """The part of the report."""
    out = Path(folder) / "measure.json"
    out.unlink(missing_ok=True)
    seconds = clock.left() - RESERVE
    if seconds < 30:
        return {"ok": False, "why": f"{clock.left():.0f} s are left, which is too few to measure anything"}
    command = [machine.python, Path(root) / "bench/gpu.py", build, "--seconds", f"{seconds:.0f}", "--out", out]
    command += ["--ncu", machine.profiler] if machine.profiler else []
    done = run(command, clock.left(), log, folder=root)
    try:
        figures = json.loads(out.read_text())
    except (OSError, json.JSONDecodeError):
        figures = {"failed": {}}
    part = {"figures": figures, "ok": done.ok and not figures.get("failed")}
    if not done.ok:
        part["why"] = f"{done.how}\n{last_lines(done.said, 12)}"
    return part
