"""Ranks that hold sequences in parts, through the program: losses of real documents, evaluation, checkpoints that go on at another cp, and
twice the same bits. context_resume_test.py BUILD_FOLDER"""
import json

import support

CLOSE = 1e-5


def axes(**degrees):
    return [f"--parallel.{axis}={value}" for axis, value in degrees.items()]


class ContextTestCase(support.LockstepTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        paragraphs = [" ".join(text.split()) for text in support.EXCERPT.read_text().split("\n\n")]
        cut = len(paragraphs) * 4 // 5
        cls.prepare_documents("paragraphs", [text for text in paragraphs[:cut] if text])
        cls.prepare_documents("kept", [text for text in paragraphs[cut:] if text])

    @classmethod
    def prepare_documents(cls, name, texts):
        (cls.folder / f"{name}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        cls.do("data", "prepare", f"{name}.jsonl", "--tokenizer", "tok.json", "--out", name)

    @classmethod
    def documents(cls, name, ranks, *arguments, **degrees):
        """A run of llama-test, or what `arguments` say."""
        return cls.train(name, "--model.preset=llama-test", "--data.train=paragraphs", *arguments, *axes(**degrees), ranks=ranks)


# Whole documents, and a stream with masks.
PACKED = ("--data.pack=documents",)
MASKED = ("--data.document_mask=true",)


class TrainTest(ContextTestCase):
    def evaluations(self, name):
        return {event["step"]: event["validation/loss"] for event in self.metrics(name)[1] if event["event"] == "eval"}

    def test_ranks_change_no_loss(self):
        options = ("--train.steps=4", "--data.validation=kept", "--train.eval_every=2", "--train.eval_samples=6", "--model.dropout=0.1")
        for data, words in (("packed", PACKED), ("masked", MASKED), ("stream", ())):
            self.documents(f"{data}-alone", 1, *options, *words)
            for kind, ranks, more in (("ring", 2, {}), ("all_to_all", 4, {"context_split": "contiguous"}), ("all_gather", 4, {"tp": 2}),
                                      ("2d", 4, {"context_inner": 2})):
                with self.subTest(data, kind=kind):
                    name = f"{data}-{kind}"
                    cp = ranks // more.get("tp", 1)
                    self.documents(name, ranks, *options, *words, cp=cp, context=kind, **more)
                    self.assert_close(self.losses(name), self.losses(f"{data}-alone"), CLOSE)
                    self.assert_close(self.evaluations(name), self.evaluations(f"{data}-alone"), CLOSE)

    def test_what_masks_and_positions_change(self):
        for model in ("llama-test", "gpt2-test"):
            losses = {}
            for name, words in (("masked", MASKED), ("unmasked", ()), ("in-place", (*MASKED, "--data.reset_positions=false"))):
                self.documents(f"{model}-{name}", 1, f"--model.preset={model}", "--train.steps=2", *words)
                losses[name] = self.losses(f"{model}-{name}")
            self.assertGreater(abs(losses["unmasked"][2] - losses["masked"][2]), CLOSE * losses["masked"][2])
            if model == "llama-test":  # a rotation says how far tokens are apart, wherever it counts from
                self.assert_close(losses["in-place"], losses["masked"], CLOSE)
            else:
                self.assertGreater(abs(losses["in-place"][2] - losses["masked"][2]), CLOSE * losses["masked"][2])

    def test_twice_gives_the_same_bits(self):
        for name in ("once", "twice"):
            self.documents(name, 4, "--train.steps=2", *PACKED, cp=4)
        self.assertEqual(self.losses("once"), self.losses("twice"))
        self.assertEqual(self.tensors("once", 2), self.tensors("twice", 2))

    def test_verify(self):
        result = self.lockstep("verify", "run.toml", "-n", 4, "--json", "--model.preset=llama-test", "--data.train=paragraphs", *PACKED,
                               *axes(cp=2, zero=3))
        self.assertEqual(result.code, 0, result)
        report = result.json()
        self.assertTrue(report["ok"])
        self.assertIn("cp 2", report["layout"])


class CheckpointTest(ContextTestCase):
    # A checkpoint of each goes on as the next one.
    WAYS = ((4, dict(cp=4)), (1, {}), (2, dict(cp=2, context="all_to_all")), (4, dict(tp=2, cp=2)), (4, dict(cp=2, zero=3)),
            (4, dict(cp=2, pp=2)))

    def check(self, name, *words):
        common = ("--model.dropout=0.1", "--checkpoint.every=2", *words)
        self.documents(f"{name}-whole", 1, f"--train.steps={2 * len(self.WAYS)}", *common)
        for number, (ranks, degrees) in enumerate(self.WAYS):
            result = self.documents(f"{name}-moved", ranks, f"--train.steps={2 * number + 2}", *common, **degrees)
            if number:
                self.assertIn(f"at step {2 * number}\n", result.err)
        self.assert_close(self.losses(f"{name}-moved"), self.losses(f"{name}-whole"), CLOSE)

    def test_a_packed_run_goes_on_at_another_cp(self):
        self.check("packed", *PACKED)

    def test_a_masked_run_goes_on_at_another_cp(self):
        self.check("masked", *MASKED)

    # One rank's checkpoint of four, straight on at each of the others.
    def test_from_four_ranks_to_any(self):
        self.documents("four", 4, "--train.steps=2", *PACKED, cp=4)
        for number, (ranks, degrees) in enumerate(((1, {}), (2, dict(cp=2)), (4, dict(tp=2, cp=2)), (4, dict(cp=4)))):
            self.documents(f"from-four-{number}", ranks, "--train.steps=5", *PACKED, "--checkpoint.resume=runs/four/checkpoints", **degrees)
        self.assertEqual(sorted(self.losses("from-four-0")), [3, 4, 5])
        for number in (1, 2, 3):
            self.assert_close(self.losses(f"from-four-{number}"), self.losses("from-four-0"), CLOSE)

    def test_the_same_layout_goes_on_with_the_same_bits(self):
        for name, stops in (("straight", (4,)), ("stopped", (2, 4))):
            for steps in stops:
                self.documents(name, 4, f"--train.steps={steps}", *PACKED, cp=2, zero=2)
        self.assertEqual(self.tensors("stopped", 4), self.tensors("straight", 4))

    def test_experts_go_on_at_another_cp(self):
        words = ("--model.preset=mixtral-test", "--model.layers=2", *MASKED)
        self.documents("experts-whole", 1, "--train.steps=4", *words)
        self.documents("experts", 4, "--train.steps=2", *words, cp=4, ep=4)
        self.documents("experts", 2, "--train.steps=4", *words, cp=2, ep=2)
        self.assert_close(self.losses("experts"), self.losses("experts-whole"), 1e-4)


if __name__ == "__main__":
    support.main()
