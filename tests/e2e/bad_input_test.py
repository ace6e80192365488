"""Bad input: one clear message, an exit code of its kind, and nothing written. bad_input_test.py BUILD_FOLDER"""
import re

import support

USAGE, ENVIRONMENT, DIVERGED, DATA, CHECKPOINT = 2, 3, 5, 7, 8


class BadInputTest(support.LockstepTest):
    def toml(self, text):
        """A further configuration file; the words of the command line that name both."""
        (self.folder / "more.toml").write_text(text)
        return ["run.toml", "more.toml"]

    def bare_toml(self, *without):
        """run.toml without the lines that set these keys."""
        lines = [line for line in support.CONFIG.splitlines() if not line.startswith(without)]
        (self.folder / "bare.toml").write_text("\n".join(lines) + "\n")
        return "bare.toml"

    def listing(self):
        """Every folder, and every file with its time; the logs of a run that is there may grow, and who held it is noted."""
        return {str(path.relative_to(self.folder)): path.stat().st_mtime_ns if path.is_file() else None
                for path in self.folder.rglob("*") if path.parent.name not in ("logs", "lock")}

    def refused(self, exit_code, code, words, *arguments):
        """The command fails with `exit_code` and one message: `code` once, all of `words`, and nothing is written."""
        before = self.listing()
        result = self.lockstep(*arguments)
        self.assertEqual(result.code, exit_code, result)
        self.assertEqual(re.findall(r"LS\d{4}", result.err), [code], result)
        for word in words:
            self.assertEqual(result.err.count(word), 1, f"'{word}' once in\n{result}")
        self.assertEqual(result.out, "", result)
        for trace in ("terminate called", "what():", "frame #", "Exception raised", ".cpp:", "Traceback"):
            self.assertNotIn(trace, result.err)
        self.assertLessEqual(len(result.err.splitlines()), 8, result)
        self.assertEqual(self.listing(), before)
        return result

    def refused_on_all(self, exit_code, code, words, *arguments):
        """The same with one rank and with two: not repeated by each."""
        for ranks in (1, 2):
            with self.subTest(ranks=ranks):
                self.refused(exit_code, code, words, *arguments, "-n", ranks)


class ConfigurationTest(BadInputTest):
    def test_unknown_key(self):
        self.refused(USAGE, "LS1042", ["more.toml:3:1", "'train.stepz'", "did you mean 'train.steps'?"],
                     "train", *self.toml("# more\n[train]\nstepz = 3\n"))
        self.refused(USAGE, "LS1042", ["unknown key 'train.stepz'", "'train.steps'"], "train", "run.toml", "--train.stepz=3")

    def test_unknown_section(self):
        self.refused(USAGE, "LS1041", ["more.toml:1:2", "did you mean 'train'?"], "train",
                     *self.toml("[trian]\nsteps = 3\n"))

    def test_wrong_type(self):
        self.refused(USAGE, "LS1043", ["more.toml:2:9", "is text", "expected: integer"], "train",
                     *self.toml('[train]\nsteps = "many"\n'))

    def test_out_of_range(self):
        result = self.lockstep("train", *self.toml("[train]\nsteps = 0\n"))
        self.assertEqual(result.code, USAGE)
        self.assertIn("more.toml:2:9", result.err)

    def test_bad_choice(self):
        self.refused(USAGE, "LS1045", ["more.toml:2:13", "none of fp32, bf16", 'did you mean "fp32"?'], "train",
                     *self.toml('[train]\nprecision = "fp16"\n'))

    def test_not_toml(self):
        self.refused(USAGE, "LS1040", ["more.toml:2:9"], "train", *self.toml("[train]\nsteps = \n"))

    def test_unknown_preset(self):
        result = self.lockstep("train", "run.toml", "--model.preset=gpt2-tset")
        self.assertEqual(result.code, USAGE)
        self.assertIn("gpt2-test", result.err)

    def test_unknown_verb(self):
        self.refused(USAGE, "LS1001", ["'tarin'", "did you mean 'train'?"], "tarin", "run.toml")

    def test_unknown_flag(self):
        self.refused(USAGE, "LS1002", ["'--setps'"], "verify", "run.toml", "--setps", "3")
        self.refused(USAGE, "LS1002", ["--train.steps"], "train", "run.toml", "--steps=3")

    def test_steps_of_verify_that_are_none(self):
        self.refused(USAGE, "LS1005", ["--steps", "at least one step"], "verify", "run.toml", "--steps", "0")
        self.refused(USAGE, "LS1005", ["--free(4) of --steps(3)", "from 0 to 3"], "verify", "run.toml", "--free", "4")

    def test_no_configuration(self):
        self.refused(USAGE, "LS1004", ["lockstep train run.toml"], "train")

    def test_no_such_configuration(self):
        self.refused(DATA, "LS1203", ["rum.toml: no such file", "nearest is run.toml"], "train", "rum.toml")


class LayoutTest(BadInputTest):
    def test_indivisible_batch(self):
        self.refused(USAGE, "LS1101", ["global_batch(9) is not a multiple of dp(2) * micro_batch(2) = 4",
                                       "global_batch 8 or 12"], "train", "run.toml", "-n", 2, "--train.global_batch=9")

    def test_ranks_do_not_match_the_layout(self):
        for verb in ("train", "verify"):
            self.refused(USAGE, "LS1101", ["dp(2) = 2, but 3 ranks were started", "-n 2"], verb, "run.toml", "-n", 3,
                         "--parallel.dp=2")

    def test_all_problems_at_once(self):
        self.refused(USAGE, "LS1101", ["2 problems", "but 3 ranks were started", "global_batch(9)"], "train", "run.toml",
                     "-n", 3, "--parallel.dp=2", "--train.global_batch=9")

    def test_context_parallel_ranks(self):
        self.refused(USAGE, "LS1101", ["cp(4) x dp(1) = 4, but 2 ranks were started", "-n 4"], "train", "run.toml", "-n", 2,
                     "--parallel.cp=4", "--parallel.dp=1")
        self.refused(USAGE, "LS1101", ["more.toml:3", "context_inner(2)", "leave context_inner out"], "train",
                     *self.toml("[parallel]\ncp = 2\ncontext_inner = 2\n"), "-n", 2)

    def test_sequence_longer_than_the_model_reads(self):
        self.refused_on_all(USAGE, "LS1121", ["train.seq_len = 65", "model.max_seq_len = 64"], "train", "run.toml",
                            "--train.seq_len=65")

    def test_no_ranks(self):
        self.refused(USAGE, "LS1005", ["-n 0"], "train", "run.toml", "-n", 0)

    def test_no_gpu(self):
        for verb in ("train", "verify"):
            self.refused_on_all(ENVIRONMENT, "LS3001", ['train.device = "cuda"', "sees no GPU"], verb, "run.toml",
                                "--train.device=cuda")


class DataTest(BadInputTest):
    def test_no_training_data_named(self):
        self.refused_on_all(USAGE, "LS1082", ["data.train is not given", "lockstep data prepare"], "train",
                            self.bare_toml("train ="))

    def test_missing_files(self):
        self.refused_on_all(DATA, "LS1203", ["austin.bin: no such file", "nearest is austen.bin"], "train", "run.toml",
                            "--data.train=austin")
        self.refused_on_all(DATA, "LS1203", ["hold.bin: no such file", "nearest is held.bin"], "train", "run.toml",
                            "--data.validation=hold")
        self.refused_on_all(DATA, "LS1203", ["tik.json: no such file", "nearest is tok.json"], "train", "run.toml",
                            "--data.tokenizer=tik.json")

    def test_corpus_shorter_than_a_batch(self):
        self.prepare_text("short", "It is a truth universally acknowledged.")
        self.refused_on_all(DATA, "LS1223", ["shorter than one batch", "a batch needs 8"], "train", "run.toml",
                            "--data.train=short")

    def test_tokens_beyond_the_vocabulary(self):
        self.prepare_tokenizer("large.json", 700)
        self.prepare_text("large", support.EXCERPT.read_text(), "large.json")
        self.refused_on_all(DATA, "LS1222", ["large.bin: token ", "ids 0 to 511", "model.vocab_size = 512"], "train",
                            self.bare_toml("tokenizer"), "--data.train=large", "--model.vocab_size=512")
        self.refused_on_all(DATA, "LS1222", ["large.bin: token "], "train", self.bare_toml("tokenizer"),
                            "--data.validation=large", "--model.vocab_size=512")

    def test_a_run_directory_that_cannot_be_made(self):
        self.refused_on_all(ENVIRONMENT, "LS3101", ["cannot make run.toml/x/logs"], "train", "run.toml",
                            "--run.dir=run.toml/x")

    def test_tokenizer_larger_than_the_model(self):
        self.refused(USAGE, "LS1120", ["512 tokens", "model.vocab_size = 200"], "train", "run.toml",
                     "--model.vocab_size=200")

    def test_files_that_are_something_else(self):
        (self.folder / "noise.bin").write_bytes(b"\1\2\3" * 100)
        (self.folder / "noise.idx").write_bytes(b"not an index at all, but long enough to hold a header")
        for verb in ("train", "verify"):
            result = self.lockstep(verb, "run.toml", "--data.train=noise")
            self.assertEqual(result.code, DATA, result)
            self.assertIn("noise.idx", result.err)
        (self.folder / "noise.json").write_text("{")
        result = self.lockstep("train", "run.toml", "--data.tokenizer=noise.json")
        self.assertEqual(result.code, DATA, result)
        self.assertIn("noise.json", result.err)


class DivergedTest(BadInputTest):
    def test_a_gradient_that_is_not_finite(self):
        for ranks in (1, 2):
            result = self.lockstep("train", "run.toml", f"--run.name=wild{ranks}", "-n", ranks, "--optimizer.lr=1e30",
                                   "--optimizer.max_grad_norm=0")
            self.assertEqual(result.code, DIVERGED, result)
            self.assertEqual(re.findall(r"LS\d{4}", result.err), ["LS5001"], result)
            for rank in range(ranks):
                self.assertIn(f"rank {rank}: ", result.err)


class RunTest(BadInputTest):
    """Where a run is there already."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.train("t", "--train.steps=2")

    def test_another_model_in_the_same_run(self):
        self.refused_on_all(CHECKPOINT, "LS1309", ["runs/t holds a run of another model", "layers   there 2   config 3"],
                            "train", "run.toml", "--model.layers=3")

    def test_a_checkpoint_of_another_model(self):
        result = self.lockstep("train", "run.toml", "--run.name=deep", "--model.layers=3", "-n", 2,
                               "--checkpoint.resume=runs/t/checkpoints")
        self.assertEqual(result.code, CHECKPOINT, result)
        self.assertEqual(result.err.count("LS1307"), 1, result)
        self.assertIn("layers", result.err)

    def test_no_such_checkpoint(self):
        for path in ("runs/nowhere", "runs/t/checkpoints/step-00000001"):
            self.refused_on_all(CHECKPOINT, "LS1310", [f"no checkpoint in {path}"], "train", "run.toml", "--run.name=new",
                                f"--checkpoint.resume={path}")

    def test_other_data_order_in_the_same_run(self):
        result = self.lockstep("train", "run.toml", "--train.seed=5", "--train.steps=4")
        self.assertEqual(result.code, CHECKPOINT, result)
        self.assertEqual(result.err.count("LS1311"), 1, result)
        self.assertIn('"seed":5', result.err)

    def test_generate_without_a_checkpoint(self):
        self.refused(CHECKPOINT, "LS1310", ["no whole checkpoint in runs/no/checkpoints"], "generate", "runs/no", "--prompt",
                     "a")
        self.refused(CHECKPOINT, "LS1310", ["no whole checkpoint in runs/no/checkpoints"], "generate", "run.toml",
                     "--run.name=no", "--prompt", "a")

    def test_prompts(self):
        many = ",".join(["5"] * 65)
        for exit_code, code, words, arguments in (
                (DATA, "LS1241", ["prompt(65)", "max_seq_len is 64", "shorter prompt"], ["--prompt-ids", many]),
                (DATA, "LS1241", ["prompt(3) + max_new_tokens(62) = 65", "--max-new-tokens 61"],
                 ["--prompt-ids", "1,2,3", "--max-new-tokens", 62]),
                (DATA, "LS1241", ["prompt token 1 is 512", "vocabulary has 512"], ["--prompt-ids", "1,512"]),
                (DATA, "LS1241", ["the prompt has no token"], ["--prompt", ""]),
                (USAGE, "LS1005", ["'x' is not a token id"], ["--prompt-ids", "1,x"]),
                (USAGE, "LS1003", ["needs --prompt TEXT, --prompt-ids 1,2,3 or --prompt-file FILE"], []),
                (USAGE, "LS1005", ["--temperature"], ["--prompt", "a", "--temperature", "-1"]),
                (USAGE, "LS1007", ["parallel.tp(2) != -n 3"], ["--prompt", "a", "-n", 3, "--parallel.tp=2"]),
                (USAGE, "LS1007", ["heads(12)", "5"], ["--prompt", "a", "-n", 5]),
                (USAGE, "LS1002", ["--train.steps"], ["--prompt", "a", "--train.steps=2"])):
            with self.subTest(words[0]):
                self.refused(exit_code, code, words, "generate", "runs/t", *arguments)

    def test_inspect_what_is_not_there(self):
        result = self.lockstep("checkpoint", "inspect", "runs/nowhere")
        self.assertEqual(result.code, CHECKPOINT, result)
        self.assertEqual(len(re.findall(r"LS\d{4}", result.err)), 1, result)


if __name__ == "__main__":
    support.main()
