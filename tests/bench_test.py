"""The benchmark's own arithmetic, on measurements that are made up. bench_test.py SOURCE_DIR"""
import sys
import tempfile
import time
import unittest
from pathlib import Path
from unittest import mock

SOURCE_DIR = Path(sys.argv.pop(1) if len(sys.argv) > 1 else ".").resolve()
sys.path[:0] = [str(SOURCE_DIR / "bench"), str(SOURCE_DIR / "bench/peers")]

import bench  # noqa: E402
import imbalance  # noqa: E402
import page  # noqa: E402
import pages  # noqa: E402
import planner  # noqa: E402
import tables  # noqa: E402
import training  # noqa: E402
from cases import DEFAULT_GROUPS, Case, cases_of, training_rows, works  # noqa: E402
from gemm import products_of  # noqa: E402
from marks import MARKS, Figure, Mark, judged, marks_rows, short_of_the_mark  # noqa: E402
from programs import BenchError, Result, spread  # noqa: E402
from training import Measurements, Rounds, against_theory, measure  # noqa: E402


def step_of(case):
    """One rank with one thread takes 8 s; a pipeline a tenth more than its bubble of a fifth allows."""
    return 1.1 * 8 / case.pp / 0.8 if case.pp > 1 else 8.0


def traced(case):
    work = 8 / case.pp
    use = {"step": 1.05 * work / 0.8, "period": step_of(case), "bubble": 0.2, "idle": 0.2, "busy": [work] * case.pp}
    overhead = {"actions": 100, "mean": 3e-6, "median": 2e-6, "worst_rank": 4e-6}
    return {"bubble_formula": 0.2, "simulated": use, "typical": use, "measured": use | {"number": 7, "overhead": overhead}}


class BenchTest(unittest.TestCase):
    def test_every_source_compiles(self):
        sources = [path for folder in ("bench", "scripts", "tests", "examples") for path in (SOURCE_DIR / folder).rglob("*.py")]
        self.assertGreater(len(sources), 30)
        for path in sources:
            compile(path.read_text(), str(path), "exec")

    def test_every_group_has_its_cases_once(self):
        for quick in (True, False):
            cases = cases_of(training_rows(DEFAULT_GROUPS, quick))
            self.assertEqual(len({case.name() for case in cases}), len(cases))

    def test_pipelines_against_theory(self):
        rows = training_rows(("pipeline",), True)
        measurements = Measurements()
        for case in cases_of(rows):
            pipeline = traced(case) if case.pp > 1 and case.program == "lockstep" else None
            measurements.add(case, 1, Result([step_of(case)] * 3, pipeline=pipeline))
        found = [against_theory(row.ours, row.bases[1], measurements) for row in rows if row.ours.pp > 1]
        self.assertEqual({row["pp"] for row in found}, {2, 4})
        for row in found:
            ahead = row["schedule"] in ("zb-h2", "zb-v") and "waits" not in row["layout"]
            self.assertAlmostEqual(row["over_ideal"]["ratio"], 1.1)
            self.assertAlmostEqual(row["over_work"]["ratio"], 1.1 if ahead else 1.05)
            self.assertAlmostEqual(row["simulated_share"]["ratio"], 1.0 if ahead else 1.05 / 1.1)
            self.assertAlmostEqual(row["overhead_us"], 4)
        text = tables.theory({"pipelines": found, "machine": {"cores": 2}})
        self.assertIn("zb-h2 waits", text)
        self.assertIn("missed", text)  # 1.1 of ideal
        self.assertIn("reached", text)


class GrowthTest(unittest.TestCase):
    def test_the_time_of_a_token_over_that_of_the_shortest_sequence(self):
        steps = {"mamba2-long": lambda tokens: tokens / 64, "attention-long": lambda tokens: tokens**2 / 1024}
        rows = [{"model": model, "tokens": tokens, "median_ms": step(tokens)} for model, step in steps.items() for tokens in (4096, 1024)]
        lines = tables.growth({"comparisons": [*rows, {"model": "gpt2-10m", "tokens": 2, "median_ms": 1}]}).splitlines()
        cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[2:]]
        self.assertEqual(cells, [["1024", "16.0", "64000", "1.00", "1024.0", "1000", "1.00"],
                                 ["4096", "64.0", "64000", "1.00", "16384.0", "250", "4.00"]])
        self.assertEqual(tables.growth({"comparisons": []}), "")


class ImbalanceTest(unittest.TestCase):
    def test_loads_against_the_even_one_of_their_round(self):
        rounds = [[{"ranks": 2, "what": what, "of_rank": load, "of_expert": load, "seconds": load * scale} for what, load in (("even", 1), ("all", 2))]
                  for scale in (1, 3, 2)]
        even, all_to_one = imbalance.merged(rounds)
        self.assertEqual((even["seconds"], even["slower"]), (2, spread([1.0, 1.0, 1.0])))
        self.assertEqual((all_to_one["what"], all_to_one["of_rank"], all_to_one["slower"]["ratio"]), ("all", 2, 2))
        self.assertIn("2.00 (2.00..2.00)", tables.imbalance({"imbalance": [even, all_to_one]}))

    def test_predicted_steps_beside_measured_ones(self):
        for quick in (True, False):
            names = [planner.name_of(case) for case in planner.layouts(quick)]
            self.assertEqual((len(names), len(set(names))), (20, 20))
            self.assertNotIn(planner.name_of(planner.fitted(quick)), names)
        step = {"seconds": 0.9, "low": 0.8, "high": 1.0}
        # The second round ran while the machine was half as fast as when it was calibrated.
        row = planner.row_of(planner.layouts()[0], [{"step": step, "seconds": 1.0, "speed": 1.0}, {"step": step, "seconds": 2.4, "speed": 0.5}])
        self.assertAlmostEqual(row["ratio"]["smallest"], 0.9 / 1.2)
        self.assertAlmostEqual(row["ratio"]["largest"], 0.9)
        self.assertAlmostEqual(planner.off(row)["ratio"], 1 - (0.9 + 0.75) / 2)
        self.assertAlmostEqual(planner.off(row)["smallest"], 0.1)
        self.assertEqual((row["measured_ms"], row["in_band"]), (1700, 0.5))
        heads, (line,) = planner.cells([row])
        self.assertEqual(len(heads), len(line))
        self.assertIn("17.5%", line)


def whole_report(rounds):
    """Of every group, from made-up measurements: steps of 1 s for us and of 2 s for the others, which reaches every mark of a ratio."""
    rows = training_rows(DEFAULT_GROUPS, False)
    products, measurements = products_of(rows), Measurements()
    for case in cases_of(rows):
        pipeline = traced(case) if case.pp > 1 and case.program == "lockstep" else None
        seconds = step_of(case) if case.work.model == "gpt2-10m-15l" else 1.0 if case.program == "lockstep" else 2.0
        for number in range(1, rounds + 1):
            measurements.add(case, number, Result([seconds] * 3, [0.0], data_wait=0.0, peak_bytes=100, pipeline=pipeline))
        measurements.memory[case], measurements.wall[case] = 100, 1.0
    with mock.patch.object(measurements.limits, "seconds", lambda work, precision: 0.9), \
            mock.patch.object(measurements.limits, "shapes", lambda products: []), \
            mock.patch.object(measurements.limits, "rate", lambda products: 1e9), \
            mock.patch.object(training, "predicted_peak", lambda case, setting: 100), \
            mock.patch.object(training, "busiest_rank_bytes", lambda case, setting: 100):
        report = bench.training_report(rows, products, measurements, None)
    twice = spread([2.0, 2.5, 3.0])
    report["collectives"] = [{"ranks": 2, "bytes": 25 << 20, "lockstep_us": 1, "gloo_us": 2, "times_as_fast": twice, "share_of_copies": 1.0}]
    report["adamw"] = [{"elements": 1e6, "threads": 1, "lockstep_seconds": 1, "torch_seconds": 2, "times_as_fast": spread([0.8, 0.9, 1.1])}]
    report["replicas"] = [{"model": "gpt2-124m", "ranks": 2, "every": 100, "step_seconds": 1, "comparison_seconds": 0.1,
                           "share": spread([0.0008, 0.001, 0.0012])}]
    report["imbalance"] = [{"ranks": 2, "what": "rank 0's experts +1", "of_rank": 2.0, "of_expert": 2.5, "seconds": 0.5,
                            "slower": spread([1.4, 1.5, 1.7])}]
    report["pages"] = [{"page": "memory", "ranks": ranks, "ms": spread([80.0, 90.0, 120.0]), "mb": 50.0} for ranks in pages.LIMITS]
    step = {"seconds": 1.05, "low": 0.9, "high": 1.2}
    report["planner"] = [planner.row_of(case, [{"step": step, "seconds": seconds, "speed": 1 / seconds} for seconds in (1.0, 1.25, 2.0)])
                         for case in planner.layouts()]
    report["search"] = [{"model": "llama3-405b", "devices": 16_384, "candidates": 250_000, "seconds": spread([0.5, 0.6, 1.1])}]
    report["tokenizer"] = [{"style": "gpt2", "direction": "encode", "megabytes": 1.0, "lockstep_mb_per_s": 2.0, "peer_mb_per_s": 1.0,
                            "peer": "gpt2: encode", "times_as_fast": twice}]
    report["generate"] = [{"model": "gpt2-124m", "batch": 1, "program": "lockstep", "layout": "1x2", "tp": 1, "prefill_ms": 1.0,
                           "tokens_per_s": 1.0, "over_peer": twice, "over_one_rank": twice, "mark": ["one rank", 1.0]}]
    report |= {"machine": {"cpu": "a CPU", "cores": 2, "system": "Linux"}, "load_before": 0.0, "load_after": 2.0, "torch": "2", "quick": False,
               "peer_allocator": "malloc", "command": "bench.py", "commit": "abc1234", "seconds": 5000.0, "rounds": rounds}
    return report


class PageTest(unittest.TestCase):
    def test_every_mark_has_rows_and_a_verdict(self):
        report = whole_report(3)
        self.assertEqual([mark.what for mark, _ in judged(report)], [mark.what for mark in MARKS])
        verdicts = {row[0]: row[-1] for row in marks_rows(report)}
        self.assertEqual(verdicts["AdamW: times as fast as PyTorch's fused kernel"], "missed")
        self.assertEqual(verdicts["ring on 2 ranks: of our own 1x2"], "reached")
        self.assertIn("0.90 (0.80..1.10)", short_of_the_mark(report))

    def test_tables_without_a_peer_that_failed(self):
        report = whole_report(1)
        whole = tables.markdown(report)
        for row in report["comparisons"]:
            for key in [key for key in row if key.startswith("peer") or key == "times_as_fast"]:
                del row[key]
        text = tables.markdown(report)
        for part in ("### One copy of the model on several ranks", "### States shared out", "### What a rank has allocated"):
            lines = [page[page.index(part):].partition("\n###")[0].count("\n") for page in (whole, text)]
            self.assertEqual(*lines)

    def test_a_mark_judges_each_row(self):
        rows = [Figure("a", 0.5, 0.4, 0.6), Figure("b", 0.9, 0.9, 0.9)]
        lower, upper = Mark("x", 0.8, lambda report: rows), Mark("x", 0.8, lambda report: rows, at_least=False)
        self.assertEqual((lower.worst(rows).row, upper.worst(rows).row), ("a", "b"))
        self.assertEqual([lower.reached(row) for row in rows], [False, True])
        self.assertEqual([upper.reached(row) for row in rows], [True, False])

    def test_the_page_is_one_whole_run(self):
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "page.md"
            path.write_text(f"before\n{page.BEGIN}old figures\n{page.END}after\n")
            with self.assertRaisesRegex(BenchError, "2 rounds"):
                page.write_page(path, whole_report(2))
            self.assertIn("old figures", path.read_text())
            page.write_page(path, whole_report(3))
            text = path.read_text()
            self.assertTrue(text.startswith(f"before\n{page.BEGIN}") and text.endswith(f"{page.END}after\n"))
            self.assertNotIn("old figures", text)
            self.assertIn("abc1234", text)
            path.write_text("no place")
            with self.assertRaisesRegex(BenchError, "no line"):
                page.write_page(path, whole_report(3))
        page.split_page((SOURCE_DIR / "docs/benchmarks.md").read_text())

    def test_a_case_that_fails_sits_out(self):
        rows, shown = [row for row in training_rows(("ranks",), True)], []
        lost = rows[-1].ours

        def run(case, setting):
            if case == lost:
                raise BenchError("exit 1")
            return Result([1.0] * 3)

        with mock.patch.object(training, "run_case", run), mock.patch.object(training, "check_twins", lambda *_: None):
            measurements = measure(rows, [], Rounds(2, time.monotonic() + 60), None, lambda rows, _: shown.append(rows))
        self.assertEqual(list(measurements.failed), [lost])
        self.assertNotIn(lost, measurements.rounds)
        self.assertEqual([len(found) for found in shown], [len(rows) - 1] * 2)
        self.assertEqual(len(measurements.rounds[Case("lockstep", "ring", works(True)[2])]), 2)


if __name__ == "__main__":
    unittest.main()
