#!/usr/bin/env python3
"""Renews the output that documentation pages quote.

usage: scripts/quote_output.py PATH/TO/lockstep PAGE.md...

A quote is a comment `<!-- lockstep ARGUMENTS -->` on a line of its own and a ```text fence behind it. A picture is a comment
`<!-- lockstep ARGUMENTS --svg -->` and an image `![...](FILE.svg)` in the line behind it, which --svg writes.
"""
import pathlib
import re
import shlex
import subprocess
import sys

QUOTE = re.compile(r"(<!-- lockstep ([^\n]*) -->\n```text\n)(.*?)(```\n)", re.DOTALL)
DOES_NOT_FIT = 4  # `show memory` says so with its exit code, and prints all the same
PICTURE = re.compile(r"<!-- lockstep ([^\n]*--svg) -->\n!\[[^\]\n]*\]\(([^)\s]+\.svg)\)")


def main():
    program, *pages = sys.argv[1:]
    for page in map(pathlib.Path, pages):
        def renew(match):
            command = [program, *shlex.split(match[2])]
            result = subprocess.run(command, capture_output=True, text=True)
            if result.returncode not in (0, DOES_NOT_FIT):
                sys.exit(f"{shlex.join(command)}\n{result.stderr}")
            return match[1] + result.stdout + match[4]

        page.write_text(QUOTE.sub(renew, page.read_text()))
        for arguments, file in PICTURE.findall(page.read_text()):
            (page.parent / file).parent.mkdir(exist_ok=True)
            subprocess.run([program, *shlex.split(arguments), page.parent / file], check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
