"""The order of the rooms, and the other rules about sources that a machine can read.

    includes_test.py SOURCE_DIR

Prints every broken rule as file:line: what. Then breaks each rule once in a small tree of its own, to see that it is found.
"""
import re
import sys
import tempfile
import unittest
from pathlib import Path

SOURCE_DIR = Path()

# Programs may look at their surroundings; the library takes options. Only what a terminal is like has to be asked.
MAY_READ_ENVIRONMENT = {"lockstep/train/console.cpp"}
# The layers of nn that are handed who shares them: what stands there is the contract, and the code of one rank.
MAY_NAME_RANKS = {"lockstep/nn/expert_exchange.h", "lockstep/nn/experts.h", "lockstep/nn/experts.cpp", "lockstep/nn/routing.h",
                  "lockstep/nn/context_attention.h", "lockstep/nn/token_places.h", "lockstep/nn/token_places.cpp",
                  "lockstep/nn/piece_exchange.h", "lockstep/nn/piece_exchange.cpp", "lockstep/nn/piece_states.h", "lockstep/nn/piece_states.cpp"}
LONG, TOO_LONG, TOO_LONG_TEST = 250, 400, 500  # lines

INCLUDE = re.compile(r'\s*#\s*include\s*[<"]([^>"]+)[>"]')
TORCH = re.compile(r"(torch|ATen|c10|caffe2)/")
LOGGING = re.compile(r"(fmt|spdlog)/")
WHOLE_TORCH = {"torch/torch.h", "torch/all.h", "torch/extension.h", "ATen/ATen.h", "ATen/Functions.h", "ATen/NativeFunctions.h"}
PARALLEL = re.compile(r"(?i)(?<![a-z])(?<!\bq_)(?<!\bkv_)(tp|ranks?|shards?|sharded|tensor.parallel\w*|sequence.parallel\w*)(?![a-z])")  # no words of nn
COMMENTS_AND_STRINGS = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)


def read_rooms(root):
    """{room: (number, side)} from cmake/rooms.txt."""
    rooms = {}
    for line in (root / "cmake/rooms.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            number, room, side = line.split()
            rooms[room] = (int(number), side)
    return rooms


def room_of(path, rooms):
    """The room of "lockstep/parallel/tensor/x.h", None for what lies in no room."""
    folder = path.removeprefix("lockstep/").rpartition("/")[0]
    return folder if path.startswith("lockstep/") and folder in rooms else None


def check_include(path, included, rooms):
    """What is wrong with this file including that one, or None."""
    room = room_of(path, rooms)
    number, side = rooms[room]
    if included.startswith("apps/"):
        return "the library does not see the program"
    if included in WHOLE_TORCH:
        return "takes seconds per file; include the headers of the operators"
    if TORCH.match(included) and side == "core":
        return f"{room} is a core room: no LibTorch"
    if LOGGING.match(included) and side == "runtime":
        return f"{room} is a runtime room: LibTorch brings an fmt of its own"
    if LOGGING.match(included) and path.endswith(".h"):
        return "fmt and spdlog stay in sources"
    if not included.startswith("lockstep/"):
        return None
    other = room_of(included, rooms)
    if other is None:
        return "in no room of cmake/rooms.txt"
    if other != room and rooms[other][0] >= number:
        return f"{room} ({number}) does not see {other} ({rooms[other][0]})"
    return None


def check_file(path, text, rooms):
    """Lines "path:line: what" for a file of the library."""
    problems = []
    if room_of(path, rooms) is None:
        return [f"{path}:1: in no room of cmake/rooms.txt"]
    for number, line in enumerate(text.splitlines(), 1):
        if match := INCLUDE.match(line):
            if wrong := check_include(path, match[1], rooms):
                problems.append(f"{path}:{number}: includes {match[1]}: {wrong}")
        may_name = path in MAY_NAME_RANKS or path.endswith("_test.cpp")
        if room_of(path, rooms) == "nn" and not may_name and (match := PARALLEL.search(line)):
            problems.append(f"{path}:{number}: {match[0]}: layers of nn know nothing of the ranks that share them")
    # Blanked, so that what is found keeps its line.
    code = COMMENTS_AND_STRINGS.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
    for word, wrong in (("getenv", "reads the environment: take an option"), ("exit", "ends the process: throw an Error")):
        if word == "getenv" and path in MAY_READ_ENVIRONMENT:
            continue
        for match in re.finditer(rf"(?<!\w){word}\s*\(", code):
            problems.append(f"{path}:{code.count(chr(10), 0, match.start()) + 1}: {word}() {wrong}")
    limit = TOO_LONG_TEST if path.endswith("_test.cpp") else TOO_LONG
    if (lines := text.count("\n")) > limit:
        problems.append(f"{path}:{lines}: more than {limit} lines: split it by what its parts are about")
    return problems


def check_program_file(path, text):
    """Programs, examples and test programs see every room; of LibTorch only the runtime side of the program does."""
    problems = []
    for number, line in enumerate(text.splitlines(), 1):
        if not (match := INCLUDE.match(line)):
            continue
        if match[1] in WHOLE_TORCH:
            problems.append(f"{path}:{number}: includes {match[1]}: include the headers of the operators")
        elif path.startswith("apps/lockstep/") and "/runtime/" not in path and TORCH.match(match[1]):
            problems.append(f"{path}:{number}: includes {match[1]}: verbs outside runtime/ start without LibTorch")
    return problems


def sources(root, folder):
    for path in sorted((root / folder).rglob("*")):
        if path.suffix in (".h", ".cpp"):
            yield path.relative_to(root).as_posix(), path.read_text()


def check_tree(root):
    """All problems, and the files that are longer than they should be."""
    rooms = read_rooms(root)
    problems, long = [], []
    for path, text in sources(root, "lockstep"):
        problems += check_file(path, text, rooms)
        if (lines := text.count("\n")) > LONG:
            long.append((lines, path))
    for folder in ("apps", "examples", "tests"):
        for path, text in sources(root, folder):
            problems += check_program_file(path, text)
    return problems, sorted(long, reverse=True)


class Tree(unittest.TestCase):
    def test_no_rule_is_broken(self):
        problems, long = check_tree(SOURCE_DIR)
        if long:
            print(f"longer than {LONG} lines:", ", ".join(f"{path} {lines}" for lines, path in long))
        self.assertEqual(problems, [], "\n" + "\n".join(problems))


class EachRuleFindsItsViolation(unittest.TestCase):
    ROOMS = "# number path side\n0 base core\n3 arch core\n3 data core\n6 parallel/tensor runtime\n6 nn runtime\n9 optim runtime\n"

    def problems(self, files):
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            for path, text in {"cmake/rooms.txt": self.ROOMS, **files}.items():
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).write_text(text)
            return check_tree(root)[0]

    def assert_found(self, path, text, what):
        problems = self.problems({path: text})
        self.assertEqual(len(problems), 1, problems)
        self.assertIn(what, problems[0])
        self.assertTrue(problems[0].startswith(path + ":"), problems[0])

    def test_sound(self):
        self.assertEqual(self.problems({
            "lockstep/arch/a.h": '#include "lockstep/base/b.h"\n#include "lockstep/arch/c.h"\n#include <vector>\n',
            "lockstep/arch/a.cpp": '#include <spdlog/spdlog.h>\n// never calls exit()\nauto s = "getenv(x)";\n_exit(1);\n',
            "lockstep/parallel/tensor/t.cpp": '#include <ATen/ops/mm.h>\n#include "lockstep/arch/a.h"\n',
            "lockstep/train/console.cpp": "",
            "cmake/rooms.txt": self.ROOMS + "12 train runtime\n",
            "apps/lockstep/runtime/r.cpp": "#include <ATen/Parallel.h>\n",
        }), [])

    def test_a_higher_room(self):
        self.assert_found("lockstep/base/b.cpp", '#include "lockstep/arch/a.h"\n', "base (0) does not see arch (3)")
        self.assert_found("lockstep/arch/a.h", '\n# include <lockstep/optim/o.h>\n', "a.h:2: includes lockstep/optim/o.h")
        self.assert_found("lockstep/parallel/tensor/t.h", '#include "lockstep/optim/o.h"\n', "does not see optim (9)")

    def test_a_room_beside_it(self):
        self.assert_found("lockstep/arch/a.h", '#include "lockstep/data/d.h"\n', "arch (3) does not see data (3)")

    def test_no_room(self):
        self.assert_found("lockstep/arch/a.h", '#include "lockstep/attic/x.h"\n', "in no room")
        self.assert_found("lockstep/attic/x.h", "", "in no room")

    def test_the_program(self):
        self.assert_found("lockstep/optim/o.cpp", '#include "apps/lockstep/verbs.h"\n', "does not see the program")

    def test_torch(self):
        self.assert_found("lockstep/data/d.cpp", "#include <ATen/core/Tensor.h>\n", "core room")
        self.assert_found("lockstep/optim/o.cpp", "#include <torch/torch.h>\n", "headers of the operators")
        self.assert_found("examples/e.cpp", "#include <ATen/ATen.h>\n", "headers of the operators")
        self.assert_found("apps/lockstep/v.cpp", "#include <c10/core/Device.h>\n", "start without LibTorch")

    def test_fmt(self):
        self.assert_found("lockstep/optim/o.cpp", "#include <fmt/format.h>\n", "fmt of its own")
        self.assert_found("lockstep/base/log.h", "#include <spdlog/spdlog.h>\n", "stay in sources")

    def test_environment_and_exit(self):
        self.assert_found("lockstep/optim/o.cpp", '"a";\nauto x = std::getenv("HOME");\n', "o.cpp:2: getenv()")
        self.assert_found("lockstep/optim/o.cpp", "/* one\ntwo */ std::exit(1);\n", "o.cpp:2: exit()")

    def test_nn_of_one_rank(self):
        self.assert_found("lockstep/nn/n.h", "int a;\nint b;  // of this rank\n", "n.h:2: rank")
        self.assertEqual(self.problems({"lockstep/nn/n.h": "// branch, http\n", "lockstep/parallel/tensor/t.h": "// rank\n"}), [])

    def test_length(self):
        self.assert_found("lockstep/optim/o.cpp", "\n" * (TOO_LONG + 1), f"more than {TOO_LONG} lines")
        self.assertEqual(self.problems({"lockstep/optim/o_test.cpp": "\n" * TOO_LONG_TEST}), [])


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    SOURCE_DIR = Path(sys.argv.pop(1))
    unittest.main()
