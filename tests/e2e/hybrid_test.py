"""A small hybrid of state space and attention, from text to transformers: trained at tp 2 x pp 2, it writes text, goes on under another
layout, is exported, and transformers gives it the same loss. hybrid_test.py BUILD_FOLDER"""
import os

os.environ["TRANSFORMERS_VERBOSITY"] = "error"
import numpy as np
import support
import torch
import transformers

SEQ, BATCH, STEPS = 32, 8, 24
MODEL = """\
[model]
family = "bamba"
layers = 6
mixers = "MMA"
feed_forwards = "D"
hidden = 32
ffn = 48
heads = 4
kv_heads = 2
max_seq_len = 64
state_heads = 4
state_head_size = 16
state_groups = 1
state_size = 8
state_chunk = 8
"""
SPLIT = ("--parallel.tp=2", "--parallel.pp=2", "--parallel.schedule=1f1b")
BOUND = 1e-5


class HybridTest(support.LockstepTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        text = support.CONFIG.replace('[model]\npreset = "gpt2-test"\n', MODEL).replace("lr = 1e-3", "lr = 3e-3").replace("steps = 6", f"steps = {STEPS}")
        (cls.folder / "run.toml").write_text(text)
        (cls.folder / "from.toml").write_text(text.replace(MODEL, "[model]\n").replace('tokenizer = "tok.json"\n', "shuffle = false\n"))
        cls.train("split", *SPLIT, ranks=4)
        cls.do("checkpoint", "export", cls.run_folder("split"), "exported", "--to", "hf")

    def test_it_learns_and_is_the_model_of_one_rank(self):
        losses = self.losses("split")
        self.assertEqual(sorted(losses), list(range(1, STEPS + 1)))
        self.assertLess(losses[STEPS], losses[1] - 0.3)
        self.train("alone", "--train.steps=4")
        self.assert_close({step: losses[step] for step in range(1, 5)}, self.losses("alone"), 1e-4)

    def test_verify_proves_the_layout(self):
        verdict = self.do("verify", "run.toml", "-n", 4, *SPLIT, "--steps=2", "--json").json()
        self.assertTrue(verdict["ok"], verdict)

    def test_it_goes_on_over_parts_of_sequences(self):
        self.train("on", *SPLIT, "--train.steps=4", ranks=4)
        self.train("on", "--parallel.cp=2", "--parallel.context=ring", "--train.steps=6", ranks=2)
        self.assert_close(self.losses("on"), {step: self.losses("split")[step] for step in range(1, 7)}, 1e-4)

    def test_it_writes_text_on_one_rank_and_on_two(self):
        run = self.run_folder("split")
        said = self.do("generate", run, "--prompt", "Anne was", "--max-new-tokens", 24, "--json").json()
        self.assertGreater(len(said["ids"]), 24)
        self.assertIn("Anne was", self.do("generate", run, "--prompt", "Anne was", "--max-new-tokens", 24).out)
        again = self.do("generate", run, "--prompt", "Anne was", "--max-new-tokens", 24, "--json", "-n", 2, "--threads", 1).json()
        self.assertEqual(again["ids"], said["ids"])

    def test_transformers_loads_the_export_with_the_same_loss(self):
        model = transformers.AutoModelForCausalLM.from_pretrained(self.folder / "exported", dtype=torch.float32).eval()
        self.assertEqual(model.config.model_type, "bamba")
        self.assertEqual(model.config.attn_layer_indices, [2, 5])
        tokens = np.fromfile(self.folder / "austen.bin", dtype="<u2").astype(np.int64)[:SEQ * BATCH + 1]
        inputs, targets = (torch.from_numpy(tokens[i:i + SEQ * BATCH].reshape(BATCH, SEQ)) for i in (0, 1))
        with torch.no_grad():
            logits = model(input_ids=inputs, use_cache=False).logits
        theirs = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()).item()
        # The first step from the export begins with its loss, on these tokens; and the export is the run, bit by bit.
        for name, ranks, arguments in (("again", 1, ()), ("again-split", 4, SPLIT)):
            self.do("train", "from.toml", "--model.from=hf:exported", "--data.tokenizer=tok.json", f"--run.name={name}", "-n", ranks, "--train.steps=1",
                    *arguments)
            self.assert_close({1: self.losses(name)[1]}, {1: theirs}, BOUND)
        self.assertIn("all equal", self.do("checkpoint", "diff", self.run_folder("split"), "exported").out)


if __name__ == "__main__":
    torch.set_num_threads(1)
    support.main()
