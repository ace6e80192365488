"""States shared out over ranks (ZeRO 1, 2, 3, HSDP), through the program: gradients against one rank, runs that move to
another layout, evaluation, export. zero_test.py BUILD_FOLDER"""
import itertools
import shutil

import support
from verify_test import VerifyTestCase

# Rows, columns and whole units that no number of ranks divides.
UNEVEN = ("--model.vocab_size=517", "--model.ffn=191")


def sharded(zero, shard=0, replicate=0, tp=1):
    axes = {"zero": zero, "dp_shard": shard, "dp_replicate": replicate, "tp": tp}
    return [f"--parallel.{axis}={value}" for axis, value in axes.items() if value]


class ZeroVerifyTest(VerifyTestCase):
    @staticmethod
    def layout_of(ranks, arguments):
        axes = dict(word.removeprefix("--parallel.").split("=") for word in arguments if word.startswith("--parallel."))
        replicate, tp = (int(axes.get(name, 1)) for name in ("dp_replicate", "tp"))
        shard = ranks // replicate // tp
        axis = f"dp_replicate {replicate} x dp_shard {shard}" if replicate > 1 else f"dp {shard}"
        return f"{axis} (zero {axes['zero']})" + (f" x tp {tp} (sequence parallel)," if tp > 1 else ",")

    # global_batch 12: 6, 4 or 3 microbatches over 2, 3 or 4 ranks.
    def check_stages(self, preset, *layouts):
        for zero, ranks in layouts:
            with self.subTest(zero=zero, ranks=ranks):
                report = self.verify_fp32(ranks, f"--model.preset={preset}", *sharded(zero), *UNEVEN,
                                          "--train.global_batch=12", "--train.micro_batch=1")
                self.assertIn(f"{12 // ranks} microbatches", report["layout"])

    def test_gpt2_tied(self):
        self.check_stages("gpt2-test", (1, 2), (2, 4), (3, 3))

    def test_llama_untied(self):
        self.check_stages("llama-test", (1, 4), (2, 3), (3, 2))

    def test_long_every_number_of_ranks(self):
        for preset in ("gpt2-test", "llama-test"):
            self.check_stages(preset, *itertools.product((1, 2, 3), (2, 3, 4)))

    def check_replicas(self, *cases):
        for zero, preset in cases:
            with self.subTest(zero=zero, preset=preset):
                self.verify_fp32(4, f"--model.preset={preset}", *sharded(zero, 2, 2), *UNEVEN)

    def test_replicas_of_shards(self):
        self.check_replicas((1, "gpt2-test"), (2, "llama-test"), (3, "gpt2-test"))

    def test_long_replicas_of_shards(self):
        self.check_replicas(*itertools.product((1, 2, 3), ("gpt2-test", "llama-test")))

    def test_with_tensor_parallelism(self):
        for zero, preset in ((3, "gpt2-test"), (3, "llama-test"), (1, "llama-test"), (2, "gpt2-test")):
            with self.subTest(zero=zero, preset=preset):
                self.verify_fp32(4, f"--model.preset={preset}", *sharded(zero, tp=2), "--model.vocab_size=517")

    def test_replicas_of_shards_with_tensor_parallelism(self):
        self.verify_fp32(8, "--model.preset=llama-test", *sharded(3, 2, 2, 2), "--model.vocab_size=517",
                         "--train.micro_batch=1")

    # Two microbatches.
    def check_memory(self, *arguments, stages=(1, 2, 3), replicas=True):
        for ranks, zero, replicate, tp in ((2, 1, 1, 1), (3, 2, 1, 1), (3, 3, 1, 1), (4, 3, 2, 1), (4, 3, 1, 2)):
            if zero not in stages or (replicate > 1 and not replicas):
                continue
            with self.subTest(ranks=ranks, zero=zero, replicate=replicate, tp=tp):
                shard = ranks // replicate // tp
                self.verify_fp32(ranks, *sharded(zero, shard, replicate, tp), "--model.vocab_size=517",
                                 f"--train.global_batch={2 * shard * replicate}", "--train.micro_batch=1", *arguments)

    def test_with_recomputation(self):
        self.check_memory("--memory.recompute=full", stages=(3,), replicas=False)
        self.check_memory("--memory.recompute=selective", "--model.preset=llama-test", stages=(1, 2))
        self.verify_fp32(3, *sharded(3), "--memory.recompute=none,full", "--train.global_batch=12")

    def test_long_with_recomputation(self):
        self.check_memory("--memory.recompute=full")
        self.check_memory("--memory.recompute=selective", "--model.preset=llama-test")

    def test_with_the_optimizer_on_the_host(self):
        self.check_memory("--memory.offload=optimizer", replicas=False)

    def test_long_with_the_optimizer_on_the_host(self):
        self.check_memory("--memory.offload=optimizer")

    def test_with_parameters_on_the_host(self):
        self.check_memory("--memory.offload=optimizer,parameters", "--model.preset=llama-test", stages=(3,))

    def test_with_everything_on_the_host(self):
        self.check_memory("--memory.offload=optimizer,parameters,activations", "--memory.recompute=full", stages=(3,))

    def test_key_value_heads_that_ranks_share(self):
        self.verify_fp32(4, "--model.preset=llama-test", "--model.kv_heads=1", *sharded(3, tp=2))

    def test_when_parameters_come_and_go(self):
        for more in (["--parallel.prefetch=0"], ["--parallel.prefetch=3"], ["--parallel.overlap=false"],
                     ["--parallel.reshard_after_forward=false"],
                     ["--parallel.reshard_after_forward=false", "--parallel.reshard_after_microbatch=false"]):
            with self.subTest(more):
                self.verify_fp32(3, *sharded(3), *more, "--train.global_batch=6", "--train.micro_batch=1")

    def test_bf16(self):
        for zero, preset in ((1, "gpt2-test"), (2, "llama-test"), (3, "gpt2-test"), (3, "llama-test")):
            with self.subTest(zero=zero, preset=preset):
                report = self.verify(3, f"--model.preset={preset}", *sharded(zero), "--train.precision=bf16",
                                     "--train.global_batch=12")
                for step in report["steps"][:-1]:  # in the last one they have gone on from other states
                    self.assertLessEqual(step["max_gradient_error"], report["tolerances"]["gradient"])

    def test_gradients_as_bf16_on_the_wire(self):
        for zero in (1, 2, 3):
            with self.subTest(zero=zero):
                report = self.verify(4, *sharded(zero, 2, 2), "--parallel.reduce_precision=bf16")
                for step in report["steps"][:-1]:
                    # Not as close as fp32, and no further off than the rounding to 8 bits.
                    self.assertGreater(step["max_gradient_error"], 1e-5)
                    self.assertLessEqual(step["max_gradient_error"], 2 ** -8)


class ResumeTest(support.LockstepTest):
    COMMON = ("--model.preset=llama-test", "--model.dropout=0.1", "--optimizer.schedule=cosine", "--checkpoint.every=3",
              "--train.micro_batch=1", "--train.global_batch=12", "--train.steps=15", "--checkpoint.keep=0", *UNEVEN[:1])

    def test_a_run_goes_on_with_any_layout(self):
        self.train("whole", *self.COMMON)
        layouts = ((3, sharded(3)), (2, sharded(1, tp=2)), (1, []), (4, sharded(3, 2, 2)), (2, sharded(2)))
        for number, (ranks, layout) in enumerate(layouts):
            done, until = 3 * number, 3 * (number + 1)
            result = self.train("moved", *self.COMMON, *layout, ranks=ranks)
            if done:
                self.assertIn(f"at step {done}", result.err)
            for step in range(until + 3, 16, 3):  # as if it had been ended here
                shutil.rmtree(self.step_folder("moved", step))
            (self.run_folder("moved") / "DONE").unlink(missing_ok=True)
        self.assert_close(self.losses("moved"), self.losses("whole"), 1e-5)

    def test_the_same_layout_goes_on_with_the_same_bits(self):
        for zero in (1, 3):
            layout = sharded(zero)
            self.train(f"once{zero}", *self.COMMON, *layout, "--train.steps=6", ranks=3)
            self.train(f"twice{zero}", *self.COMMON, *layout, "--train.steps=6", ranks=3)
            shutil.rmtree(self.step_folder(f"twice{zero}", 6))
            self.train(f"twice{zero}", *self.COMMON, *layout, "--train.steps=6", ranks=3)
            self.assertEqual(self.tensors(f"twice{zero}", 6), self.tensors(f"once{zero}", 6))

    def test_evaluation_export_and_generation(self):
        # 7 samples over 3 ranks: one of them has fewer.
        evaluation = ("--data.validation=held", "--train.eval_every=3", "--train.eval_samples=7")
        self.train("evaluated", *self.COMMON, *evaluation, "--train.steps=3", *sharded(3), ranks=3)
        self.train("alone", *self.COMMON, *evaluation, "--train.steps=3")
        losses = [[event["validation/loss"] for event in self.metrics(name)[1] if event["event"] == "eval"][-1]
                  for name in ("evaluated", "alone")]
        self.assert_close({"loss": losses[0]}, {"loss": losses[1]}, 1e-5)
        self.do("checkpoint", "verify", "runs/evaluated")
        self.do("checkpoint", "export", "runs/evaluated", "exported", "--to", "hf")
        result = self.do("checkpoint", "diff", "runs/evaluated", "hf:exported")
        self.assertIn("all equal", result.out)


if __name__ == "__main__":
    support.main()
