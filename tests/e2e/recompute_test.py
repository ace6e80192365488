"""Recomputation through the program: `lockstep verify` passes, training has the same bits, wrong lists are refused.
recompute_test.py BUILD_FOLDER"""
import support
from verify_test import VerifyTestCase

CHOICES = ("selective", "full", "full,none")
DROPOUT = "--model.dropout=0.1"


def recompute(choice):
    return f"--memory.recompute={choice}"


class RecomputeVerifyTest(VerifyTestCase):
    def test_data_parallel(self):
        for choice in CHOICES:
            with self.subTest(choice=choice):
                self.verify_fp32(2, "--model.preset=gpt2-test", "--train.global_batch=8", recompute(choice), steps=1)

    def test_tensor_and_sequence_parallel(self):
        for choice, sequence in (("full", "true"), ("full", "false"), ("none,selective,full", "true")):
            with self.subTest(choice=choice, sequence_parallel=sequence):
                self.verify_fp32(2, "--model.preset=llama-test", "--parallel.tp=2", recompute(choice),
                                 f"--parallel.sequence_parallel={sequence}", steps=1)


class RecomputeTrainTest(support.LockstepTest):
    def test_losses_and_weights_have_the_same_bits(self):
        for layout in ((), ("--parallel.tp=2",)):
            ranks, name = len(layout) + 1, f"ranks{len(layout) + 1}-"
            for choice in ("none", *CHOICES):
                self.train(name + choice.replace(",", "-"), "--model.preset=gpt2-test", DROPOUT, recompute(choice), *layout,
                           ranks=ranks)
            expected, steps = self.losses(name + "none"), max(self.losses(name + "none"))
            weights = self.tensors(name + "none", steps)
            for choice in CHOICES:
                with self.subTest(choice=choice, ranks=ranks):
                    run = name + choice.replace(",", "-")
                    self.assertEqual(self.losses(run), expected)
                    self.assertTrue(self.tensors(run, steps) == weights, "the same bytes")

    def test_a_list_that_does_not_fit_the_model_is_refused(self):
        result = self.lockstep("train", "run.toml", "--model.preset=gpt2-test", recompute("none,full,full"))
        self.assertEqual(result.code, 2, result)
        self.assertIn("LS1101", result.err)
        self.assertIn("memory.recompute  recompute lists 3 blocks, but model.layers = 2", result.err)
        result = self.lockstep("train", "run.toml", "--model.preset=gpt2-test", recompute("some"))
        self.assertEqual(result.code, 2, result)
        self.assertIn("LS1045", result.err)


if __name__ == "__main__":
    support.main()
