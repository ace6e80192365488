"""A traced run, constants fitted to it, and another layout predicted and trained with them. calibrate_test.py BUILD_FOLDER"""
import json

import support

LAYOUT = ("--model.layers=4", "--train.seq_len=32", "--train.global_batch=8", "--train.micro_batch=1")


class CalibrateTest(support.LockstepTest):
    def setUp(self):
        super().setUp()
        self.machine = self.folder / "machine.toml"

    def calibrate(self, *runs):
        fits = [option for run in runs for option in ("--calibrate", str(self.run_folder(run)))]
        result = self.lockstep("plan", "run.toml", "-n", "2", "--cluster", "here", *fits, "--machine", str(self.machine), "--json", *LAYOUT)
        self.assertEqual(result.code, 0, result)
        return result.json()

    def predicted(self, *options, ranks):
        result = self.lockstep("plan", "run.toml", "-n", str(ranks), "--cluster", str(self.machine), "--json", *LAYOUT, *options)
        self.assertEqual(result.code, 0, result)
        said = result.json()
        self.assertEqual(said["layout"]["from"], "configuration")
        return said["step"]

    def test_train_tells_what_the_planner_says_of_its_machine(self):
        self.train("two", *LAYOUT, "--train.steps=4", "--trace.steps=3-4", "--parallel.zero=1", ranks=2)
        self.train("one", *LAYOUT, "--train.steps=4", "--trace.steps=3-4")
        said = self.calibrate("two", "one")
        fitted = said["calibration"]
        self.assertIn("product_cap", fitted["constants"])
        self.assertGreater(fitted["observations"], 10)
        text = self.machine.read_text()
        for line in ("[stack]", "[stack.origins]", "[host]", "ranks = 2", "runs/two, step 4; ", "runs/one, step 4"):
            self.assertIn(line, text)

        step = self.predicted("--parallel.pp=2", ranks=2)
        self.assertGreater(step["seconds"], 0)
        self.assertLess(step["low"], step["seconds"])
        self.assertLess(step["seconds"], step["high"])
        # The same of another number of ranks than the file has, which share the cores.
        self.assertGreater(self.predicted("--parallel.pp=2", "--parallel.tp=2", ranks=4)["seconds"], 0)

        result = self.train("told", *LAYOUT, "--train.steps=5", "--parallel.pp=2", "--machine", str(self.machine), ranks=2)
        told = result.out + result.err
        self.assertIn(" a step (", told)
        self.assertIn(f"by {self.machine}", told)
        self.assertIn("step: measured", told)
        rows = [json.loads(line) for line in (self.run_folder("told") / "metrics.jsonl").read_text().splitlines()]
        (event,) = [row for row in rows if row.get("event") == "predicted_step"]
        self.assertEqual((event["step"], event["steps"], event["machine"]), (5, 4, str(self.machine)))
        self.assertGreater(event["measured_ms"], 0)
        self.assertAlmostEqual(event["predicted_ms"] / 1000 / step["seconds"], 1, delta=1e-6)
        self.assertAlmostEqual(event["low_ms"] / 1000 / step["low"], 1, delta=1e-6)

    def test_a_run_without_a_machine_file_tells_none(self):
        result = self.train("plain", *LAYOUT, "--train.steps=2")
        self.assertNotIn(" a step (", result.out + result.err)
        self.assertNotIn("step: measured", result.out + result.err)

    def test_machine_files_that_are_none(self):
        for name, text, code in (("no-toml", "[stack", "LS1142"), ("host", 'like = "8xh100"\n[host]\ncores = 0\nranks = 8\n', "LS1153"), ("gpus", 'like = "8xh100"\n', "LS1150")):
            self.machine.write_text(text)
            result = self.lockstep("train", "run.toml", *LAYOUT, "--machine", str(self.machine))
            self.assertEqual(result.code, 2, f"{name}: {result}")
            self.assertIn(code, result.err, f"{name}: {result}")
        result = self.lockstep("train", "run.toml", *LAYOUT, "--machine", str(self.folder / "none.toml"))
        self.assertNotEqual(result.code, 0, result)
        self.assertIn("none.toml", result.err)

    def test_a_run_that_was_not_traced(self):
        self.train("plain", *LAYOUT, "--train.steps=2")
        result = self.lockstep("plan", "run.toml", "--cluster", "here", "--calibrate", str(self.run_folder("plain")), *LAYOUT)
        self.assertEqual(result.code, 2, result)
        self.assertIn("LS1154", result.err)


if __name__ == "__main__":
    support.main()
