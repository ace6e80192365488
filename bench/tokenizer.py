"""The tokenizer beside Hugging Face's, one thread each, on the same texts with the same vocabulary."""

import json
import os
from pathlib import Path
from statistics import median

from programs import BenchError, run, run_peer

ROOT = Path(__file__).parent.parent
MEGABYTE = 1e6


def documents():
    """Text that is in the repository: a novel's beginning in 4 kB pieces, then prose and code, a document a file."""
    novel = (ROOT / "tests/fixtures/austen-64k.txt").read_text()
    texts = [novel[begin : begin + 4096] for begin in range(0, len(novel), 4096)]
    paths = [path for folder in ("docs", "lockstep", "apps", "bench", "tests") for path in sorted((ROOT / folder).rglob("*"))]
    return texts + [path.read_text() for path in paths if path.suffix in (".md", ".cpp", ".h", ".py")]


def measure(setting, rounds):
    """Seconds of a pass over all documents, by program: medians of all rounds."""
    texts = documents()
    pieces, plain = setting.scratch / "documents.json", setting.scratch / "documents.txt"
    pieces.write_text(json.dumps(texts))
    plain.write_text("\n".join(texts))
    vocabulary = setting.scratch / "tokenizer.json"
    train = ["data", "tokenizer", str(plain), "--out", str(vocabulary), "--vocab-size", "8192"]
    run([setting.program("lockstep"), *train], dict(os.environ), setting.deadline)

    seconds = 0.5 if setting.quick else 3
    taken = {"lockstep": [], "encode": [], "encode_batch_fast": []}
    for number in range(rounds):
        print(f"round {number + 1}  tokenizer", flush=True)
        ours = run([setting.program("bench_tokenize"), str(vocabulary), str(pieces), str(seconds)], dict(os.environ), 60)
        ours = json.loads(ours)
        theirs = run_peer("tokenize_hf.py", [vocabulary, pieces, seconds], setting, 1)
        taken["lockstep"] += ours["seconds"]
        for name in ("encode", "encode_batch_fast"):
            taken[name] += theirs[name]
        if (ours["bytes"], ours["tokens"]) != (theirs["bytes"], theirs["tokens"]):
            raise BenchError(f"the tokenizers disagree: {ours['tokens']} and {theirs['tokens']} tokens")
    return {"bytes": ours["bytes"], "tokens": ours["tokens"], "documents": len(texts), "seconds": taken}


def rows(found):
    rate = {name: found["bytes"] / median(seconds) / MEGABYTE for name, seconds in found["seconds"].items()}
    best = max(("encode", "encode_batch_fast"), key=rate.get)
    return [
        {
            "megabytes": found["bytes"] / MEGABYTE,
            "documents": found["documents"],
            "tokens": found["tokens"],
            "lockstep_mb_per_s": rate["lockstep"],
            "peer": f"tokenizers {best}",
            "peer_mb_per_s": rate[best],
            "times_as_fast": rate["lockstep"] / rate[best],
        }
    ]
