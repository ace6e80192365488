"""What the end-to-end tests share: the program under test and a folder with real text made ready for it.

A test is run as `python NAME_test.py BUILD_FOLDER`, where BUILD_FOLDER holds the program `lockstep`.
"""
import json
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

BUILD = None  # main() sets it
FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"
EXCERPT = FIXTURES / "austen-64k.txt"
SECONDS = 120  # no command of these tests takes longer

CONFIG = """\
[run]
name = "t"
[model]
preset = "gpt2-test"
[data]
train = "austen"
tokenizer = "tok.json"
[train]
steps = 6
seq_len = 32
global_batch = 8
micro_batch = 2
log_every = 1
threads = 1
[optimizer]
schedule = "constant"
warmup_steps = 0
lr = 1e-3
"""


class Result:
    """How one command ended."""

    def __init__(self, command, code, out, err):
        self.command, self.code, self.out, self.err = command, code, out, err

    def __str__(self):
        return f"{' '.join(self.command)}\nexit code {self.code}\n--- stdout\n{self.out}\n--- stderr\n{self.err}"

    def json(self):
        return json.loads(self.out)


def children(pid):
    """The living processes that `pid` started."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has just ended
        if int(fields[1]) == pid and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return sorted(found)


def rank_of(pid):
    """The rank that a process was started as; None where it is not yet the program."""
    words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    for number, word in enumerate(words):
        if word.startswith(b"--rank"):
            return int(word.partition(b"=")[2] or words[number + 1])
    return None


def alive(pid):
    """Neither gone nor a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class LockstepTest(unittest.TestCase):
    """Each test class has one folder of its own: run.toml, tok.json, austen.bin/.idx and held.bin/.idx."""

    @classmethod
    def setUpClass(cls):
        cls.folder = Path(tempfile.mkdtemp(prefix="lockstep-e2e-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        (cls.folder / "run.toml").write_text(CONFIG)
        text = EXCERPT.read_text()
        cut = text.index("\n\n", len(text) * 4 // 5)
        cls.prepare_tokenizer("tok.json", 512)
        cls.prepare_text("austen", text[:cut])
        cls.prepare_text("held", text[cut:])

    @classmethod
    def prepare_tokenizer(cls, name, vocab_size):
        cls.do("data", "tokenizer", str(EXCERPT), "--out", name, "--vocab-size", str(vocab_size))

    @classmethod
    def prepare_text(cls, name, text, tokenizer="tok.json"):
        (cls.folder / f"{name}.txt").write_text(text)
        cls.do("data", "prepare", f"{name}.txt", "--tokenizer", tokenizer, "--out", name)

    @classmethod
    def command(cls, *arguments):
        return [str(BUILD / "lockstep"), *map(str, arguments)]

    @classmethod
    def lockstep(cls, *arguments, program=None, env=None):
        command = cls.command(*arguments)
        if program:
            command[0] = str(program)
        done = subprocess.run(command, cwd=cls.folder, capture_output=True, text=True, timeout=SECONDS, env=env)
        return Result(command, done.returncode, done.stdout, done.stderr)

    @classmethod
    def do(cls, *arguments):
        """A command that must succeed."""
        result = cls.lockstep(*arguments)
        if result.code != 0:
            raise AssertionError(result)
        return result

    @classmethod
    def train(cls, name, *arguments, ranks=1):
        """A run named `name`; returns the command's result."""
        return cls.do("train", "run.toml", f"--run.name={name}", "-n", ranks, *arguments)

    @classmethod
    def run_folder(cls, name):
        return cls.folder / "runs" / name

    @classmethod
    def metrics(cls, name):
        """The lines of a run's metrics: (steps, events)."""
        rows = [json.loads(line) for line in (cls.run_folder(name) / "metrics.jsonl").read_text().splitlines()]
        return [row for row in rows if "event" not in row], [row for row in rows if "event" in row]

    @classmethod
    def losses(cls, name):
        """Loss of each step; a step that was trained again counts as it was the last time."""
        return {row["step"]: row["train/loss"] for row in cls.metrics(name)[0]}

    @classmethod
    def step_folder(cls, name, step):
        return cls.run_folder(name) / "checkpoints" / f"step-{step:08d}"

    @classmethod
    def tensors(cls, name, step):
        """Bytes of each safetensors file of a checkpoint, by its place in it."""
        folder = cls.step_folder(name, step)
        files = {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*.safetensors"))}
        assert files, f"no safetensors in {folder}"
        return files

    def assert_close(self, ours, theirs, bound):
        """Two dictionaries of numbers: the same keys, and values that differ by `bound` of the second at most."""
        self.assertEqual(sorted(ours), sorted(theirs))
        for key, value in theirs.items():
            self.assertLessEqual(abs(ours[key] - value), bound * abs(value), f"{key}: {ours[key]} and {value}")


def select(loader, long):
    """Has a loader of unittest take the methods test_long_..., or all others."""
    names = loader.getTestCaseNames
    loader.getTestCaseNames = lambda case: [name for name in names(case) if name.startswith("test_long_") == long]
    return loader


def main():
    global BUILD
    if len(sys.argv) < 2:
        sys.exit("usage: NAME_test.py BUILD_FOLDER [--long] [unittest arguments]")
    BUILD = Path(sys.argv.pop(1)).resolve()
    if not (BUILD / "lockstep").is_file():
        sys.exit(f"{BUILD} holds no program 'lockstep'")
    long = "--long" in sys.argv
    if long:
        sys.argv.remove("--long")
    unittest.main(module="__main__", verbosity=2, testLoader=select(unittest.TestLoader(), long))
