#!/usr/bin/env python3
"""Renews the output that documentation pages quote.

usage: scripts/quote_output.py PATH/TO/lockstep PAGE.md...

A quote is a comment `<!-- lockstep ARGUMENTS -->` on a line of its own and a ```text fence behind it. Of a long output
`<!-- lockstep ARGUMENTS | what limits it | which layouts -->` quotes the paragraphs that begin with these words, and `...` in the place of
what stands between them; a paragraph ends at an empty line. A picture is a comment `<!-- lockstep ARGUMENTS --svg -->` and an image
`![...](FILE.svg)` in the line behind it, which --svg writes.
"""
import pathlib
import re
import shlex
import subprocess
import sys

QUOTE = re.compile(r"(<!-- lockstep ([^\n]*) -->\n```text\n)(.*?)(```\n)", re.DOTALL)
DOES_NOT_FIT = 4  # `show memory` says so with its exit code, and prints all the same
PICTURE = re.compile(r"<!-- lockstep ([^\n]*--svg) -->\n!\[[^\]\n]*\]\(([^)\s]+\.svg)\)")
LEFT_OUT = "..."


def arguments_of(comment):
    """The words of the command, and how the quoted paragraphs begin: none where all of the output is quoted."""
    command, *beginnings = comment.split(" | ")
    return shlex.split(command), [beginning.strip() for beginning in beginnings]


def shown(output, beginnings):
    """What is quoted of an output. ValueError where no paragraph begins so."""
    if not beginnings:
        return output
    paragraphs = re.split(r"\n\n+", output.rstrip("\n"))
    quoted = [paragraph.startswith(tuple(beginnings)) for paragraph in paragraphs]
    for beginning in beginnings:
        if not any(paragraph.startswith(beginning) for paragraph in paragraphs):
            raise ValueError(f"no paragraph begins with '{beginning}'")
    text = [paragraph if quoted[i] else LEFT_OUT for i, paragraph in enumerate(paragraphs) if quoted[i] or i == 0 or quoted[i - 1]]
    return "\n\n".join(text) + "\n"


def main():
    program, *pages = sys.argv[1:]
    for page in map(pathlib.Path, pages):
        def renew(match):
            arguments, beginnings = arguments_of(match[2])
            command = [program, *arguments]
            result = subprocess.run(command, capture_output=True, text=True)
            if result.returncode not in (0, DOES_NOT_FIT):
                sys.exit(f"{shlex.join(command)}\n{result.stderr}")
            return match[1] + shown(result.stdout, beginnings) + match[4]

        page.write_text(QUOTE.sub(renew, page.read_text()))
        for arguments, file in PICTURE.findall(page.read_text()):
            (page.parent / file).parent.mkdir(exist_ok=True)
            subprocess.run([program, *shlex.split(arguments), page.parent / file], check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
