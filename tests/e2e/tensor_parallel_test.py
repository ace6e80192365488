"""Training with tensor parallelism through the program: what transformers says of an exported model, runs that move to
another layout, refusals, lost ranks. tensor_parallel_test.py BUILD_FOLDER

verify_test.py holds its gradients against one rank, hf_start_test.py those of a model that starts from weights."""
import os
import shutil
import signal
import subprocess
import time

import numpy as np
import torch
import transformers
from transformers.utils import logging

import support

logging.disable_progress_bar()
SEQ, SAMPLES = 32, 10
TP, PLAIN = "--parallel.tp={}".format, "--parallel.sequence_parallel=false"


class ExportTest(support.LockstepTest):
    """The acceptance: trained over dp 2 x tp 2, exported, the model means the same to transformers."""

    def transformers_loss(self, directory):
        tokens = np.fromfile(self.folder / "held.bin", dtype="<u2").astype(np.int64)[:SEQ * SAMPLES + 1]
        inputs, targets = (torch.from_numpy(tokens[i:i + SEQ * SAMPLES].reshape(SAMPLES, SEQ)) for i in (0, 1))
        model = transformers.AutoModelForCausalLM.from_pretrained(self.folder / directory, dtype=torch.float32).eval()
        with torch.no_grad():
            logits = model(input_ids=inputs).logits
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1).double(), targets.flatten()).item()

    def check(self, preset, *arguments):
        name = f"{preset}{len(arguments)}"
        self.train(name, f"--model.preset={preset}", TP(2), "--data.validation=held", "--train.eval_every=6",
                   f"--train.eval_samples={SAMPLES}", "--optimizer.lr=1e-2", *arguments, ranks=4)
        ours = [event["validation/loss"] for event in self.metrics(name)[1] if event["event"] == "eval"][-1]
        self.assertLess(ours, self.losses(name)[1] - 0.3, "it has learned")
        self.do("checkpoint", "export", f"runs/{name}", name, "--to", "hf")
        self.assert_close({preset: self.transformers_loss(name)}, {preset: ours}, 1e-5)

    def test_gpt2(self):
        self.check("gpt2-test")

    def test_llama(self):
        self.check("llama-test")

    def test_shared_key_value_heads_without_sequence_parallelism(self):
        self.check("llama-test", "--model.kv_heads=1", PLAIN)


class ResumeTest(support.LockstepTest):
    def test_a_run_goes_on_with_any_layout(self):
        # Random numbers of dropout, the order of samples and the schedule must go on too.
        common = ["--model.preset=llama-test", "--model.kv_heads=2", "--model.dropout=0.1", "--train.steps=9",
                  "--optimizer.schedule=cosine", "--checkpoint.every=3"]
        self.train("whole", *common)
        for ranks, tp, last in ((2, 2, 3), (4, 4, 6), (4, 2, 9)):
            result = self.train("moved", *common, TP(tp), ranks=ranks)
            if last > 3:
                self.assertIn(f"at step {last - 3}", result.err)
            for step in range(last + 3, 10, 3):  # as if it had been ended here
                shutil.rmtree(self.step_folder("moved", step))
        self.assert_close(self.losses("moved"), self.losses("whole"), 1e-5)


class RefusalTest(support.LockstepTest):
    def refused(self, ranks, *arguments):
        """The message; nothing has been written."""
        for verb in ("train", "verify"):
            result = self.lockstep(verb, "run.toml", "--run.name=refused", "-n", ranks, *arguments)
            self.assertEqual(result.code, 2, result)
            self.assertIn("LS1101", result.err)
            self.assertFalse(self.run_folder("refused").exists())
        return result.err

    def test_heads(self):
        message = self.refused(5, TP(5))
        self.assertIn("model.heads(12) % tp(5) = 2", message)
        self.assertRegex(message, r"use tp 4 with -n 4")

    def test_key_value_heads(self):
        message = self.refused(3, TP(3), "--model.preset=llama-test")
        self.assertIn("neither of model.kv_heads(4) and tp(3) divides the other", message)
        self.assertRegex(message, r"use tp 2 with -n 2")

    def test_ranks(self):
        message = self.refused(3, TP(2))
        self.assertIn("tp(2) x dp(1) = 2, but 3 ranks were started", message)
        self.assertIn("or -n 2", message)
        message = self.refused(4, TP(2), "--parallel.dp=3")
        self.assertIn("tp(2) x dp(3) = 6, but 4 ranks were started", message)
        self.assertIn("use dp 2", message)


class LostRankTest(support.LockstepTest):
    def test_a_killed_rank_of_a_tp_group_ends_all_and_is_named(self):
        process = subprocess.Popen(self.command("train", "run.toml", "--run.name=killed", "-n", 4, TP(2),
                                                "--train.steps=1000000"),
                                   cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        metrics = self.run_folder("killed") / "metrics.jsonl"
        self.wait_until(lambda: process.poll() is not None or metrics.exists() and metrics.read_text().count("\n") >= 3)
        self.assertIsNone(process.poll(), "it ended by itself")
        ranks = {support.rank_of(pid): pid for pid in support.children(process.pid)}
        self.assertEqual(sorted(ranks), [0, 1, 2, 3])
        os.kill(ranks[3], signal.SIGKILL)
        _, err = process.communicate(timeout=support.SECONDS)
        self.assertEqual(process.returncode, 6, err)
        self.assertEqual(err.count("rank 3 was ended by signal 9 (Killed)\n"), 1, err)
        self.wait_until(lambda: not any(map(support.alive, ranks.values())))
        # A run that has saved nothing starts again, over another layout.
        self.do("train", "run.toml", "--run.name=killed", "-n", 3, TP(3), "--train.steps=3")

    def wait_until(self, condition):
        deadline = time.monotonic() + support.SECONDS
        while not condition():
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.05)


if __name__ == "__main__":
    torch.set_num_threads(1)
    support.main()
