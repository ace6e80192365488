"""`lockstep train`: what a run leaves behind, and that it always computes the same. train_test.py BUILD_FOLDER"""
import json
import struct
import tomllib

import support
from safetensors.numpy import load_file
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

METRICS = {"train/loss", "train/grad_norm", "train/lr", "perf/tokens_per_s", "perf/step_ms", "perf/mfu", "mem/peak_gib"}
STEPS = 6


class RunDirectoryTest(support.LockstepTest):
    """One run on two ranks, looked at from all sides."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.result = cls.train("a", "--data.validation=held", "--train.eval_every=3", "--train.eval_samples=5",
                               "--checkpoint.every=2", "--checkpoint.keep=2", ranks=2)
        cls.run_path = cls.run_folder("a")
        cls.steps, cls.events = cls.metrics("a")

    def test_has_its_files(self):
        for name in ("config.resolved.toml", "env.json", "metrics.jsonl", "tokenizer.json", "DONE", "logs/rank-0000.log",
                     "logs/rank-0001.log"):
            self.assertTrue((self.run_path / name).is_file(), name)
        self.assertEqual((self.run_path / "tokenizer.json").read_bytes(), (self.folder / "tok.json").read_bytes())

    def test_the_resolved_configuration_says_where_each_value_came_from(self):
        text = (self.run_path / "config.resolved.toml").read_text()
        origins = dict(line.split("#", 1) for line in text.splitlines() if " = " in line and "#" in line)
        origin = {key.strip(): value.strip() for key, value in origins.items()}
        self.assertEqual(origin["seq_len = 32"], "run.toml:10")
        self.assertEqual(origin["eval_samples = 5"], "--train.eval_samples")
        self.assertEqual(origin["beta1 = 0.9"], "default")
        values = tomllib.loads(text)
        self.assertEqual(values["run"]["name"], "a")
        self.assertEqual(values["train"]["global_batch"], 8)

    def test_the_resolved_configuration_runs_again(self):
        result = self.do("config", "show", self.run_path / "config.resolved.toml")
        self.assertIn('name = "a"', result.out)

    def test_environment(self):
        environment = json.loads((self.run_path / "env.json").read_text())
        self.assertEqual(environment["world_size"], 2)
        self.assertEqual(environment["backend"], "shared_memory")
        self.assertEqual(environment["model"]["vocab_size"], 512)
        for key in ("host", "cores", "compiler", "torch", "lockstep", "launcher", "started"):
            self.assertIn(key, environment)

    def test_metrics_are_flat_and_exact(self):
        self.assertEqual([row["step"] for row in self.steps], list(range(1, STEPS + 1)))
        for row in self.steps:
            self.assertLessEqual(METRICS, set(row))
            self.assertEqual(row["tokens"], row["step"] * 8 * 32)
            for key, value in row.items():
                self.assertIsInstance(value, (int, float), key)
            for key in METRICS - {"train/lr"}:
                self.assertGreater(row[key], 0, key)
            self.assertEqual(row["train/lr"], 1e-3)
        # Full precision: not numbers of a few digits.
        self.assertGreaterEqual(max(len(repr(row["train/loss"])) for row in self.steps), 12)

    def test_validation_loss(self):
        evaluations = [event for event in self.events if event["event"] == "eval"]
        self.assertEqual([event["step"] for event in evaluations], [3, 6])
        for event in evaluations:
            self.assertLess(abs(event["validation/loss"] - self.steps[event["step"] - 1]["train/loss"]), 0.5)

    def test_events(self):
        self.assertEqual([event["step"] for event in self.events if event["event"] == "checkpoint"], [2, 4, 6])
        self.assertEqual(self.events[-1]["event"], "stop")
        done = json.loads((self.run_path / "DONE").read_text())
        self.assertEqual(done["step"], STEPS)
        self.assertEqual(done["train/loss"], self.steps[-1]["train/loss"])

    def test_tensorboard_reads_the_event_file(self):
        (path,) = (self.run_path / "tb").iterdir()
        seen = {}
        for event in EventFileLoader(str(path)).Load():
            for value in event.summary.value:
                seen.setdefault(value.tag, {})[event.step] = value.tensor.float_val[0] if value.tensor.float_val else \
                    value.simple_value
        self.assertLessEqual(METRICS, set(seen))
        as_float = lambda number: struct.unpack("f", struct.pack("f", number))[0]
        for name in ("train/loss", "train/grad_norm"):
            self.assertEqual(seen[name], {row["step"]: as_float(row[name]) for row in self.steps})

    def test_checkpoints(self):
        names = sorted(path.name for path in (self.run_path / "checkpoints").iterdir() if not path.is_symlink())
        self.assertEqual(names, ["step-00000004", "step-00000006"])  # keep = 2
        folder = self.step_folder("a", STEPS)
        self.assertTrue((folder / "manifest.json").is_file())
        state = json.loads((folder / "train_state.json").read_text())
        self.assertEqual((state["step"], state["world_size"]), (STEPS, 2))
        shards = sorted((folder / "model").glob("*.safetensors"))
        self.assertEqual(len(shards), 2)
        sizes = [tensor.size for path in shards for tensor in load_file(path).values()]
        # Every parameter once, over all ranks: 2 blocks of gpt2-test with its tied embedding.
        hidden, ffn, vocab, positions = 48, 192, 512, 64
        block = 4 * hidden + 4 * hidden * hidden + 4 * hidden + 2 * hidden * ffn + ffn + hidden
        self.assertEqual(sum(sizes), (vocab + positions) * hidden + 2 * block + 2 * hidden)
        report = self.do("checkpoint", "inspect", self.run_path, "--json").json()
        self.assertIs(report["ok"], True)
        self.assertEqual(len(report["steps"]), 2)

    def test_a_pipe_gets_plain_lines(self):
        self.assertEqual(self.result.out, "")
        self.assertNotIn("\x1b", self.result.err)
        self.assertNotIn("\r", self.result.err)
        for text in ("lockstep train a", "dp 2 (ring)", "predicted per rank", "validation loss",
                     f"{self.steps[-1]['train/loss']:.4f}", f"{STEPS}/{STEPS}"):
            self.assertIn(text, self.result.err)
        self.assertTrue(self.result.err.endswith("\n"))

    def test_ranks_tell_their_place_in_their_logs(self):
        for rank in (0, 1):
            self.assertIn(f"rank {rank} of 2", (self.run_path / "logs" / f"rank-{rank:04d}.log").read_text())


class NumbersTest(support.LockstepTest):
    def test_the_loss_falls(self):
        self.train("fall", "--train.steps=60", "--train.log_every=10", ranks=2)
        losses = self.losses("fall")
        self.assertLess(losses[60], losses[1] - 0.5, losses)

    def check_twice(self, ranks, *arguments):
        names = [f"{ranks}-{turn}" for turn in (1, 2)]
        for name in names:
            self.train(name, "--model.dropout=0.1", *arguments, ranks=ranks)
        steps = [[(row["train/loss"], row["train/grad_norm"]) for row in self.metrics(name)[0]] for name in names]
        self.assertEqual(len(steps[0]), STEPS)
        self.assertEqual(steps[0], steps[1])
        self.assertEqual(self.tensors(names[0], STEPS), self.tensors(names[1], STEPS))

    def test_one_rank_twice_gives_the_same_bits(self):
        self.check_twice(1)

    def test_two_ranks_twice_give_the_same_bits(self):
        self.check_twice(2, "--parallel.bucket_mib=0.05")

    def test_three_ranks_with_a_server_twice_give_the_same_bits(self):
        self.check_twice(3, "--parallel.data_parallel=parameter_server", "--train.global_batch=12",
                         "--model.preset=llama-test")

    def test_the_number_of_ranks_does_not_matter(self):
        for ranks in (1, 2, 4):
            self.train(f"ranks{ranks}", "--model.dropout=0.1", ranks=ranks)
        self.train("server", "--model.dropout=0.1", "--parallel.data_parallel=parameter_server", ranks=2)
        for name in ("ranks2", "ranks4", "server"):
            self.assert_close(self.losses(name), self.losses("ranks1"), 1e-5)

    def test_neither_does_the_microbatch(self):
        for size in (1, 4, 8):
            self.train(f"micro{size}", f"--train.micro_batch={size}")
        for name in ("micro1", "micro4"):
            self.assert_close(self.losses(name), self.losses("micro8"), 1e-5)

    def test_another_seed_gives_another_run(self):
        self.train("seed1", "--train.steps=1")
        self.train("seed2", "--train.steps=1", "--train.seed=5")
        self.assertNotEqual(self.losses("seed1"), self.losses("seed2"))


if __name__ == "__main__":
    support.main()
