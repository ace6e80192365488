"""The tokenizer and its trainer against Hugging Face `tokenizers`.

data_tokenizer_test.py PATH_OF_LOCKSTEP [MORE_TEXT...]

On the excerpt and on text that is hard for tokenizers: the trained vocabulary and merges, the ids, the decoded text;
and for files in the style of GPT-2, Llama 3 and Qwen, which the library itself writes, the ids. MORE_TEXT are files to
train on and compare whole, such as those of `lockstep data demo`.
"""
import json
import random
import struct
import subprocess
import sys
import tempfile
import unicodedata
from pathlib import Path

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

LOCKSTEP = sys.argv[1]
EXCERPT = Path(__file__).parent / "fixtures" / "austen-64k.txt"
END = "<|endoftext|>"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")

HARD = [
    " ", "   \n\n  \t x  ", "I'll don't we've O'BRIEN'S 'TIS 'tis",
    "na\u00efve caf\u00e9 cafe\u0301 \u1e69 s\u0323\u0307",
    "\u65e5\u672c\u8a9e\u306e\u6587\u7ae0\u3002\ud55c\uad6d\uc5b4",
    "\U0001F600\U0001F468\u200d\U0001F469\u200d\U0001F467 \U0001F1E9\U0001F1EA \u2764\ufe0f",
    "\u0645\u0631\u062d\u0628\u0627 \u05e9\u05dc\u05d5\u05dd \u0928\u092e\u0938\u094d\u0924\u0947",
    "a\u00a0b\u2003c\u3000d\u200be\u180ef\u0085g\u2028h", "1234567890 \u0661\u0662\u0663 \u00bd \u2167 x\u00b2",
    "nul\0byte \x01\x7f", f"{END} a{END}b <|endoftext {END}{END}", "tabs\tand\r\nlines\r\n\r\n  indented\n",
    "!!!??? ... --- ___ \u2014 \u2026 \u201cquoted\u201d", "a" * 5000, " " * 3000, "\n" * 2000 + "x", "ab" * 2000,
]


def random_text(seed, length):
    """Code points of many blocks, assigned ones or not, without surrogates."""
    draw = random.Random(seed)
    blocks = [(0x20, 0x7E)] * 4 + [(0x0, 0x1F), (0xA0, 0x24F), (0x300, 0x36F), (0x370, 0x52F), (0x5D0, 0x6FF),
                                   (0x900, 0xDFF), (0x2000, 0x206F), (0x2190, 0x2BFF), (0x3040, 0x30FF),
                                   (0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0x1F300, 0x1F64F)]
    return "".join(chr(draw.randint(*draw.choice(blocks))) for _ in range(length))


def lockstep(*arguments):
    done = subprocess.run([LOCKSTEP, "data", *map(str, arguments)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"lockstep data {arguments}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


def lockstep_ids(folder, tokenizer_file, texts):
    """The ids lockstep gives each text: one JSONL line each, read back from the .bin/.idx."""
    (folder / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    lockstep("prepare", folder / "texts.jsonl", "--tokenizer", tokenizer_file, "--out", folder / "texts",
             "--no-append-eod")
    header = (folder / "texts.idx").read_bytes()
    assert header[:9] == b"MMIDIDX\0\0" and struct.unpack_from("<QB", header, 9)[0] == 1
    kind = {8: np.uint16, 4: np.int32}[header[17]]
    count, = struct.unpack_from("<Q", header, 18)
    lengths = np.frombuffer(header, np.int32, count, 34)
    tokens = np.fromfile(folder / "texts.bin", kind)
    assert count == len(texts) and lengths.sum() == len(tokens)
    return [part.tolist() for part in np.split(tokens, np.cumsum(lengths)[:-1])]


def compare(folder, tokenizer_file, texts, what):
    reference = Tokenizer.from_file(str(tokenizer_file))
    for text, ids in zip(texts, lockstep_ids(folder, tokenizer_file, texts)):
        expected = reference.encode(text, add_special_tokens=False).ids
        assert ids == expected, f"{what}: {text[:80]!r}: {ids[:20]} but tokenizers gives {expected[:20]}"
    print(f"{what}: {len(texts)} texts, the same ids")


def reference_trained(text, vocab_size):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, special_tokens=[END], show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator([text], trainer)
    return json.loads(tokenizer.to_str())["model"]


def test_trainer(folder):
    text = EXCERPT.read_bytes().decode()
    for name, corpus, vocab_size in [("excerpt", text, 2048), ("hard", "".join(HARD) + random_text(3, 20000), 1500)]:
        (folder / "corpus.txt").write_bytes(corpus.encode())
        out = folder / f"{name}.json"
        lockstep("tokenizer", folder / "corpus.txt", "--vocab-size", vocab_size, "--out", out)
        made, expected = json.loads(out.read_text())["model"], reference_trained(corpus, vocab_size)
        assert made["vocab"] == expected["vocab"], f"{name}: vocabularies differ"
        assert made["merges"] == expected["merges"], f"{name}: merges differ"
        loaded = Tokenizer.from_file(str(out))
        assert loaded.get_vocab_size() == vocab_size and loaded.token_to_id(END) == 0
        assert loaded.decode(loaded.encode(corpus).ids, skip_special_tokens=False) == corpus
        print(f"trainer, {name}: the same {vocab_size} tokens and {len(made['merges'])} merges")


def test_more_text(folder, files):
    out = folder / "more.json"
    lockstep("tokenizer", *files, "--vocab-size", 4096, "--out", out)
    compare(folder, out, [Path(file).read_bytes().decode() for file in files], "more text")


def nfc_agrees(text):
    """False for characters newer than the tables of `tokenizers`, such as U+0C3C of Unicode 14."""
    return normalizers.NFC().normalize_str(text) == unicodedata.normalize("NFC", text)


def test_styles(folder, texts):
    """Files of the library's own making, in the styles of published models."""
    model = reference_trained(EXCERPT.read_bytes().decode() + "".join(HARD), 1500)
    split = lambda pattern: pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    styles = {
        "gpt2": dict(pre=pre_tokenizers.ByteLevel(add_prefix_space=False)),
        "prefix space": dict(pre=pre_tokenizers.ByteLevel(add_prefix_space=True)),
        "llama3": dict(pre=split(LLAMA3), ignore_merges=True),
        "qwen2": dict(pre=split(QWEN2), normalizer=normalizers.NFC()),
        "digits removed": dict(pre=pre_tokenizers.Sequence([
            pre_tokenizers.Split(Regex(r"\d"), "removed"), pre_tokenizers.ByteLevel(add_prefix_space=False)])),
        "merged with next": dict(pre=pre_tokenizers.Sequence([
            pre_tokenizers.Split("a", "merged_with_next"), pre_tokenizers.ByteLevel(add_prefix_space=False)])),
        "merged with previous": dict(pre=pre_tokenizers.Sequence([
            pre_tokenizers.Split(" ", "merged_with_previous"), pre_tokenizers.ByteLevel(add_prefix_space=False)])),
    }
    for name, style in styles.items():
        merges = [tuple(pair) for pair in model["merges"]]
        tokenizer = Tokenizer(models.BPE(model["vocab"], merges, ignore_merges=style.get("ignore_merges", False)))
        tokenizer.pre_tokenizer = style["pre"]
        tokenizer.decoder = decoders.ByteLevel()
        if "normalizer" in style:
            tokenizer.normalizer = style["normalizer"]
        tokenizer.add_special_tokens([END])
        tokenizer.add_tokens([AddedToken("Bennet", normalized=True), AddedToken("caf\u00e9", normalized=True)])
        file = folder / f"{name.replace(' ', '-')}.json"
        tokenizer.save(str(file))
        kept = texts if "normalizer" not in style else [text for text in texts if nfc_agrees(text)]
        assert len(kept) > 0.95 * len(texts)
        compare(folder, file, kept, name)
        old = json.loads(file.read_text())
        if not any(" " in side for pair in old["model"]["merges"] for side in pair):
            old["model"]["merges"] = [" ".join(pair) for pair in old["model"]["merges"]]
            file.write_text(json.dumps(old))
            compare(folder, file, texts[:4], f"{name}, merges as strings")


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


def main():
    text = EXCERPT.read_bytes().decode()
    texts = [text, *HARD,
             *[part for part in text.split("\n\n")[:200] if part],
             *[random_text(i, 400) for i in range(100)]]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        test_trainer(folder)
        compare(folder, folder / "excerpt.json", texts, "trained on the excerpt")
        compare(folder, folder / "hard.json", texts, "trained on hard text")
        test_styles(folder, texts)
        test_malformed_utf8(folder)
        if sys.argv[2:]:
            test_more_text(folder, sys.argv[2:])


if __name__ == "__main__":
    main()
