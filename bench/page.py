"""docs/benchmarks.md: its part between the marks is written from one run of one commit."""

import subprocess
from pathlib import Path

from marks import marks_rows, short_of_the_mark
from programs import BenchError
from tables import PARTS, setting, table

PAGE_ROUNDS = 3  # or more, of everything
PAGE_SECONDS = 90 * 60
BEGIN, END = "<!-- figures: make bench-page -->\n", "<!-- end of figures -->\n"
LEFT_OUT = ("Matrix products on two threads", "All cases")  # they are in build/bench.md


def check_tree(page):
    """Figures name a commit: what is measured has to be it."""
    command = ["git", "-C", str(page.resolve().parent), "status", "--porcelain", "--untracked-files=no"]
    changed = [line[3:] for line in subprocess.run(command, capture_output=True, text=True).stdout.splitlines()]
    changed = [path for path in changed if not path.endswith(page.name)]
    if changed:
        raise BenchError(f"--page measures a commit, and the tree differs from it: {', '.join(changed[:5])}; commit first")
    split_page(page.read_text())  # before 90 minutes of work


def split_page(text):
    """What stands before the figures, and behind them."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise BenchError(f"the page has no place for the figures: no line {(BEGIN if not begin else END).strip()}")
    return before, after


def marks_table(report):
    return table(["mark", "is", "worst row (rounds)", "of", "verdict"], marks_rows(report))


def figures(report):
    parts = [setting(report), f"### Against the marks\n\n{marks_table(report)}"]
    if short := short_of_the_mark(report):
        parts.append(f"Missed, row by row, and what was tried:\n\n{short}")
    for title, part in PARTS:
        if title not in LEFT_OUT and (text := part(report)):
            parts.append(f"### {title}\n\n{text}")
    return "\n\n".join(parts) + "\n"


def write_page(path, report):
    if report["rounds"] < PAGE_ROUNDS:
        raise BenchError(f"{report['rounds']} rounds in {report['seconds']:.0f} s, a page wants {PAGE_ROUNDS}: it is not written")
    before, after = split_page(Path(path).read_text())
    Path(path).write_text(before + BEGIN + figures(report) + END + after)
