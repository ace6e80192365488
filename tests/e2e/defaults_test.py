"""What nobody sets is the same for every verb: the layout that `show` prints is the one that `train` runs. defaults_test.py BUILD_FOLDER"""
import re

import support

DATA = ("--data.train=austen", "--data.tokenizer=tok.json")
TRAIN = ("--train.steps=1", "--train.threads=1", "--checkpoint.resume=none", "--optimizer.warmup_steps=0")

# -n, flags, the cut of the batch. gpt2-test and llama-test read 64 tokens.
JOBS = (
    (2, ("--model.preset=gpt2-test", "--train.seq_len=64"), "dp 2 (ring), 2 microbatches x 8 sequences x 64 tokens"),
    (2, ("--model.preset=gpt2-test", "--model.max_seq_len=300", "--parallel.tp=2"), "4 microbatches x 8 sequences x 256 tokens"),
    (3, ("--model.preset=llama-test",), "dp 3 (ring), 2 microbatches x 8 sequences x 64 tokens"),
    (2, ("--model.preset=llama-test", "--train.global_batch=12"), "dp 2 (ring), 1 microbatch x 6 sequences x 64 tokens"),
)


class DefaultsTest(support.LockstepTest):
    def test_show_and_train_plan_the_same_job(self):
        for number, (ranks, flags, batch) in enumerate(JOBS):
            with self.subTest(ranks=ranks, flags=flags):
                shown = self.do("show", "layout", "-n", ranks, *flags).out.splitlines()[1]
                self.assertIn(batch, shown)
                trained = self.do("train", "-n", ranks, *flags, *DATA, *TRAIN, f"--run.name=job{number}")
                ran = re.search(r"^  layout +(.*)$", trained.out + trained.err, re.MULTILINE).group(1)
                self.assertEqual(ran, shown)
                resolved = (self.run_folder(f"job{number}") / "config.resolved.toml").read_text()
                tokens = re.search(r"(\d+) tokens", shown).group(1)
                self.assertRegex(resolved, rf"seq_len = {tokens} +# (default|--)")
                self.assertIn(f"\nseq_len = {tokens} ", self.do("config", "show", "-n", ranks, *flags).out)


if __name__ == "__main__":
    support.main()
