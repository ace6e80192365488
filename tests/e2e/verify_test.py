"""`lockstep verify`: each data-parallel layout computes what one rank computes. verify_test.py BUILD_FOLDER"""
import itertools

import support

BOUND = 1e-5
REPORT_KEYS = {"ok", "world_size", "layout", "steps", "tolerances"}
STEP_KEYS = {"loss", "reference_loss", "grad_norm", "reference_grad_norm", "max_gradient_error", "worst_gradient",
             "max_parameter_error", "worst_parameter", "failures"}
BUCKET = "--parallel.bucket_mib=0.05"  # so that one of the small models fills several


def relative(ours, reference):
    return abs(ours - reference) / abs(reference)


class VerifyTest(support.LockstepTest):
    def on_ranks(self, ranks, *arguments):
        """`lockstep ARGUMENTS` on so many ranks; mpi_verify_test.py has them started by mpirun."""
        return self.lockstep(*arguments, "-n", ranks)

    def verify(self, ranks, *arguments, steps=2):
        result = self.on_ranks(ranks, "verify", "run.toml", "--steps", steps, "--json", BUCKET, "--model.dropout=0.1",
                               *arguments)
        self.assertEqual(result.code, 0, result)
        report = result.json()
        self.assertEqual(set(report), REPORT_KEYS)
        self.assertIs(report["ok"], True)
        self.assertEqual(report["world_size"], ranks)
        self.assertIn(f"dp {ranks}", report["layout"])
        self.assertEqual(len(report["steps"]), steps)
        for step in report["steps"]:
            self.assertEqual(set(step), STEP_KEYS)
            self.assertEqual(step["failures"], [])
            self.assertIsInstance(step["worst_gradient"], str)
            self.assertIsInstance(step["worst_parameter"], str)
            self.assertGreater(step["reference_loss"], 1)
            self.assertGreater(step["reference_grad_norm"], 0)
        self.assertNotEqual(report["steps"][0]["loss"], report["steps"][-1]["loss"], "the second step is another one")
        return report

    def verify_fp32(self, ranks, *arguments):
        report = self.verify(ranks, *arguments)
        for step in report["steps"]:
            self.assertLessEqual(relative(step["loss"], step["reference_loss"]), BOUND)
            self.assertLessEqual(relative(step["grad_norm"], step["reference_grad_norm"]), BOUND)
            self.assertLessEqual(step["max_gradient_error"], BOUND)
        return report

    # global_batch 24 = micro_batch 2 x dp x 6, 4 or 3 microbatches: the gradients of several are accumulated.
    def check_layouts(self, preset):
        for ranks, kind in itertools.product((2, 3, 4), ("ring", "parameter_server")):
            with self.subTest(ranks=ranks, kind=kind):
                report = self.verify_fp32(ranks, f"--model.preset={preset}", f"--parallel.data_parallel={kind}",
                                          "--train.global_batch=24")
                self.assertIn(kind.replace("_", " "), report["layout"])
                self.assertIn(f"{12 // ranks} microbatches", report["layout"])

    def test_gpt2(self):
        self.check_layouts("gpt2-test")

    def test_llama(self):
        self.check_layouts("llama-test")

    def test_without_overlap(self):
        self.verify_fp32(3, "--parallel.overlap=false", "--train.global_batch=12")

    def test_tied_and_untied(self):
        self.verify_fp32(2, "--model.preset=gpt2-test", "--model.tied=false")
        self.verify_fp32(2, "--model.preset=llama-test", "--model.tied=true")

    def test_one_bucket_and_one_microbatch(self):
        self.verify_fp32(2, "--parallel.bucket_mib=25", "--train.global_batch=4")

    def test_bf16(self):
        for preset in ("gpt2-test", "llama-test"):
            with self.subTest(preset=preset):
                report = self.verify(2, f"--model.preset={preset}", "--train.precision=bf16")
                self.assertIn("bf16", report["layout"])
                for step in report["steps"]:
                    self.assertLessEqual(step["max_gradient_error"], report["tolerances"]["gradient"])

    def test_the_text_for_people(self):
        result = self.on_ranks(2, "verify", "run.toml", "--steps", 1)
        self.assertEqual(result.code, 0, result)
        self.assertIn("ok: the layout computes what one rank computes", result.out)
        self.assertIn("dp 2 (ring)", result.out)


if __name__ == "__main__":
    support.main()
