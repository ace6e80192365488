"""The program as a whole: help, what works without LibTorch, doctor. cli_test.py BUILD_FOLDER"""
import re
import shutil
import subprocess

import support

VERBS = ("chat", "checkpoint", "config", "data", "doctor", "generate", "launch", "plan", "show", "train", "verify")
FIELDS = ("--run.name", "--model.preset", "--data.train", "--train.global_batch", "--optimizer.max_grad_norm",
          "--parallel.data_parallel", "--checkpoint.resume")


class HelpTest(support.LockstepTest):
    def test_overview_names_every_verb(self):
        overview = self.do("--help")
        self.assertEqual(overview.out, self.do().out)
        self.assertEqual(tuple(re.findall(r"^  ([a-z]+)  +\S", overview.out, re.MULTILINE)), VERBS)

    def test_each_verb(self):
        for verb in VERBS:
            with self.subTest(verb):
                result = self.do(verb, "--help")
                self.assertTrue(result.out.startswith(f"lockstep {verb} "), result)
                self.assertEqual(result.err, "")
                if verb in ("train", "verify", "show"):
                    for field in FIELDS:
                        self.assertIn(field, result.out)

    def test_version(self):
        self.assertRegex(self.do("--version").out, r"^lockstep \d+\.\d+\.\d+\n$")


class CoreTest(support.LockstepTest):
    """Alone with liblockstep_core.so, the program still does everything that computes nothing."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.alone = cls.folder / "alone"
        cls.alone.mkdir()
        for name in ("lockstep", "liblockstep_core.so"):
            shutil.copy2(support.BUILD / name, cls.alone)

    def core(self, *arguments):
        return self.lockstep(*arguments, program=self.alone / "lockstep")

    def test_show_answers(self):
        for what, words in (("program", ["REDUCE_GRAD", "STEP", "NORM"]), ("layout", ["rank"]), ("memory", ["parameters", "total"]),
                            ("traffic", ["all_reduce"])):
            with self.subTest(what):
                result = self.core("show", what, "run.toml", "-n", 2)
                self.assertEqual(result.code, 0, result)
                for word in words:
                    self.assertIn(word, result.out)
                self.assertEqual(result.out, self.do("show", what, "run.toml", "-n", 2).out)
                answer = self.core("show", what, "run.toml", "-n", 2, "--json")
                self.assertEqual(answer.code, 0, answer)
                answer.json()

    def test_help_config_and_data_answer(self):
        for words in (["--help"], ["train", "--help"], ["config", "show", "run.toml"], ["config", "docs"],
                      ["data", "inspect", "austen"]):
            result = self.core(*words)
            self.assertEqual(result.code, 0, result)
            self.assertGreater(len(result.out), 50)

    def test_bad_configurations_are_refused(self):
        result = self.core("train", "run.toml", "--train.global_batch=9", "-n", 2)
        self.assertEqual(result.code, 2, result)
        self.assertIn("global_batch(9)", result.err)

    def test_what_nobody_would_read_is_refused(self):
        for words in (["train", "run.toml", "extra"], ["verify", "run.toml", "extra"], ["doctor", "extra"], ["doctor", "-n", 2],
                      ["launch", "run.toml", "extra", "--print", "slurm"], ["config", "docs", "run.toml"], ["config", "docs", "-n", 2],
                      ["show", "memory", "run.toml", "--draw"]):
            result = self.core(*words)
            self.assertEqual(result.code, 2, result)
            self.assertIn("LS1004", result.err)

    def test_what_computes_says_what_is_missing(self):
        result = self.core("train", "run.toml")
        self.assertEqual(result.code, 3, result)
        self.assertIn("lockstep_runtime", result.err)
        self.assertFalse((self.folder / "runs").exists())

    def test_the_program_is_not_linked_with_libtorch(self):
        libraries = subprocess.run(["ldd", self.alone / "lockstep"], capture_output=True, text=True, check=True).stdout
        self.assertIn("liblockstep_core", libraries)
        self.assertNotIn("libtorch", libraries)
        self.assertNotIn("libc10", libraries)


class DoctorTest(support.LockstepTest):
    def test_all_is_well(self):
        for words in (["doctor"], ["doctor", "run.toml", "-n", 2]):
            report = self.do(*words, "--json").json()
            self.assertIs(report["ok"], True)
            amiss = [check for check in report["checks"] if not check["ok"]]
            self.assertEqual([check for check in amiss if not (check.get("optional") and check["mend"])], [])
            found = {check["name"]: check["found"] for check in report["checks"]}
            self.assertIn("liblockstep_runtime", found["runtime library"])
            for name in ("compiler", "Python packages", "mpi plugin", "mpirun"):  # scripts/setup.sh installs them
                self.assertNotIn(name, [check["name"] for check in amiss])
                self.assertIn(name, found)
            text = self.do(*words).out
            self.assertEqual([name for name in found if name not in text], [])
            self.assertNotIn("MEND", text)

    def test_what_is_amiss_is_named_with_what_mends_it(self):
        words = ("doctor", "run.toml", "-n", 2, "--data.train=nowhere", "--train.global_batch=3")
        result = self.lockstep(*words)
        self.assertEqual(result.code, 3, result)
        self.assertRegex(result.out, r"MEND  data\.train +nowhere\.bin: no such file\n +-> lockstep data prepare FILE\.\.\. --out nowhere\n")
        report = self.lockstep(*words, "--json").json()
        self.assertIs(report["ok"], False)
        amiss = {check["name"] for check in report["checks"] if not check["ok"] and not check.get("optional")}
        self.assertEqual(amiss, {"layout", "data.train"})
        self.assertTrue(all(("mend" in check) != check["ok"] for check in report["checks"]))


if __name__ == "__main__":
    support.main()
