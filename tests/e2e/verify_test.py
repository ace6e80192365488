"""`lockstep verify`: each layout computes what one rank computes. verify_test.py BUILD_FOLDER"""
import itertools

import support

BOUND = 1e-5
REPORT_KEYS = {"ok", "world_size", "layout", "steps", "tolerances", "free", "traffic"}
STEP_KEYS = {"loss", "reference_loss", "grad_norm", "reference_grad_norm", "learning_rate", "max_gradient_error",
             "worst_gradient", "max_parameter_error", "worst_parameter", "max_update_error", "worst_update", "alone", "drift",
             "failures"}
DISTANCES = {"values", "exp_avg", "exp_avg_sq"}
BUCKET = "--parallel.bucket_mib=0.05"  # so that one of the small models fills several


def relative(ours, reference):
    return abs(ours - reference) / abs(reference)


class VerifyTestCase(support.LockstepTest):
    def on_ranks(self, ranks, *arguments):
        """`lockstep ARGUMENTS` on so many ranks; mpi_verify_test.py has them started by mpirun."""
        return self.lockstep(*arguments, "-n", ranks)

    @staticmethod
    def layout_of(ranks, arguments):
        tp = next((int(word.partition("=")[2]) for word in arguments if word.startswith("--parallel.tp=")), 1)
        axes = ([f"dp {ranks // tp} (ring)"] if ranks > tp else []) + [f"tp {tp}"]
        plain = "--parallel.sequence_parallel=false" in arguments
        return f"dp {ranks}" if tp == 1 else " x ".join(axes) + ("," if plain else " (sequence parallel),")

    # Of three steps layout and twin begin the first two in the same state; in the last two they are left alone.
    def verify(self, ranks, *arguments, steps=3):
        result = self.on_ranks(ranks, "verify", "run.toml", "--steps", steps, "--json", BUCKET, "--model.dropout=0.1",
                               *arguments)
        self.assertEqual(result.code, 0, result)
        report = result.json()
        self.assertEqual(set(report), REPORT_KEYS)
        self.assertIs(report["ok"], True)
        self.assertEqual(report["world_size"], ranks)
        self.assertIn(self.layout_of(ranks, arguments), report["layout"])
        self.assertEqual(len(report["steps"]), steps)
        self.assertEqual(report["traffic"], {"as_predicted": True, "at_run_time": []})
        free = 2 if steps > 2 else 0
        self.assertEqual(report["free"], free)
        for number, step in enumerate(report["steps"]):
            self.assertEqual(step["alone"], free > 0 and number > steps - free)
            self.assertEqual(step["drift"] is not None, number >= steps - free)
            self.check_drift(step["drift"])
            self.assertLessEqual(step["max_update_error"], 1)
            self.assertIn(", rank ", step["worst_update"])
            self.assertEqual(set(step), STEP_KEYS)
            self.assertEqual(step["failures"], [])
            self.assertIsInstance(step["worst_gradient"], str)
            self.assertIsInstance(step["worst_parameter"], str)
            self.assertGreater(step["reference_loss"], 1)
            self.assertGreater(step["reference_grad_norm"], 0)
        if steps > 1:
            self.assertNotEqual(report["steps"][0]["loss"], report["steps"][-1]["loss"], "the second step is another one")
        return report

    def check_drift(self, drift):
        if drift is None:
            return
        self.assertEqual(set(drift), {"layout", "reordered"})
        for which in DISTANCES:
            self.assertLessEqual(drift["layout"][which], drift["reordered"][which] + 1e-5)
        self.assertGreater(drift["reordered"]["exp_avg"], 0)

    def verify_fp32(self, ranks, *arguments, steps=3):
        report = self.verify(ranks, *arguments, steps=steps)
        for step in report["steps"]:
            if step["drift"]:
                self.assertLess(max(step["drift"]["layout"].values()), 1e-3)
            if step["alone"]:
                continue  # another state, another gradient
            self.assertLessEqual(relative(step["loss"], step["reference_loss"]), BOUND)
            self.assertLessEqual(relative(step["grad_norm"], step["reference_grad_norm"]), BOUND)
            self.assertLessEqual(step["max_gradient_error"], BOUND)
        return report


class VerifyTest(VerifyTestCase):
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

    def test_norms_behind_and_branches_beside_each_other(self):
        self.verify_fp32(4, "--model.preset=llama-test", "--model.norm=behind", "--parallel.tp=2", "--memory.recompute=full", steps=2)
        self.verify_fp32(2, "--model.preset=gpt2-test", "--model.branches=parallel", "--parallel.tp=2",
                         "--memory.recompute=selective", steps=2)

    def test_one_bucket_and_one_microbatch(self):
        self.verify_fp32(2, "--parallel.bucket_mib=25", "--train.global_batch=4")

    def test_bf16(self):
        for preset in ("gpt2-test", "llama-test"):
            with self.subTest(preset=preset):
                report = self.verify(2, f"--model.preset={preset}", "--train.precision=bf16")
                self.assertIn("bf16", report["layout"])
                for step in report["steps"][:-1]:  # in the last one they have gone on from other states
                    self.assertLessEqual(step["max_gradient_error"], report["tolerances"]["gradient"])

    def test_bf16_over_tp(self):
        report = self.verify(2, "--model.preset=llama-test", "--parallel.tp=2", "--train.precision=bf16", steps=1)
        self.assertIn("bf16", report["layout"])

    def test_a_learning_rate_of_zero(self):
        report = self.verify_fp32(2, "--train.steps=1", "--optimizer.schedule=linear", "--optimizer.min_lr=0",
                                  "--parallel.zero=1")
        for step in report["steps"]:
            self.assertEqual((step["learning_rate"], step["max_parameter_error"]), (0, 0))

    def test_the_text_for_people(self):
        result = self.on_ranks(2, "verify", "run.toml", "--steps", 3)
        self.assertEqual(result.code, 0, result)
        self.assertIn("ok: the layout computes what one rank computes", result.out)
        self.assertIn("dp 2 (ring)", result.out)
        self.assertEqual(result.out.count("from the twin: values "), 2)


class TensorParallelVerifyTest(VerifyTestCase):
    # 3 sequences of 31 tokens in a microbatch: 93 rows, which neither 2 nor 4 divides.
    def check_tensor_parallel(self, preset, degrees):
        for (ranks, tp), sequence in itertools.product(degrees, ("true", "false")):
            with self.subTest(ranks=ranks, tp=tp, sequence_parallel=sequence):
                self.verify_fp32(ranks, f"--model.preset={preset}", f"--parallel.tp={tp}",
                                 f"--parallel.sequence_parallel={sequence}", "--train.seq_len=31",
                                 "--train.micro_batch=3", "--train.global_batch=6", steps=1)

    def test_gpt2_over_tp(self):
        self.check_tensor_parallel("gpt2-test", ((2, 2), (3, 3), (4, 4), (4, 2)))

    def test_llama_over_tp(self):
        self.check_tensor_parallel("llama-test", ((2, 2), (4, 4), (4, 2)))

    # Layers of two parameter groups, of which one is summed over tp too.
    def test_row_groups(self):
        for ranks, tp, more in ((2, 2, []), (4, 2, []), (4, 2, ["--parallel.overlap=false"]), (4, 4, [])):
            with self.subTest(ranks=ranks, tp=tp, more=more):
                self.verify_fp32(ranks, "--parallel.row_groups=true", f"--parallel.tp={tp}", *more)

    # Several steps: moments that copies do not share would show in the second.
    def test_key_value_heads_that_ranks_share(self):
        for ranks, kv_heads in ((3, 1), (4, 2)):
            self.verify_fp32(ranks, "--model.preset=llama-test", f"--model.kv_heads={kv_heads}",
                             f"--parallel.tp={ranks}")


class RowGroupsVerifyTest(VerifyTestCase):
    """Layers of two parameter groups, of which one is summed over tp too and has shards of its own."""

    @staticmethod
    def layout_of(ranks, arguments):
        return "tp 2 (sequence parallel)"

    def test_shards_and_stages(self):
        for ranks, zero, more in ((4, 1, []), (4, 2, []), (4, 3, []), (8, 2, ["--parallel.dp_replicate=2", "--parallel.dp_shard=2"]),
                                  (4, 0, ["--parallel.pp=2", "--model.layers=4"]), (8, 1, ["--parallel.pp=2", "--model.layers=4"])):
            with self.subTest(ranks=ranks, zero=zero, more=more):
                self.verify_fp32(ranks, "--parallel.row_groups=true", "--parallel.tp=2", f"--parallel.zero={zero}", *more)


class PipelineVerifyTest(VerifyTestCase):
    """Stages that are left alone; layout_matrix_test.py has one step of many more layouts."""

    @staticmethod
    def layout_of(ranks, arguments):
        return "pp 2 ("

    def test_left_alone(self):
        more = (["--parallel.schedule=zb-h2", "--parallel.post_validation=on", "--optimizer.max_grad_norm=0.5"],
                ["--parallel.zero=2", "--parallel.dp=2"], ["--parallel.tp=2", "--model.preset=llama-test"])
        for ranks, arguments in zip((2, 4, 4), more):
            with self.subTest(arguments):
                self.verify_fp32(ranks, "--parallel.pp=2", "--model.layers=4", *arguments)


if __name__ == "__main__":
    support.main()
