"""Steps whose actions are timed: a run over pp, tp and dp on 8 ranks, its report and its traces. trace_test.py BUILD_FOLDER"""
import json
import re

import support

LAYOUT = ("--model.layers=4", "--train.seq_len=32", "--train.global_batch=8", "--train.micro_batch=1", "--train.steps=6")


def numbers_of(text):
    return [json.loads(found) for found in re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', text, re.S)]


class TraceTest(support.LockstepTest):
    def test_a_pipeline_of_three_dimensions(self):
        axes = ("--parallel.pp=2", "--parallel.tp=2", "--parallel.dp=2")
        result = self.train("cube", *LAYOUT, *axes, "--trace.steps=3-4", ranks=8)
        self.assertIn("pp 2 (1f1b)", result.out + result.err)
        self.train("one", *LAYOUT)
        self.assert_close(self.losses("cube"), self.losses("one"), 1e-5)
        folder = self.run_folder("cube")
        page = (folder / "report.html").read_text()
        self.assertIn("<svg", page)
        self.assertNotRegex(page, r'(src|href)="(http|//)')
        self.assertEqual(len(numbers_of(page)), 1)
        for step in (3, 4):
            for rank in range(8):
                trace = json.loads((folder / "trace" / f"step-{step}-rank-{rank}.json").read_text())
                self.assertEqual((trace["step"], trace["rank"], trace["world_size"]), (step, rank, 8))
                self.check_records(trace)
            self.check_chrome(json.loads((folder / "trace" / f"step-{step}.chrome.json").read_text()))
        self.check_numbers(folder)

    def check_numbers(self, folder):
        """Of the traces, simulated again by another process."""
        result = self.lockstep("show", "program", str(folder / "config.resolved.toml"), "-n", "8", "--measured", str(folder / "trace"), "--json")
        self.assertEqual(result.code, 0, result)
        numbers = json.loads(result.out)
        self.assertEqual((numbers["ranks"], numbers["microbatches"], numbers["unit"]), (2, 4, "s"))
        self.assertEqual((numbers["measured"]["number"], numbers["typical"]["steps"]), (4, [3, 4]))
        self.assertAlmostEqual(numbers["bubble_formula"], 1 / 5)
        for name in ("simulated", "measured", "typical"):
            self.assertGreater(numbers[name]["step"], max(numbers[name]["busy"]))
        overhead = numbers["measured"]["overhead"]
        self.assertGreater(overhead["actions"], 8)
        self.assertLess(0, overhead["mean"])
        self.assertLessEqual(overhead["mean"], overhead["worst_rank"])

    def check_records(self, trace):
        numbers = [record[0] for record in trace["records"]]
        self.assertEqual(numbers, sorted(set(numbers)))
        self.assertLess(numbers[-1], trace["actions"])
        for _, start, end, overhead in trace["records"]:
            self.assertLessEqual(start, end)
            self.assertGreaterEqual(overhead, 0)

    def check_chrome(self, events):
        events = events["traceEvents"] if isinstance(events, dict) else events
        self.assertEqual({event["pid"] for event in events}, set(range(8)))
        starts, ends = ({event["id"] for event in events if event["ph"] == phase} for phase in ("s", "f"))
        self.assertEqual(starts, ends)
        # Four pipelines of two stages, four microbatches each way.
        self.assertEqual(len(starts), 4 * 2 * 4)

    def test_a_run_without_a_pipeline(self):
        self.train("plain", *LAYOUT, "--trace.steps=2", "--parallel.zero=3", ranks=2)
        self.assertIn("<svg", (self.run_folder("plain") / "report.html").read_text())

    def test_steps_that_are_none(self):
        result = self.lockstep("train", "run.toml", "--trace.steps=9", *LAYOUT)
        self.assertEqual(result.code, 2, result)
        self.assertIn("trace.steps ends at 9, but train.steps = 6", result.err)


if __name__ == "__main__":
    support.main()
