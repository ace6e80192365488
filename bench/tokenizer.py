"""The tokenizer beside Hugging Face's, one thread each, on the same texts with the same vocabulary, in three styles."""

import json
import os
from pathlib import Path
from statistics import median

from programs import BenchError, run, run_peer, spread

ROOT = Path(__file__).parent.parent
MEGABYTE = 1e6
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace("{1,3}", "")
DIRECTIONS = {"encode": ("encode", "encode_batch_fast"), "decode": ("decode", "decode_batch")}


def documents():
    """Text that is in the repository: a novel's beginning in 4 kB pieces, then prose and code, a document a file."""
    novel = (ROOT / "tests/fixtures/austen-64k.txt").read_text()
    texts = [novel[begin : begin + 4096] for begin in range(0, len(novel), 4096)]
    paths = [path for folder in ("docs", "lockstep", "apps", "bench", "tests") for path in sorted((ROOT / folder).rglob("*"))]
    return texts + [path.read_text() for path in paths if path.suffix in (".md", ".cpp", ".h", ".py")]


def split_by(pattern):
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return {"type": "Sequence", "pretokenizers": [split, byte_level]}


def styles(trained):
    """The trained tokenizer.json as GPT-2, Llama 3 and Qwen 2 write theirs."""
    model = trained["model"]
    return {
        "gpt2": trained,
        "llama3": {**trained, "pre_tokenizer": split_by(LLAMA3), "model": {**model, "ignore_merges": True}},
        "qwen2": {**trained, "pre_tokenizer": split_by(QWEN2), "normalizer": {"type": "NFC"}},
    }


def measure(setting, rounds):
    """Seconds of a pass over all documents, by style, direction and program: the passes of each round."""
    texts = documents()
    pieces, plain = setting.scratch / "documents.json", setting.scratch / "documents.txt"
    pieces.write_text(json.dumps(texts))
    plain.write_text("\n".join(texts))
    vocabulary = setting.scratch / "tokenizer.json"
    train = ["data", "tokenizer", str(plain), "--out", str(vocabulary), "--vocab-size", "8192"]
    run([setting.program("lockstep"), *train], dict(os.environ), setting.deadline)

    seconds = 1 if setting.quick else 2
    found = {}
    for style, file in styles(json.loads(vocabulary.read_text())).items():
        path = setting.scratch / f"tokenizer-{style}.json"
        path.write_text(json.dumps(file))
        taken = {}
        for number in range(rounds):
            print(f"round {number + 1}  tokenizer {style}", flush=True)
            ours = run([setting.program("bench_tokenize"), str(path), str(pieces), str(seconds)], dict(os.environ), 60)
            ours = json.loads(ours)
            theirs = run_peer("tokenize_hf.py", [path, pieces, seconds], setting, 1)
            if (ours["bytes"], ours["tokens"]) != (theirs["bytes"], theirs["tokens"]):
                raise BenchError(f"the tokenizers disagree: {ours['tokens']} and {theirs['tokens']} tokens")
            for direction, names in DIRECTIONS.items():
                taken.setdefault(direction, {}).setdefault("lockstep", []).append(ours[direction])
                for name in names:
                    taken[direction].setdefault(name, []).append(theirs[name])
        found[style] = {"bytes": ours["bytes"], "tokens": ours["tokens"], "documents": len(texts), "seconds": taken}
    return found


def rows(found):
    made = []
    for style, one in found.items():
        for direction, seconds in one["seconds"].items():
            rate = {name: one["bytes"] / median(sum(taken, [])) / MEGABYTE for name, taken in seconds.items()}
            best = max(DIRECTIONS[direction], key=rate.get)
            ratios = [median(theirs) / median(ours) for ours, theirs in zip(seconds["lockstep"], seconds[best])]
            made.append(
                {
                    "style": style,
                    "direction": direction,
                    "megabytes": one["bytes"] / MEGABYTE,
                    "documents": one["documents"],
                    "tokens": one["tokens"],
                    "lockstep_mb_per_s": rate["lockstep"],
                    "peer": f"{style}: tokenizers {best}",
                    "peer_mb_per_s": rate[best],
                    "times_as_fast": spread(ratios),
                }
            )
    return made
