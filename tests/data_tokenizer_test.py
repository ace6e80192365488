"""The tokenizer and its trainer against Hugging Face `tokenizers`.

data_tokenizer_test.py PATH_OF_LOCKSTEP PATH_OF_TOKENIZER_DUMP [MORE_TEXT...]

The trained vocabulary and merges; ids with and without special tokens, decoded and streamed text, for files in the
style of GPT-2, Llama 3, Qwen, Llama 2 and others, which the library itself writes, on text that is hard on tokenizers;
and which characters each class of a regular expression holds. MORE_TEXT are files to train on and compare whole.
"""
import json
import random
import subprocess
import sys
import tempfile
import unicodedata
from pathlib import Path

import numpy as np
from tokenizers import Regex, Tokenizer, normalizers

sys.path.insert(0, str(Path(__file__).parent / "support"))
from tokenizer_styles import (END, HARD, byte_level, byte_level_model, byte_level_styles, mixed_text, random_text,
                              sentencepiece_styles)

LOCKSTEP, DUMP = sys.argv[1:3]
EXCERPT = Path(__file__).parent / "fixtures" / "austen-64k.txt"


def lockstep(*arguments):
    done = subprocess.run([LOCKSTEP, "data", *map(str, arguments)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"lockstep data {arguments}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


def dump(folder, jobs):
    (folder / "jobs.json").write_text(json.dumps(jobs))
    done = subprocess.run([DUMP, folder / "jobs.json"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def random_ids(seed, size):
    draw = random.Random(seed)
    return [[draw.randrange(size) for _ in range(draw.randrange(60))] for _ in range(30)]


def compare(folder, files, texts_of, what):
    """Ids and texts of each tokenizer.json in `files` (name -> path), with and without special tokens."""
    jobs, expected = [], []
    for name, path in files.items():
        reference = Tokenizer.from_file(str(path))
        known = set(reference.get_vocab().values())
        texts = texts_of(name)
        for special in (False, True):
            ids = [reference.encode(text, add_special_tokens=special).ids for text in texts]
            lists = ids[:300] + [[i for i in row if i in known] for row in random_ids(len(name), max(known) + 1)]
            jobs.append(dict(tokenizer=str(path), texts=texts, ids=lists, special=special))
            expected.append((name, ids, [reference.decode(row, skip_special_tokens=special) for row in lists]))
    for job, (name, ids, decoded), found in zip(jobs, expected, dump(folder, jobs)):
        assert "error" not in found, f"{what}, {name}: {found}"
        for text, mine, theirs in zip(job["texts"], found["ids"], ids, strict=True):
            assert mine == theirs, f"{what}, {name}: {text[:200]!r}: {mine[:40]} but tokenizers gives {theirs[:40]}"
        for row, mine, part, theirs in zip(job["ids"], found["texts"], found["streamed"], decoded, strict=True):
            assert mine == theirs, f"{what}, {name}: {row[:40]}: {mine[:200]!r} but tokenizers gives {theirs[:200]!r}"
            assert part == mine, f"{what}, {name}: {row[:40]}: streamed {part[:200]!r}, decoded {mine[:200]!r}"
    print(f"{what}: {len(files)} tokenizers, {sum(len(job['texts']) for job in jobs)} texts: the same ids and texts")


def test_trainer(folder):
    text = EXCERPT.read_bytes().decode()
    for name, corpus, vocab_size in [("excerpt", text, 2048), ("hard", "".join(HARD) + random_text(3, 20000), 1500)]:
        (folder / "corpus.txt").write_bytes(corpus.encode())
        out = folder / f"{name}.json"
        lockstep("tokenizer", folder / "corpus.txt", "--vocab-size", vocab_size, "--out", out)
        made = json.loads(out.read_text())["model"]
        expected = json.loads(byte_level_model(corpus, vocab_size).to_str())["model"]
        assert made["vocab"] == expected["vocab"], f"{name}: vocabularies differ"
        assert made["merges"] == expected["merges"], f"{name}: merges differ"
        loaded = Tokenizer.from_file(str(out))
        assert loaded.get_vocab_size() == vocab_size and loaded.token_to_id(END) == 0
        assert loaded.decode(loaded.encode(corpus).ids, skip_special_tokens=False) == corpus
        print(f"trainer, {name}: the same {vocab_size} tokens and {len(made['merges'])} merges")


def same_tables(text):
    """False where a character is newer than Unicode 14, Python's and PCRE2's, or the library's normal forms are older."""
    assigned = all(unicodedata.category(c) != "Cn" for c in text)
    return assigned and all(reference.normalize_str(text) == unicodedata.normalize(form, text) for form, reference in
                            (("NFC", normalizers.NFC()), ("NFKC", normalizers.NFKC()), ("NFD", normalizers.NFD())))


def assigned(text):
    """`text` without the characters that `same_tables` refuses."""
    return text if same_tables(text) else "".join(c for c in text if same_tables(c))


def test_styles(folder, texts):
    text = EXCERPT.read_bytes().decode()
    model = json.loads(byte_level_model(text + "".join(HARD), 1500).to_str())["model"]
    made = {name: byte_level(model, style) for name, style in byte_level_styles().items()}
    files = {}
    for name, tokenizer in made.items():
        files[name] = folder / f"{name.replace(' ', '-')}.json"
        tokenizer.save(str(files[name]))
    # The three kinds that models are published in see every text, the others a part.
    main = ("gpt2", "llama3", "qwen2")
    compare(folder, files, lambda name: texts if name in main else texts[:60] + texts[60::11], "byte level")

    strings = {}
    for name in main:   # merges as they were written before tokenizers 0.20
        old = json.loads(files[name].read_text())
        old["model"]["merges"] = [" ".join(pair) for pair in old["model"]["merges"]]
        strings[name] = folder / f"{name}-strings.json"
        strings[name].write_text(json.dumps(old))
    compare(folder, strings, lambda name: texts[:100], "merges as strings")

    files = {}
    for name, tokenizer in sentencepiece_styles(text + "".join(HARD)).items():
        files[name] = folder / f"{name.replace(' ', '-')}.json"
        tokenizer.save(str(files[name]))
    compare(folder, files, lambda name: texts[:60] + texts[60::8], "code points")


PATTERNS = [
    r"\w", r"\W", r"\d", r"\s", r"\S", r"[^\S\n]", r"\h", r".", r"\p{L}", r"\p{N}", r"\p{M}", r"\p{P}", r"\p{S}", r"\p{Lu}",
    r"\p{Ll}", r"\p{Lt}", r"\p{Lm}", r"\p{Lo}", r"\p{^L}", r"\P{N}", r"\p{Han}", r"\p{Alphabetic}", "[[:alpha:]]",
    "[[:punct:]]", "[[:space:][:digit:]]", r"[\p{L}\p{M}\w]", r"(?i:[k-s\u00e9])", r"\b\w", r"\B\w", r"\w$", r"^.",
]


def test_classes(folder):
    """For each code point of Unicode 14: whether a class holds it. Each code point is a text that a Split cuts or not."""
    points = [chr(c) for c in range(0x110000) if unicodedata.category(chr(c)) not in ("Cn", "Cs")]
    text = "".join(points)
    base = json.loads((folder / "excerpt.json").read_text())
    base["added_tokens"] = []
    jobs, expected = [], []
    for i, pattern in enumerate(PATTERNS):
        base["normalizer"] = {"type": "Replace", "pattern": {"Regex": pattern}, "content": ""}
        base["post_processor"] = None
        path = folder / f"class-{i}.json"
        path.write_text(json.dumps(base))
        left = normalizers.Replace(Regex(pattern), "").normalize_str(text)
        jobs.append(dict(tokenizer=str(path), texts=[text], ids=[], special=False))
        expected.append((pattern, left))
    reference = Tokenizer.from_file(str(folder / "excerpt.json"))
    for (pattern, left), found in zip(expected, dump(folder, jobs)):
        assert "error" not in found, f"{pattern}: {found}"
        mine = reference.decode(found["ids"][0], skip_special_tokens=False)
        if mine != left:
            wrong = sorted(set(mine) ^ set(left))
            # Marks that became alphabetic in Unicode 15 and 16.
            if pattern in (r"\p{Alphabetic}", "[[:alpha:]]") and all(unicodedata.category(c)[0] == "M" for c in wrong):
                continue
            raise AssertionError(f"{pattern}: {len(wrong)} characters differ: {[hex(ord(c)) for c in wrong[:20]]}")
    print(f"{len(jobs)} regular expressions hold the same of {len(points)} code points")


def test_malformed_utf8(folder):
    """A text file with bytes that are no UTF-8 reads as Python's errors="replace" does."""
    draw = random.Random(5)
    alphabet = b"ab \xff\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\xed\xa0\x80\xc0\xf4\x90"
    raw = bytes(draw.choice(alphabet) for _ in range(20000))
    (folder / "raw.txt").write_bytes(raw)
    lockstep("prepare", folder / "raw.txt", "--tokenizer", folder / "excerpt.json", "--out", folder / "raw",
             "--no-append-eod")
    ids = np.fromfile(folder / "raw.bin", np.uint16).tolist()
    expected = Tokenizer.from_file(str(folder / "excerpt.json")).encode(raw.decode("utf-8", errors="replace")).ids
    assert ids == expected
    print("malformed UTF-8: the same ids as errors='replace'")


def test_more_text(folder, files):
    out = folder / "more.json"
    lockstep("tokenizer", *files, "--vocab-size", 4096, "--out", out)
    compare(folder, {"more": out}, lambda name: [Path(file).read_bytes().decode() for file in files], "more text")


def main():
    text = EXCERPT.read_bytes().decode()
    texts = [*HARD, text, *[part for part in text.split("\n\n")[:200] if part],
             *[assigned(random_text(i, 200)) for i in range(250)], *[mixed_text(i, 30) for i in range(1200)]]
    assert sum(map(same_tables, texts)) > 0.95 * len(texts)
    texts = [part for part in texts if same_tables(part)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        test_trainer(folder)
        compare(folder, {"excerpt": folder / "excerpt.json", "hard": folder / "hard.json"}, lambda name: texts, "own files")
        test_classes(folder)
        test_styles(folder, texts)
        test_malformed_utf8(folder)
        if sys.argv[3:]:
            test_more_text(folder, sys.argv[3:])


if __name__ == "__main__":
    main()
