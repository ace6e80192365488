"""A small DeepSeek-V3 through the program: latent attention and its experts on real text, checkpoints that go on over other ranks,
generation from latents. deepseek_test.py BUILD_FOLDER"""
from safetensors import safe_open

import support

MODEL = ("--model.preset=deepseek-test", "--model.layers=2")  # 8 heads, latents of 24 and 20; 8 experts in the second block
STEPS = ("--train.steps=12", "--optimizer.lr=5e-3")
CLOSE = 1e-4  # over steps, in which a token between two experts may go to the other one


def axes(**degrees):
    return [f"--parallel.{axis}={value}" for axis, value in degrees.items()]


class DeepseekTest(support.LockstepTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.deepseek("alone", 1, *STEPS)

    @classmethod
    def deepseek(cls, name, ranks, *arguments, **degrees):
        return cls.train(name, *MODEL, *arguments, *axes(**degrees), ranks=ranks)

    def test_ranks_change_nothing_and_it_learns(self):
        losses = self.losses("alone")
        self.assertLess(losses[12], losses[1] - 0.3)
        for name, ranks, degrees in (("heads", 2, {"tp": 2}), ("both", 4, {"tp": 2, "ep": 4}), ("stages", 4, {"pp": 2, "ep": 2, "zero": 1})):
            with self.subTest(name):
                self.deepseek(name, ranks, *STEPS, **degrees)
                self.assert_close(self.losses(name), losses, CLOSE)

    def test_only_balance_bias_moves_the_bias(self):
        for balance, moves in (("bias", True), ("aux", False)):
            self.deepseek(balance, 2, "--train.steps=3", f"--moe.balance={balance}", ep=2)
            self.do("checkpoint", "export", f"runs/{balance}", f"{balance}-exported", "--to", "hf")
            with safe_open(self.folder / f"{balance}-exported" / "model.safetensors", "pt") as file:
                bias = file.get_tensor("model.layers.1.mlp.gate.e_score_correction_bias")
            self.assertEqual(bool(bias.abs().max() > 0), moves, balance)

    def test_a_run_goes_on_over_other_ranks(self):
        for number, (ranks, degrees) in enumerate(((4, {"tp": 2, "ep": 4}), (1, {}), (2, {"ep": 2, "zero": 3}))):
            self.deepseek("moved", ranks, f"--train.steps={4 * number + 4}", "--optimizer.lr=5e-3", "--checkpoint.every=4", **degrees)
        self.assert_close(self.losses("moved"), self.losses("alone"), CLOSE)

    def test_generation_from_latents(self):
        def generate(*arguments):
            return self.do("generate", "runs/alone", "--json", *arguments).json()["ids"]
        cached = generate("--prompt", "Anne had been", "--max-new-tokens", 12)
        for length in range(len(cached) - 12, len(cached), 4):
            ids = ",".join(map(str, cached[:length]))
            self.assertEqual(generate("--prompt-ids", ids, "--max-new-tokens", 1), cached[:length + 1])
        self.assertEqual(generate("--prompt", "Anne had been", "--max-new-tokens", 12, "-n", 2), cached)

    def test_verify(self):
        result = self.lockstep("verify", "run.toml", "-n", 4, "--json", *MODEL, *axes(tp=2, ep=2))
        self.assertEqual(result.code, 0, result)
        self.assertTrue(result.json()["ok"])

    def test_export_and_back(self):
        self.do("checkpoint", "export", "runs/alone", "exported", "--to", "hf")
        self.assertIn("all equal", self.do("checkpoint", "diff", "runs/alone", "hf:exported").out)

    def test_heads_that_ranks_cannot_share_are_refused(self):
        result = self.lockstep("train", "run.toml", "-n", 3, *MODEL, "--parallel.tp=3")
        self.assertEqual(result.code, 2, result)
        self.assertIn("model.heads(8) % tp(3) = 2", result.err)


if __name__ == "__main__":
    support.main()
