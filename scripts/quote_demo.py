#!/usr/bin/env python3
"""Renews what README.md quotes of the demo, from a run of it.

    make demo 2>&1 | tee demo.log
    scripts/quote_demo.py demo.log

`...` stands for lines left out: those of most steps, and of what prepares the text.
"""
import re
import sys
from pathlib import Path

README = Path(__file__).resolve().parent.parent / "README.md"
BLOCK = re.compile(r"(<!-- demo -->\n```text\n)(.*?)(```\n)", re.DOTALL)


def quoted(transcript):
    """The lines that README.md shows."""
    parts = {title: lines for title, *lines in (part.splitlines() for part in transcript.split("\n== ")[1:])}
    text, tokenizer, _, training, written = parts
    tokens = [line for line in parts[tokenizer] if line]
    head, steps = split_training([line for line in parts[training] if line])
    end = next(number for number, line in enumerate(parts[written]) if line.startswith("checkpoints/."))
    shown = [f"== {text}", "...", f"== {tokenizer}", *tokens, "...", f"== {training}", *head]
    for step in (steps[0], steps[-2], steps[-1]):
        shown += ["...", *step]
    return shown + ["", f"== {written}", *parts[written][:end + 1]]


def split_training(lines):
    """What is printed up to the memory of the first step; then of each evaluation the step before it and all up to the next step."""
    is_step = re.compile(r" +\d+/\d+ ").match
    peak = next(number for number, line in enumerate(lines) if line.startswith("  peak "))
    steps = []
    for before, line in zip(lines[peak:], lines[peak + 1:]):
        if line.startswith("validation loss"):
            steps.append([before, line])
        elif steps and not is_step(line) and not is_step(before):
            steps[-1].append(line)
    return lines[:peak + 1], steps


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    block = "".join(f"{line}\n" for line in quoted(Path(sys.argv[1]).read_text()))
    text = README.read_text()
    assert len(BLOCK.findall(text)) == 1, "README.md has no block behind <!-- demo -->"
    README.write_text(BLOCK.sub(lambda match: match[1] + block + match[3], text))


if __name__ == "__main__":
    main()
