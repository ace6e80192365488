"""Pipelines through the program: training, evaluation and resuming at another number of stages, against one rank, and
what is refused. pipeline_test.py BUILD_FOLDER"""
import json
import shutil

import support

SCHEDULES = ("naive", "gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v", "dualpipe-v")


def axes(**degrees):
    return [f"--parallel.{axis}={value}" for axis, value in degrees.items()]


class PipelineTestCase(support.LockstepTest):
    COMMON = ("--model.layers=4", "--model.dropout=0.1", "--optimizer.schedule=cosine", "--train.steps=4",
              "--checkpoint.every=2", "--checkpoint.keep=0")

    @classmethod
    def pipeline(cls, name, ranks, *arguments, **degrees):
        return cls.train(name, *cls.COMMON, *axes(**degrees), *arguments, ranks=ranks)


class TrainTest(PipelineTestCase):
    """gpt2-test is tied: with several stages its embedding is on two ranks."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.pipeline("alone", 1)

    def assert_like_one_rank(self, name):
        self.assert_close(self.losses(name), self.losses("alone"), 1e-5)

    def test_every_schedule(self):
        for schedule in SCHEDULES:
            with self.subTest(schedule):
                self.pipeline(schedule, 2, pp=2, schedule=schedule)
                self.assert_like_one_rank(schedule)
                # In a V embedding and head are on one rank, and the tied gradient is summed in another order.
                if schedule not in ("zb-v", "dualpipe-v"):
                    self.assertEqual(self.losses(schedule), self.losses("naive"))

    def test_with_data_parallelism_and_zero(self):
        for zero in (0, 1, 3):
            with self.subTest(zero=zero):
                self.pipeline(f"zero{zero}", 4, pp=2, dp=2, zero=zero, schedule="1f1b")
                self.assert_like_one_rank(f"zero{zero}")

    def test_with_tensor_parallelism(self):
        self.pipeline("tensor", 4, pp=2, tp=2, schedule="zb-h1")
        self.assert_like_one_rank("tensor")

    def test_three_axes(self):
        self.pipeline("three", 8, "--train.micro_batch=1", pp=2, tp=2, dp=2, zero=1, schedule="interleaved")
        self.assert_like_one_rank("three")

    def test_uneven_stages_recomputation_and_offload(self):
        self.pipeline("uneven", 3, "--memory.recompute=full", "--memory.offload=optimizer", pp=3, layers_per_stage="0,3,1")
        self.assert_like_one_rank("uneven")

    def test_a_schedule_from_a_file(self):
        # What PyTorch's pipelining prints: a row for each rank, a column for each time, stage, action and microbatch.
        shutil.copy(support.FIXTURES / "pipeline_grids" / "looped-bfs-pp2-v2-m8.csv", self.folder / "grid.csv")
        result = self.pipeline("grid", 2, "--train.micro_batch=1", pp=2, schedule="file:grid.csv")
        self.assertIn("pp 2 (file, 2 stages a rank)", result.out + result.err)
        self.assert_like_one_rank("grid")

    def test_a_grid_whose_channels_hold_several_tensors(self):
        grid = support.FIXTURES / "pipeline_grids" / "interleaved-zb-pp4-v2-m8.csv"
        result = self.lockstep("verify", "run.toml", "-n", 4, "--steps", 1, "--json", "--model.layers=6", "--train.micro_batch=1",
                               *axes(pp=4, schedule=f"file:{grid}"))
        self.assertEqual(result.code, 0, result)
        report = result.json()
        self.assertIn("pp 4 (file, 2 stages a rank), 8 microbatches", report["layout"])
        for step in report["steps"]:
            self.assertEqual(step["failures"], [])
            self.assertLessEqual(step["max_gradient_error"], 1e-5)


class ResumeTest(PipelineTestCase):
    def test_a_run_goes_on_with_any_number_of_stages(self):
        self.pipeline("whole", 1, "--train.steps=6")
        layouts = ((2, dict(pp=2, schedule="zb-v")), (1, {}), (4, dict(pp=4, schedule="1f1b")))
        for number, (ranks, degrees) in enumerate(layouts):
            result = self.pipeline("moved", ranks, "--train.steps=6", **degrees)
            if number:
                self.assertIn(f"at step {2 * number}", result.err)
            for step in range(2 * number + 4, 7, 2):  # as if it had been ended here
                shutil.rmtree(self.step_folder("moved", step))
            (self.run_folder("moved") / "DONE").unlink(missing_ok=True)
        self.assert_close(self.losses("moved"), self.losses("whole"), 1e-5)

    def test_the_same_layout_goes_on_with_the_same_bits(self):
        layout = dict(pp=2, dp=2, zero=3, schedule="1f1b")
        self.pipeline("once", 4, **layout)
        self.pipeline("twice", 4, **layout)
        shutil.rmtree(self.step_folder("twice", 4))
        (self.run_folder("twice") / "DONE").unlink(missing_ok=True)
        self.pipeline("twice", 4, **layout)
        self.assertEqual(self.tensors("twice", 4), self.tensors("once", 4))

    def test_evaluation_and_export(self):
        # 7 samples over 2 x 2 ranks: one of the data-parallel ranks has fewer.
        evaluation = ("--data.validation=held", "--train.eval_every=2", "--train.eval_samples=7")
        self.pipeline("evaluated", 4, *evaluation, pp=2, dp=2, schedule="1f1b")
        self.pipeline("alone", 1, *evaluation)
        losses = {name: [event["validation/loss"] for event in self.metrics(name)[1] if event["event"] == "eval"]
                  for name in ("evaluated", "alone")}
        self.assertEqual(len(losses["alone"]), 2)
        self.assert_close(dict(enumerate(losses["evaluated"])), dict(enumerate(losses["alone"])), 1e-5)
        self.do("checkpoint", "verify", "runs/evaluated")
        self.do("checkpoint", "export", "runs/evaluated", "exported", "--to", "hf")
        self.assertIn("all equal", self.do("checkpoint", "diff", "runs/evaluated", "hf:exported").out)


class RefusalTest(support.LockstepTest):
    def refused(self, ranks, *arguments, **degrees):
        """The message; nothing has been written."""
        for verb in ("train", "verify"):
            result = self.lockstep(verb, "run.toml", "--run.name=refused", "-n", ranks, *axes(**degrees), *arguments)
            self.assertEqual(result.code, 2, result)
            self.assertIn("LS1101", result.err)
            self.assertFalse(self.run_folder("refused").exists())
        return result.err

    def test_ranks(self):
        message = self.refused(8, pp=2, tp=2, dp=3)
        self.assertIn("[mesh] tp(2) x pp(2) x dp(3) = 12, but 8 ranks were started", message)
        self.assertIn("use dp 2, or -n 12", message)

    def test_more_stages_than_layers(self):
        message = self.refused(5, pp=5)
        self.assertIn("pp(5) = 5 stages, but embedding + model.layers(2) + head = 4 layers", message)
        self.assertIn("use pp 4 with -n 4", message)

    def test_layers_of_stages(self):
        message = self.refused(2, "--model.layers=4", pp=2, layers_per_stage="3,3")
        self.assertIn('layers_per_stage = "3*2" has 6 blocks, but model.layers = 4', message)
        self.assertIn('use "2*2", or leave it out', message)

    def test_a_file_that_is_not_there(self):
        self.assertIn("there is no file no.csv", self.refused(2, pp=2, schedule="file:no.csv"))

    def test_all_at_once(self):
        message = self.refused(3, "--train.global_batch=7", pp=2, virtual_stages=2, layers_per_stage="1")
        for part in ("(4 problems", "= 2, but 3 ranks were started", "schedule 1f1b has one stage of a rank",
                     "names 1 stage, but pp(2) x virtual_stages(2) = 4", "global_batch(7) is not a multiple"):
            self.assertIn(part, message)

    def test_a_schedule_without_a_pipeline(self):
        self.assertIn("schedule gpipe is of a pipeline, but pp = 1", self.refused(2, schedule="gpipe"))

    def test_a_name_that_is_none(self):
        result = self.lockstep("train", "run.toml", "-n", 2, *axes(pp=2, schedule="zb-h3"))
        self.assertEqual(result.code, 2, result)
        self.assertIn('did you mean "zb-h1"?', result.err)


class ShowTest(support.LockstepTest):
    def test_who_is_where(self):
        result = self.do("show", "layout", "run.toml", "-n", 8, "--ranks-per-node", 4, "--train.micro_batch=1",
                         *axes(pp=2, tp=2))
        self.assertIn("pp 2 (1f1b) x dp 2 (ring) x tp 2 (sequence parallel)", result.out)
        self.assertRegex(result.out, r"(?m)^4     pp1 dp_replicate0 tp0  b1..head +0..3 +1 of 2")
        self.assertRegex(result.out, r"(?m)^pp +4 x 2 +0, 4 \| 1, 5 \| 2, 6 \| 3, 7$")
        self.assertRegex(result.out, r"(?m)^ +0  0..1, 4..5  pp 0..1 of copy 0$")
        shown = json.loads(self.do("show", "layout", "run.toml", "-n", 8, "--ranks-per-node", 4, "--train.micro_batch=1",
                                   "--json", *axes(pp=2, tp=2)).out)
        self.assertEqual(shown["groups"]["pp"], [[0, 4], [1, 5], [2, 6], [3, 7]])
        self.assertEqual(shown["groups"]["tied"], shown["groups"]["pp"])
        self.assertEqual(shown["servers"]["of_rank"], [0, 0, 1, 1, 0, 0, 1, 1])
        self.assertEqual(shown["servers"]["of_copies"], [[0], [1]])
        self.assertEqual(shown["ranks"][7]["stages"], [1])
        traffic = {axis["axis"]: axis for axis in shown["servers"]["traffic"]}
        self.assertEqual({axis: traffic[axis]["between_servers"] for axis in ("tp", "pp", "tied")}, {"tp": 0, "pp": 0, "tied": 0})
        self.assertEqual(traffic["dp_replicate"]["between_servers"], traffic["dp_replicate"]["sent"])

    def test_places_of_a_server(self):
        result = self.lockstep("show", "layout", "run.toml", "-n", 2, "--ranks-per-node", 0)
        self.assertEqual(result.code, 2, result)
        self.assertIn("--ranks-per-node 0 is out of range", result.err)


if __name__ == "__main__":
    support.main()
