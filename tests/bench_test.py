"""The benchmark's own arithmetic, on measurements that are made up. bench_test.py SOURCE_DIR"""
import sys
import unittest
from pathlib import Path

SOURCE_DIR = Path(sys.argv.pop(1) if len(sys.argv) > 1 else ".").resolve()
sys.path[:0] = [str(SOURCE_DIR / "bench"), str(SOURCE_DIR / "bench/peers")]

import tables  # noqa: E402
from cases import DEFAULT_GROUPS, cases_of, training_rows  # noqa: E402
from programs import Result  # noqa: E402
from training import Measurements, against_theory  # noqa: E402


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


if __name__ == "__main__":
    unittest.main()
