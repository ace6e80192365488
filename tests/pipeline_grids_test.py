"""The grids that torch.distributed.pipelining prints, taken as schedules from files: each is built and proved, and takes as
long as its own order says. pipeline_grids_test.py GRID_CHECK

pipeline_grids_test.py --write makes the grids of fixtures/pipeline_grids anew, which tests that run them read."""
import csv
import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import torch
from torch.distributed.pipelining import schedules

FIXTURES = Path(__file__).parent / "fixtures" / "pipeline_grids"
SINGLE = {"1f1b": schedules.Schedule1F1B, "gpipe": schedules.ScheduleGPipe}
LOOPED = {"interleaved": schedules.ScheduleInterleaved1F1B, "looped-bfs": schedules.ScheduleLoopedBFS,
          "interleaved-zb": schedules.ScheduleInterleavedZeroBubble}
V_SHAPED = {"zbv": schedules.ScheduleZBVZeroBubble, "dualpipe-v": schedules.ScheduleDualPipeV}


class Stage:
    """What a schedule asks of a stage before it runs."""
    submod, has_backward = torch.nn.Identity(), True

    def __init__(self, index, stages, ranks):
        self.stage_index, self.num_stages, self.group_size, self.group_rank = index, stages, ranks, 0
        self.is_first, self.is_last = index == 0, index == stages - 1


def printed(kind, ranks, each, microbatches, transfers=False):
    """By rank the actions that PyTorch prints; None where it has no such schedule."""
    try:
        if kind in SINGLE:
            order = SINGLE[kind](Stage(0, ranks, ranks), microbatches, loss_fn=max).pipeline_order
        else:
            of_kind = (LOOPED | V_SHAPED)[kind]([Stage(i, ranks * each, ranks) for i in range(each)], microbatches, loss_fn=max)
            order = of_kind.pipeline_order_with_comms if transfers else of_kind.pipeline_order
    except ValueError:  # it says that the number of microbatches does not fit
        return None
    return [order[rank] for rank in sorted(order)]


def write(rows, path):
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows(rows)


def corrected(rows):
    """PyTorch's 1F1B names the forwards of the last rank one microbatch too high, and its own check refuses that."""
    last = [action._replace(microbatch_index=action.microbatch_index - 1) if action.computation_type == schedules.F else action
            for action in rows[-1]]
    return rows[:-1] + [last]


def computing(rows):
    """By rank (kind, stage, microbatch)."""
    wanted = {schedules.F: "F", schedules.I: "I", schedules.W: "W", schedules.B: "B"}
    leaves = [[leaf for action in row if action is not None for leaf in action.sub_actions or [action]] for row in rows]
    return [[(wanted[leaf.computation_type], leaf.stage_index, leaf.microbatch_index) for leaf in row
             if leaf.computation_type in wanted] for row in leaves]


def length(rows):
    """When all is done where each action begins as soon as it can: F, I and W take 1, B takes 2, transfers nothing."""
    lists = computing(rows)
    stages = 1 + max(stage for row in lists for _, stage, _ in row)
    ends, clocks, next_of = {}, [0] * len(lists), [0] * len(lists)
    moved = True
    while moved:
        moved = False
        for rank, row in enumerate(lists):
            while next_of[rank] < len(row):
                kind, stage, microbatch = row[next_of[rank]]
                forward = kind == "F"
                source = None if kind == "W" or stage == (0 if forward else stages - 1) else (
                    forward, stage + (-1 if forward else 1), microbatch)
                if source is not None and source not in ends:
                    break
                clocks[rank] = max(clocks[rank], ends.get(source, 0)) + (2 if kind == "B" else 1)
                if kind != "W":
                    ends[forward, stage, microbatch] = clocks[rank]
                next_of[rank] += 1
                moved = True
    assert next_of == [len(row) for row in lists]
    return max(clocks)


def fixtures():
    """Name of the file -> the grid: small ones of every kind, for tests that run them."""
    for kind, ranks, each, microbatches in (
            ("gpipe", 3, 1, 4), ("interleaved", 3, 2, 4), ("looped-bfs", 2, 2, 8), ("looped-bfs", 4, 1, 4),
            ("interleaved-zb", 2, 3, 4), ("interleaved-zb", 4, 2, 8), ("zbv", 3, 2, 4), ("dualpipe-v", 2, 2, 4)):
        yield f"{kind}-pp{ranks}-v{each}-m{microbatches}.csv", printed(kind, ranks, each, microbatches)


class GridTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = Path(folder.name)

    def answers(self, cases):
        """cases: (label, ranks, each, microbatches, rows, more)."""
        requests = []
        for number, (_, ranks, each, microbatches, rows, more) in enumerate(cases):
            write(rows, self.folder / f"{number}.csv")
            requests.append({"file": str(self.folder / f"{number}.csv"), "ranks": ranks, "stages": ranks * each,
                             "microbatches": microbatches} | more)
        done = subprocess.run([GRID_CHECK], input="\n".join(map(json.dumps, requests)), text=True, capture_output=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertEqual(len(lines), len(cases))
        return lines

    def taken(self, kind, each_of, counts, minimum, transfers=False):
        """Every grid of the kind for pp 2 to 8: built, proved, as long as its order says. The answers by case."""
        cases = []
        for ranks in range(2, 9):
            for each in each_of:
                for microbatches in sorted(set(counts(ranks))):
                    rows = printed(kind, ranks, each, microbatches, transfers)
                    if rows is not None:
                        rows = corrected(rows) if kind == "1f1b" else rows
                        cases.append((f"{kind} pp {ranks}, {each} each, {microbatches} microbatches", ranks, each, microbatches, rows,
                                      {"post_validation": "on"} if microbatches == ranks + 1 else {}))
        self.assertGreaterEqual(len(cases), minimum)
        answers = self.answers(cases)
        for (label, _, each, _, rows, _), answer in zip(cases, answers):
            self.assertEqual(answer.get("problems"), [], (label, answer))
            self.assertEqual(answer["virtual_stages"], each, label)
            self.assertAlmostEqual(answer["seconds"], length(rows), places=6, msg=label)
        return dict(zip((case[:4] for case in cases), answers))

    @staticmethod
    def counts(ranks):
        return 1, 2, 3, ranks, ranks + 1, 2 * ranks - 1, 2 * ranks, 3 * ranks

    def test_single(self):
        for kind in SINGLE:
            for answer in self.taken(kind, (1,), self.counts, 30).values():
                self.assertEqual(answer["channel_depth"], 1)

    def test_looped(self):
        for kind in LOOPED:
            self.taken(kind, (1, 2, 3), self.counts, 130)

    def test_v_shaped(self):
        for kind in V_SHAPED:
            self.taken(kind, (2,), self.counts, 14)

    def test_with_transfers(self):
        for kind in LOOPED | V_SHAPED:
            plain = self.taken(kind, (2,), lambda ranks: (2 * ranks,), 7)
            self.assertEqual(self.taken(kind, (2,), lambda ranks: (2 * ranks,), 7, transfers=True), plain)

    def test_a_rank_that_is_far_ahead(self):
        """Rank 1 has output j of its first stage at j + 2. Rank 0 asks for the first when it begins the last of its own, at
        m - 1: m - 3 of them are waiting."""
        answers = self.taken("looped-bfs", (2,), lambda ranks: (8, 16), 14)
        depths = {microbatches: answer["channel_depth"] for (_, ranks, _, microbatches), answer in answers.items() if ranks == 2}
        self.assertEqual(depths, {8: 5, 16: 13})

    def test_what_pytorch_itself_refuses(self):
        for ranks in range(2, 9):
            rows = printed("1f1b", ranks, 1, 2 * ranks)
            by_rank = {rank: [action for action in row if action.computation_type != schedules.REDUCE_GRAD]
                       for rank, row in enumerate(rows)}
            with self.assertRaisesRegex(AssertionError, "without first running Forward"):
                schedules._validate_schedule(by_rank, ranks, ranks, 2 * ranks)
            for microbatches, what in ((2 * ranks, f"{2 * ranks} microbatches, but the grid has 0 to {2 * ranks}"),
                                       (2 * ranks + 1, f"no F of stage 0 m{2 * ranks}")):
                answer, = self.answers([("", ranks, 1, microbatches, rows, {})])
                self.assertEqual(answer.get("code"), "LS1101", answer)
                self.assertIn(what, answer["what"])

    def test_fixtures_are_what_is_printed(self):
        names = []
        for name, rows in fixtures():
            with self.subTest(name):
                write(rows, self.folder / name)
                self.assertEqual((FIXTURES / name).read_bytes(), (self.folder / name).read_bytes())
                names.append(name)
        self.assertEqual(sorted(path.name for path in FIXTURES.iterdir()), sorted(names))


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        for name, rows in fixtures():
            write(rows, FIXTURES / name)
        sys.exit()
    GRID_CHECK = sys.argv.pop(1) if len(sys.argv) > 1 else sys.exit("usage: pipeline_grids_test.py GRID_CHECK | --write")
    unittest.main()
