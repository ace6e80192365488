"""Updates that go ahead of the gradient norm: a run leaves what one leaves that waits for it. post_validation_test.py BUILD_FOLDER"""
import support

LAYOUT = ("--model.layers=4", "--parallel.pp=2", "--parallel.schedule=zb-v", "--train.micro_batch=1", "--optimizer.lr=3e-3")
LONG = (*LAYOUT, "--train.steps=24")
OFF = "--parallel.post_validation=off"
DUE = ("--data.validation=austen", "--train.eval_every=5", "--train.eval_samples=8", "--train.log_every=7")


class PostValidationTest(support.LockstepTest):
    def rows(self, name):
        return {row["step"]: (row["train/loss"], row["train/grad_norm"]) for row in self.metrics(name)[0]}

    def assert_same_states(self, one, other, step):
        ours, theirs = self.tensors(one, step), self.tensors(other, step)
        self.assertEqual([name for name in ours if ours[name] != theirs.get(name)], [])

    def test_the_same_bits_as_a_run_that_waits(self):
        self.train("waits", *LONG, OFF, ranks=2)
        norms = sorted(norm for _, norm in self.rows("waits").values())
        limit = f"--optimizer.max_grad_norm={norms[len(norms) // 2]}"  # some steps are clipped and some are not
        for ranks, others in ((2, ()), (4, ("--parallel.dp=2", "--parallel.zero=1"))):
            self.train(f"off{ranks}", *LONG, OFF, limit, *others, "--train.log_every=8", ranks=ranks)
            self.train(f"on{ranks}", *LONG, limit, *others, "--train.log_every=8", ranks=ranks)
            self.assertEqual(set(self.rows(f"on{ranks}")), {1, 8, 16, 24})
            self.assertEqual(self.rows(f"on{ranks}"), self.rows(f"off{ranks}"))
            self.assert_same_states(f"on{ranks}", f"off{ranks}", 24)

    def test_evaluation_and_checkpoints_in_between(self):
        for name, extra in (("ahead", ()), ("behind", (OFF,))):
            self.train(name, *LONG, *DUE, *extra, "--checkpoint.every=9", "--checkpoint.keep=0", ranks=2)
        for step in (9, 18, 24):
            self.assert_same_states("ahead", "behind", step)
        ahead, behind = ({row["step"]: row["validation/loss"] for row in self.metrics(name)[1] if row["event"] == "eval"}
                         for name in ("ahead", "behind"))
        self.assertEqual(set(ahead), {5, 10, 15, 20, 24})
        self.assertEqual(ahead, behind)

    def test_a_clock_saves_and_stops_where_it_will(self):
        self.train("saved", *LONG, *DUE, "--checkpoint.every=0.001s", "--checkpoint.keep=0", ranks=2)
        self.train("unsaved", *LONG, *DUE, ranks=2)
        self.assertGreater(len(list((self.run_folder("saved") / "checkpoints").glob("step-*"))), 4)
        self.assert_same_states("saved", "unsaved", 24)
        self.train("whole", *LAYOUT, "--train.steps=6", "--train.log_every=6", ranks=2)
        codes = []
        while len(codes) < 10 and codes[-1:] != [0]:
            codes.append(self.lockstep("train", "run.toml", "-n", 2, "--run.name=pieces", *LAYOUT, "--train.steps=6",
                                       "--train.log_every=6", "--stop-after=0.001s").code)
        self.assertEqual(codes[-1], 0)
        self.assertGreater(len(codes), 1)
        self.assert_same_states("pieces", "whole", 6)


if __name__ == "__main__":
    support.main()
