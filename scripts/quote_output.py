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
PICTURE = re.compile(r"<!-- lockstep ([^\n]*--svg) -->\n!\[[^\]\n]*\]\(([^)\s]+\.svg)\)")


def main():
    program, *pages = sys.argv[1:]
    for page in map(pathlib.Path, pages):
        def renew(match):
            command = [program, *shlex.split(match[2])]
            output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            return match[1] + output + match[4]

        page.write_text(QUOTE.sub(renew, page.read_text()))
        for arguments, file in PICTURE.findall(page.read_text()):
            (page.parent / file).parent.mkdir(exist_ok=True)
            subprocess.run([program, *shlex.split(arguments), page.parent / file], check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
