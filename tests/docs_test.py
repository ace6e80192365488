"""The documentation against what it speaks of.

    docs_test.py SOURCE_DIR BUILD_DIR

- relative links of every page lead to a file, and to a heading where they name one
- paths in backticks that begin at the top of the repository exist
- quoted output, or the paragraphs of it that a quote names, and pictures (scripts/quote_output.py) are what the program prints and draws today
- ```sh blocks behind a line `<!-- run -->` run, those of a page after each other in one empty folder
- README.md's `<!-- demo -->` has the lines that the demo's commands print today, with the numbers that do not change from run to run
- README.md names every room, the pages every verb of `lockstep --help`
"""
import os
import re
import shlex
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))
import quote_output  # noqa: E402

SOURCE_DIR, BUILD_DIR = Path(), Path()
NOT_OURS = {"build", "runs", "data"}  # at the top, besides hidden folders
PLAN_SECONDS, EVIDENCE_SECONDS = 60, 180  # a search on each of several clusters; all published runs, replayed

FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]\n]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
CODE = re.compile(r"`([^`\n]+)`")
# What looks like a file of the repository: a top folder, then a path without placeholders.
REPOSITORY_PATH = re.compile(r"(?:apps|lockstep|docs|examples|scripts|tests|cmake)/[\w./-]*")
RUN = re.compile(r"<!-- run -->\n```(?:sh|console)\n(.*?)```\n", re.DOTALL)
QUOTE = re.compile(r"<!-- lockstep ([^\n]*) -->\n```text\n(.*?)```\n", re.DOTALL)
DEMO = re.compile(r"<!-- demo -->\n```text\n(.*?)```\n", re.DOTALL)
PICTURE = re.compile(r"<!-- lockstep ([^\n]*--svg) -->\n!\[[^\]\n]*\]\(([^)\s]+\.svg)\)")


def pages():
    """Every page, as path below SOURCE_DIR."""
    for top in sorted(SOURCE_DIR.iterdir()):
        if top.name in NOT_OURS or top.name.startswith("."):
            continue
        for path in sorted(top.rglob("*.md")) if top.is_dir() else [top] if top.suffix == ".md" else []:
            yield path.relative_to(SOURCE_DIR)


def front_pages():
    return [page for page in pages() if page.parts[0] == "docs" or page.as_posix() in ("README.md", "ARCHITECTURE.md")]


def text_of(page):
    return (SOURCE_DIR / page).read_text()


def anchor(heading):
    """GitHub's name of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower()).replace(" ", "-")


def broken_links(page, text):
    for target in LINK.findall(FENCE.sub("", text)):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, fragment = target.partition("#")
        path = (SOURCE_DIR / page).parent / name if name else SOURCE_DIR / page
        if not path.exists():
            yield f"{page}: {target}: no such file"
        elif fragment and fragment not in map(anchor, HEADING.findall(FENCE.sub("", path.read_text()))):
            yield f"{page}: {target}: no such heading"


def broken_paths(page, text):
    for code in CODE.findall(FENCE.sub("", text)):
        if REPOSITORY_PATH.fullmatch(code) and not (SOURCE_DIR / code).exists():
            yield f"{page}: `{code}`: no such file"


# Of the demo: what follows from its configuration alone.
FIXED = re.compile(r"  (?:model|layout|ranks|batch|memory|parameters|gradients|optimizer|activations|buffers|peak)  (?!.*AdamW)| {13}\w")


def form(line):
    """The line without its numbers and how wide its columns are."""
    line = re.sub(r"\d+(?:[.:]\d+)*(?:e[-+]?\d+)?(?:[kMG]\b|m\d+s)?", "#", line)
    line = re.sub(r"# (?:[KMG]iB|m?s|h)\b", "#", line)
    return [re.sub(r"^-#?$", "#", word) for word in line.split()]


def not_printed(quoted, printed):
    """The first quoted line of whose form no line is printed behind that of the one before; None where there is none."""
    forms = iter([form(line) for line in printed])
    return next((line for line in quoted if line.strip() not in ("", "...") and form(line) not in forms), None)


def lockstep(*arguments, timeout=20):
    return subprocess.run([BUILD_DIR / "lockstep", *arguments], cwd=SOURCE_DIR, capture_output=True, text=True, timeout=timeout)


class Docs(unittest.TestCase):
    def test_links(self):
        self.assertEqual([wrong for page in pages() for wrong in broken_links(page, text_of(page))], [])

    def test_paths(self):
        self.assertEqual([wrong for page in pages() for wrong in broken_paths(page, text_of(page))], [])

    def test_quotes(self):
        quotes = [(page, *quote) for page in pages() for quote in QUOTE.findall(text_of(page))]
        self.assertGreater(len(quotes), 2)
        for page, arguments, quoted in quotes:
            with self.subTest(f"{page}: lockstep {arguments}"):
                words, beginnings = quote_output.arguments_of(arguments)
                result = lockstep(*words, timeout=EVIDENCE_SECONDS if "--evidence" in words else PLAN_SECONDS if words[0] == "plan" else 20)
                does_not_fit = 4 if "\ndoes not fit: " in result.stdout else 0
                self.assertEqual(result.returncode, does_not_fit, result.stderr)
                self.assertEqual(quoted, quote_output.shown(result.stdout, beginnings), "renew it with scripts/quote_output.py")

    def test_a_quote_of_paragraphs(self):
        output = "model a\n\nfit\n1\n\nstep\n2\n\nlinks\n3\n\naxes\n4\n"
        for beginnings, quoted in (([], output), (["model", "fit"], "model a\n\nfit\n1\n\n...\n"), (["step"], "...\n\nstep\n2\n\n...\n"),
                                   (["fit", "axes"], "...\n\nfit\n1\n\n...\n\naxes\n4\n")):
            self.assertEqual(quote_output.shown(output, beginnings), quoted)
        self.assertEqual(quote_output.arguments_of('plan --cluster "8xh100, 2:1" | step | axes'), (["plan", "--cluster", "8xh100, 2:1"], ["step", "axes"]))
        with self.assertRaises(ValueError):
            quote_output.shown(output, ["fit", "links of"])

    def test_pictures(self):
        pictures = [(page, *picture) for page in pages() for picture in PICTURE.findall(text_of(page))]
        self.assertGreater(len(pictures), 2)
        with tempfile.TemporaryDirectory() as folder:
            for page, arguments, file in pictures:
                with self.subTest(f"{page}: {file}"):
                    drawn = Path(folder) / "drawn.svg"
                    result = lockstep(*shlex.split(arguments), drawn)
                    self.assertEqual(result.returncode, 0, result.stderr)
                    same = drawn.read_text() == (SOURCE_DIR / page.parent / file).read_text()
                    self.assertTrue(same, "renew it with scripts/quote_output.py")

    def test_commands(self):
        blocks = {page: RUN.findall(text_of(page)) for page in front_pages()}
        self.assertGreater(sum(map(len, blocks.values())), 1)
        for page, scripts in blocks.items():
            if scripts:
                with self.subTest(str(page)), tempfile.TemporaryDirectory() as folder:
                    self.run_blocks(Path(folder), scripts)

    def run_blocks(self, folder, scripts):
        # The commands are written for the root of the repository; what they leave behind stays in `folder`.
        for name in ("tests", "examples", "scripts"):
            (folder / name).symlink_to(SOURCE_DIR / name)
        (folder / "build").mkdir()
        (folder / "build/release").symlink_to(BUILD_DIR)
        environment = {**os.environ, "PATH": f"{BUILD_DIR}:{os.environ['PATH']}"}
        result = subprocess.run(["bash", "-euo", "pipefail", "-c", "\n".join(scripts)], cwd=folder, env=environment,
                                capture_output=True, text=True, timeout=300)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def test_demo(self):
        """A few steps of what `make demo` does, on a short text."""
        block, = DEMO.findall(text_of("README.md"))
        script = text_of("scripts/demo.sh")
        shown, written = block.split("== what the model writes\n")
        with tempfile.TemporaryDirectory() as folder:
            printed = self.short_demo(Path(folder))
        said = iter(re.findall(r'^ *say "(.*)"$', script, re.MULTILINE))
        for title in re.findall(r"^== (.*)$", block, re.MULTILINE):
            self.assertIn(title, said)
        self.assertEqual(not_printed([line for line in shown.splitlines() if not line.startswith("==")], printed), None,
                         "renew it with scripts/quote_demo.py")
        fixed = [line for line in shown.splitlines() if FIXED.match(line)]
        self.assertEqual([line for line in fixed if line not in printed], [], "renew it with scripts/quote_demo.py")
        self.assertEqual(len(fixed), 12)
        last = re.search(r"^The run is in .*\n.*$", written, re.MULTILINE)[0]
        self.assertIn(last.rpartition(" ")[0], script)

    def short_demo(self, folder):
        short = ["--model.vocab_size=4096", "--train.steps=4", "--train.log_every=1", "--train.eval_every=1", "--train.eval_samples=2",
                 "--optimizer.warmup_steps=1"]
        lines, data = [], Path("data/demo")
        (folder / data).mkdir(parents=True)
        text = SOURCE_DIR / "tests/fixtures/austen-64k.txt"
        for words in (["data", "tokenizer", text, "--vocab-size", "512", "--out", data / "tokenizer.json"],
                      *(["data", "prepare", text, "--tokenizer", data / "tokenizer.json", "--out", data / part]
                        for part in ("train", "validation")),
                      ["train", SOURCE_DIR / "examples/demo.toml", "-n", "2", *short]):
            result = subprocess.run([BUILD_DIR / "lockstep", *words], cwd=folder, text=True, timeout=120, stdout=subprocess.PIPE,
                                    stderr=subprocess.STDOUT)
            self.assertEqual(result.returncode, 0, result.stdout)
            lines += result.stdout.splitlines()
        return lines

    def test_a_demo_of_another_form_is_found(self):
        printed = ["  layout     dp 2 (ring), 1 microbatch", "  1/600    8.3759      -   262    2m37s", "total   1.5 MiB"]
        for quoted, wrong in ((["   33/4   1.5   -0.3  0.1  36.6 s"], None), (["..."], None), (["total  2 GiB"], None),
                              (["total  2 GiB", "  1/6 8.3 - 1 2 s"], "  1/6 8.3 - 1 2 s"), (["  1/600  8.3759  262  2m37s"], "  1/600  8.3759  262  2m37s"),
                              (["layout dp 2 (tree), 1 microbatch"], "layout dp 2 (tree), 1 microbatch")):
            self.assertEqual(not_printed(quoted, printed), wrong)

    def test_verbs(self):
        verbs = re.findall(r"^  ([a-z]+)  ", lockstep("--help").stdout, re.MULTILINE)
        self.assertIn("train", verbs)
        docs = "\n".join(map(text_of, front_pages()))
        self.assertEqual([verb for verb in verbs if not re.search(rf"lockstep {verb}\b", docs)], [])

    def test_rooms(self):
        rooms = [line.split()[1] for line in (SOURCE_DIR / "cmake/rooms.txt").read_text().splitlines()
                 if line and not line.startswith("#")]
        readme, rooms_page = text_of("README.md"), text_of("lockstep/README.md")
        self.assertEqual([room for room in rooms if f"lockstep/{room}/" not in readme], [])
        self.assertEqual([room for room in rooms if f"]({room}/README.md)" not in rooms_page], [])

    def test_finds_what_is_broken(self):
        text = "[a](nowhere.md) [b](README.md) [c](#no-such) [d](https://x.org) `lockstep/no.cpp` `lockstep/base/` `a/b.cpp`\n"
        self.assertEqual([*broken_links(Path("README.md"), text), *broken_paths(Path("README.md"), text)],
                         ["README.md: nowhere.md: no such file", "README.md: #no-such: no such heading",
                          "README.md: `lockstep/no.cpp`: no such file"])


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    SOURCE_DIR, BUILD_DIR = (Path(sys.argv.pop(1)).resolve() for _ in range(2))
    unittest.main()
