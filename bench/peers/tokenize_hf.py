"""Times Hugging Face `tokenizers` on one thread: tokenize_hf.py TOKENIZER.json DOCUMENTS.json SECONDS.

Of encode (one text at a time), encode_batch_fast (all texts, no offsets), decode and decode_batch the seconds of each pass;
one line of JSON. Its caller sets RAYON_NUM_THREADS=1.
"""

import json
import sys
import time
from pathlib import Path

from tokenizers import Tokenizer


def passes(work, seconds):
    taken, end = [], time.perf_counter() + seconds
    while not taken or time.perf_counter() < end:
        begin = time.perf_counter()
        result = work()
        taken.append(time.perf_counter() - begin)
    return result, taken


def main(tokenizer_path, documents_path, seconds):
    tokenizer = Tokenizer.from_file(tokenizer_path)
    documents = json.loads(Path(documents_path).read_text())
    ids = [tokenizer.encode(text, add_special_tokens=False).ids for text in documents]
    works = {
        "encode": lambda: sum(len(tokenizer.encode(text, add_special_tokens=False)) for text in documents),
        "encode_batch_fast": lambda: sum(map(len, tokenizer.encode_batch_fast(documents, add_special_tokens=False))),
        "decode": lambda: sum(len(tokenizer.decode(row, skip_special_tokens=False)) for row in ids),
        "decode_batch": lambda: sum(map(len, tokenizer.decode_batch(ids, skip_special_tokens=False))),
    }
    report = {"bytes": sum(len(text.encode()) for text in documents)}
    for name, work in works.items():
        result, report[name] = passes(work, float(seconds) / len(works))
        if name.startswith("encode"):
            report["tokens"] = result
    print(json.dumps(report))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
