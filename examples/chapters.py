#!/usr/bin/env python3
"""The demo's novels and Bible books as one document a chapter: examples/chapters.py TEXT.txt... > chapters.jsonl

What `make demo` prepares has a document for each book, of 120,000 tokens and more; packed documents want shorter ones.
"""
import json
import re
import sys
from pathlib import Path

HEADING = re.compile(r"^(?=(?:chapter [0-9ivxl]+\.?|[1-3]?[A-Za-z ]+ [0-9]+) *$)", re.IGNORECASE | re.MULTILINE)  # "CHAPTER IV", "Genesis 12"


def chapters(text):
    return [part for part in HEADING.split(text) if part.strip()]


if __name__ == "__main__":
    for path in sys.argv[1:]:
        for chapter in chapters(Path(path).read_text()):
            print(json.dumps({"text": chapter}))
