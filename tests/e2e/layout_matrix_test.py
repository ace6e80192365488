"""`lockstep verify` over the axes pp, tp, dp_shard and dp_replicate: all pairs, then triples, up to 8 ranks, with every
schedule and stage of ZeRO somewhere. layout_matrix_test.py BUILD_FOLDER"""
import itertools

import support
from verify_test import VerifyTestCase

SCHEDULES = ("1f1b", "gpipe", "interleaved", "zb-h1", "zb-v", "naive", "dualpipe-v", "zb-h2")
PRESETS = ("gpt2-test", "llama-test")  # tied and untied


def matrix():
    """(pp, tp, replicate, shard, zero, schedule): degrees above 1 on at least two axes, or pp alone."""
    schedules = itertools.cycle(SCHEDULES)
    layouts = [(pp, 1, 1, 1, 0, schedule) for pp in (2, 3, 4) for schedule in ("1f1b", "interleaved", "zb-h1")]
    for zero in (0, 1, 2, 3):
        for pp, dp in ((2, 2), (2, 3), (3, 2), (2, 4), (4, 2)):
            layouts.append((pp, 1, 1, dp, zero, next(schedules)) if zero else (pp, 1, dp, 1, 0, next(schedules)))
    layouts += [(pp, tp, 1, 1, 0, next(schedules)) for pp, tp in ((2, 2), (3, 2), (4, 2), (2, 4))]
    layouts += [(1, 2, 1, dp, zero, "1f1b") for zero, dp in ((1, 2), (2, 3), (3, 4))]  # without a pipeline
    layouts += [(1, 2, 2, 2, 3, "1f1b"), (1, 1, 2, 2, 2, "1f1b")]
    layouts += [(2, 2, 1, 2, zero, next(schedules)) for zero in (1, 2, 3)] + [(2, 2, 2, 1, 0, next(schedules))]
    layouts += [(2, 1, 2, 2, zero, next(schedules)) for zero in (1, 2, 3)]
    return layouts


def few():
    """Of the matrix: every schedule once, ZeRO at every stage, three axes at once."""
    seen, chosen = set(), []
    for layout in sorted(matrix(), key=lambda layout: (layout[0] * layout[1] * layout[2] * layout[3], layout)):
        facts = {("schedule", layout[5]) if layout[0] > 1 else None, ("zero", layout[4]),
                 ("axes", sum(degree > 1 for degree in layout[:4]))} - {None}
        if facts - seen:
            seen |= facts
            chosen.append(layout)
    return chosen


class LayoutMatrixTest(VerifyTestCase):
    @staticmethod
    def layout_of(ranks, arguments):
        del ranks
        pp = next((word.partition("=")[2] for word in arguments if word.startswith("--parallel.pp=")), "1")
        return f"pp {pp} (" if pp != "1" else ""

    def check(self, preset, layout):
        pp, tp, replicate, shard, zero, schedule = layout
        dp = replicate * shard
        arguments = [f"--model.preset={preset}", "--model.layers=6", "--model.vocab_size=517", f"--parallel.tp={tp}",
                     "--train.micro_batch=1", f"--train.global_batch={dp * (pp if pp > 1 else 2) * 2}"]
        if pp > 1:
            arguments += [f"--parallel.pp={pp}", f"--parallel.schedule={schedule}"]
        if zero:
            arguments += [f"--parallel.zero={zero}", f"--parallel.dp_shard={shard}", f"--parallel.dp_replicate={replicate}"]
        with self.subTest(preset=preset, pp=pp, tp=tp, replicate=replicate, shard=shard, zero=zero, schedule=schedule):
            self.verify_fp32(pp * tp * dp, *arguments, steps=1)

    def test_there_are_enough(self):
        self.assertGreaterEqual(len(set(matrix())), 40)
        self.assertEqual({layout[5] for layout in matrix()}, set(SCHEDULES))

        self.assertEqual({layout[5] for layout in few()}, set(SCHEDULES))
        self.assertEqual({layout[4] for layout in few()}, {0, 1, 2, 3})

    # Each layout with one of the models, the next one with the other.
    def test_a_few(self):
        for number, layout in enumerate(few()):
            self.check(PRESETS[number % 2], layout)

    # The two halves differ.
    def test_long_first_half(self):
        for number, layout in enumerate(matrix()[::2]):
            self.check(PRESETS[number % 2], layout)

    def test_long_second_half(self):
        for number, layout in enumerate(matrix()[1::2]):
            self.check(PRESETS[(number + 1) % 2], layout)


if __name__ == "__main__":
    support.main()
