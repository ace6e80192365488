"""Times Hugging Face `tokenizers` on one thread: tokenize_hf.py TOKENIZER.json DOCUMENTS.json SECONDS.

Of encode (one text at a time) and encode_batch_fast (all texts, no offsets) the seconds of each pass; one line of JSON.
Its caller sets RAYON_NUM_THREADS=1.
"""

import json
import sys
import time
from pathlib import Path

from tokenizers import Tokenizer


def passes(encode, seconds):
    taken, end = [], time.perf_counter() + seconds
    while not taken or time.perf_counter() < end:
        begin = time.perf_counter()
        tokens = encode()
        taken.append(time.perf_counter() - begin)
    return tokens, taken


def main(tokenizer_path, documents_path, seconds):
    tokenizer = Tokenizer.from_file(tokenizer_path)
    documents = json.loads(Path(documents_path).read_text())

    def one_by_one():
        return sum(len(tokenizer.encode(text, add_special_tokens=False)) for text in documents)

    def as_batch():
        return sum(map(len, tokenizer.encode_batch_fast(documents, add_special_tokens=False)))

    report = {"bytes": sum(len(text.encode()) for text in documents)}
    for name, encode in (("encode", one_by_one), ("encode_batch_fast", as_batch)):
        report["tokens"], report[name] = passes(encode, float(seconds) / 2)
    print(json.dumps(report))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
