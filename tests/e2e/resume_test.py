"""Runs that stop, are damaged or killed, and go on. resume_test.py BUILD_FOLDER"""
import os
import shutil
import signal
import subprocess
import time

import support

LAST, HALF = 20, 10
DROPOUT = "--model.dropout=0.1"  # its random numbers must go on too


class ResumeTest(support.LockstepTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.train("whole", DROPOUT, f"--train.steps={LAST}", ranks=2)
        cls.reference = cls.losses("whole")

    def half(self, name, *arguments, ranks):
        self.train(name, DROPOUT, f"--train.steps={HALF}", "--checkpoint.every=5", *arguments, ranks=ranks)

    def rest(self, name, *arguments, ranks):
        result = self.train(name, DROPOUT, f"--train.steps={LAST}", *arguments, ranks=ranks)
        self.assertIn(f"step {HALF}", result.err)
        return result

    def test_the_same_layout_goes_on_with_the_same_bits(self):
        for name, arguments, ranks in (("ring", [], 2), ("one", [], 1),
                                       ("server", ["--parallel.data_parallel=parameter_server"], 2)):
            with self.subTest(name):
                whole = "whole" if name == "ring" else f"whole-{name}"
                if name != "ring":
                    self.train(whole, DROPOUT, f"--train.steps={LAST}", *arguments, ranks=ranks)
                self.half(name, *arguments, ranks=ranks)
                result = self.rest(name, *arguments, ranks=ranks)
                self.assertIn(f"resumed from runs/{name}/checkpoints/step-{HALF:08d} at step {HALF}", result.err)
                self.assertEqual(self.losses(name), self.losses(whole))
                self.assertEqual(self.tensors(name, LAST), self.tensors(whole, LAST))

    def test_bf16_goes_on_with_the_same_bits(self):
        bf16 = "--train.precision=bf16"
        self.train("whole-bf16", DROPOUT, f"--train.steps={LAST}", bf16, ranks=2)
        self.half("bf16", bf16, ranks=2)
        self.rest("bf16", bf16, ranks=2)
        self.assertEqual(self.losses("bf16"), self.losses("whole-bf16"))
        self.assertEqual(self.tensors("bf16", LAST), self.tensors("whole-bf16", LAST))

    def test_any_layout_goes_on_from_any_other(self):
        server = "--parallel.data_parallel=parameter_server"
        for first, first_arguments, second, second_arguments in ((4, [], 1, []), (4, [], 2, []), (1, [], 4, []),
                                                                 (2, [server], 2, []), (2, [], 4, [server])):
            name = f"{first}{'s' if first_arguments else ''}to{second}{'s' if second_arguments else ''}"
            with self.subTest(name):
                self.half(name, *first_arguments, ranks=first)
                self.rest(name, *second_arguments, ranks=second)
                self.assert_close(self.losses(name), self.reference, 1e-5)

    def test_none_begins_from_nothing_and_goes_on_afterwards(self):
        none = "--checkpoint.resume=none"
        self.assertNotIn("resumed", self.train("none", DROPOUT, f"--train.steps={HALF}", none, ranks=2).err)
        result = self.rest("none", none, ranks=2)
        self.assertIn('checkpoint.resume = "none" says where a run begins; this one has checkpoints of its own', result.err)
        self.assertEqual(self.losses("none"), self.reference)

    def test_a_path_is_where_another_run_begins(self):
        self.half("first", ranks=2)
        for number, path in enumerate(("runs/first/checkpoints", f"runs/first/checkpoints/step-{HALF:08d}")):
            begin = f"--checkpoint.resume={path}"
            result = self.train(f"second{number}", DROPOUT, f"--train.steps={HALF + 4}", begin, ranks=2)
            self.assertIn(f"resumed from {path}", result.err)
            # The same once more, as the loop of a batch script has it, also when the first run is gone.
            if number == 1:
                shutil.rmtree(self.run_folder("first"))
            result = self.train(f"second{number}", DROPOUT, f"--train.steps={LAST}", begin, ranks=2)
            self.assertIn(f"resumed from runs/second{number}/checkpoints/step-{HALF + 4:08d}", result.err)
            steps = [row["step"] for row in self.metrics(f"second{number}")[0]]
            self.assertEqual(steps, list(range(HALF + 1, LAST + 1)))
            expected = {step: loss for step, loss in self.reference.items() if step > HALF}
            self.assertEqual(self.losses(f"second{number}"), expected)

    def test_going_back_leaves_a_branch_that_is_never_chosen(self):
        self.train("back", DROPOUT, f"--train.steps={LAST}", "--checkpoint.every=5", "--checkpoint.keep=0", ranks=1)
        step_5 = f"--checkpoint.resume={self.step_folder('back', 5)}"
        result = self.train("back", DROPOUT, "--train.steps=8", "--checkpoint.keep=1", step_5)
        self.assertIn("at step 5\n", result.err)
        self.assertIn("set aside in runs/back/checkpoints/set-aside-1: step-00000020, step-00000015, step-00000010; they are kept",
                      result.err)
        log = (self.run_folder("back") / "logs" / "rank-0000.log").read_text()
        self.assertIn("set aside in runs/back/checkpoints/set-aside-1: step-00000020", log)
        # Newest of all is step 20, of another branch.
        result = self.train("back", DROPOUT, "--train.steps=11", "--checkpoint.keep=1")
        self.assertIn("resumed from runs/back/checkpoints/step-00000008", result.err)
        # It goes back once: the same command goes on.
        result = self.train("back", DROPOUT, "--train.steps=13", "--checkpoint.keep=1", step_5)
        self.assertIn("gone back to step 5 before", result.err)
        self.assertIn("resumed from runs/back/checkpoints/step-00000011", result.err)
        result = self.do("checkpoint", "inspect", "runs/back", "--json").json()
        self.assertEqual([(step["step"], step["set_aside"], step["whole"]) for step in result["steps"]],
                         [(13, None, True), (20, "set-aside-1", True), (15, "set-aside-1", True), (10, "set-aside-1", True)])
        self.assertIn("set aside when the run went back", self.do("checkpoint", "inspect", "runs/back").out)

    def test_other_data_on_purpose(self):
        self.train("seed", "--train.steps=4")
        other = ("--train.seed=5", f"--checkpoint.resume={self.step_folder('seed', 4)}")
        self.assertIn("LS1311", self.lockstep("train", "run.toml", "--run.name=seed", "--train.steps=6", other[0]).err)
        result = self.train("seed", "--train.steps=4", *other)  # ends before its first save
        self.assertRegex(result.err, r"  train\.seed +1234 -> 5\n")
        self.assertIn("at step 4\n", self.train("seed", "--train.steps=6", *other).err)
        self.assertIn("at step 6\n", self.train("seed", "--train.steps=8", *other).err)

    def test_a_copy_without_links_goes_on(self):
        self.half("linked", ranks=1)
        shutil.copytree(self.run_folder("linked"), self.run_folder("copied"), symlinks=False)
        latest = self.run_folder("copied") / "checkpoints" / "latest"
        self.assertTrue(latest.is_dir() and not latest.is_symlink())
        result = self.rest("copied", "--checkpoint.every=5", ranks=1)
        self.assertEqual(result.err.count("warning: runs/copied/checkpoints/latest is no link"), 1, result)
        self.assertIn("latest is no link", (self.run_folder("copied") / "logs" / "rank-0000.log").read_text())
        self.assertTrue((self.step_folder("copied", LAST) / "manifest.json").is_file())

    def test_what_has_changed_is_told(self):
        self.half("changed", ranks=2)
        result = self.train("changed", DROPOUT, "--train.steps=12", "--optimizer.lr=2e-3", "--train.global_batch=4", ranks=1)
        for line in (r"changed since the checkpoint of step 10\n", r"  optimizer\.lr +0\.001 -> 0\.002\n",
                     r"  train\.global_batch +8 -> 4\n", r"  train\.steps +10 -> 12\n", r"  ranks +2 -> 1\n",
                     r"  learning rate +0\.001 at step 10 -> 0\.002 at step 11 -> 0\.002 at step 12\n"):
            self.assertRegex(result.err, line)
        result = self.train("changed", DROPOUT, "--train.steps=11", "--optimizer.lr=2e-3", "--train.global_batch=4")
        self.assertIn("nothing to do: the run has done 12 steps, more than train.steps = 11; raise it above 12", result.err)
        result = self.train("changed", DROPOUT, "--train.steps=13", "--optimizer.lr=2e-3", "--train.global_batch=4")
        self.assertNotRegex(result.err, r"ranks +\d+ ->")

    def test_a_finished_run_has_nothing_to_do(self):
        result = self.train("whole", DROPOUT, f"--train.steps={LAST}", ranks=2)
        self.assertIn("nothing to do", result.err)
        self.assertEqual(self.losses("whole"), self.reference)

    def check_damaged(self, name, damage):
        self.half(name, ranks=2)
        damage(sorted(self.step_folder(name, HALF).rglob("*.safetensors"))[-1])
        result = self.train(name, DROPOUT, f"--train.steps={LAST}", ranks=2)
        self.assertIn(f"skipped runs/{name}/checkpoints/step-{HALF:08d}", result.err)
        self.assertIn(f"resumed from runs/{name}/checkpoints/step-{5:08d} at step 5", result.err)
        self.assertEqual(self.losses(name), self.reference)

    def test_a_truncated_shard_falls_back_to_the_step_before(self):
        self.check_damaged("truncated", lambda path: os.truncate(path, path.stat().st_size - 100))

    def test_a_flipped_bit_falls_back_to_the_step_before(self):
        def flip(path):
            data = bytearray(path.read_bytes())
            data[-5] ^= 1
            path.write_bytes(data)

        self.check_damaged("flipped", flip)

    def test_a_missing_shard_falls_back_to_the_step_before(self):
        self.check_damaged("gone", lambda path: path.unlink())

    def test_a_missing_manifest_falls_back_to_the_step_before(self):
        self.check_damaged("unfinished", lambda path: (path.parent.parent / "manifest.json").unlink())

    def test_no_whole_step_is_an_error(self):
        self.train("broken", DROPOUT, "--train.steps=2", ranks=2)
        os.truncate(next(self.step_folder("broken", 2).rglob("*.safetensors")), 10)
        result = self.lockstep("train", "run.toml", "--run.name=broken", "-n", 2, DROPOUT)
        self.assertEqual(result.code, 8, result)
        self.assertEqual(result.err.count("LS1301"), 1, result)


class LostRankTest(support.LockstepTest):
    def start(self, name, ranks):
        process = subprocess.Popen(self.command("train", "run.toml", f"--run.name={name}", "-n", ranks,
                                                "--train.steps=1000000", "--train.global_batch=12"),
                                   cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        metrics = self.run_folder(name) / "metrics.jsonl"
        deadline = time.monotonic() + support.SECONDS
        while not (metrics.exists() and metrics.read_text().count("\n") >= 3):
            self.assertIsNone(process.poll(), "it ended by itself")
            self.assertLess(time.monotonic(), deadline, "no step was made")
            time.sleep(0.05)
        ranks_found = {support.rank_of(pid): pid for pid in support.children(process.pid)}
        self.assertEqual(sorted(ranks_found), list(range(ranks)))
        return process, ranks_found

    def check_gone(self, ranks):
        deadline = time.monotonic() + 10
        while any(support.alive(pid) for pid in ranks.values()) and time.monotonic() < deadline:
            time.sleep(0.05)
        self.assertFalse([pid for pid in ranks.values() if support.alive(pid)])

    def check_killed(self, victim, count=3):
        shared_before = set(os.listdir("/dev/shm"))
        process, ranks = self.start(f"killed{victim}", count)
        os.kill(ranks[victim], signal.SIGKILL)
        _, err = process.communicate(timeout=support.SECONDS)
        self.assertEqual(process.returncode, 6, err)
        self.assertIn(f"rank {victim} was ended by signal 9", err)
        self.check_gone(ranks)
        mine = [name for name in set(os.listdir("/dev/shm")) - shared_before if "lockstep" in name]
        self.assertEqual(mine, [])
        self.assertFalse((self.run_folder(f"killed{victim}") / "DONE").exists())
        return err

    def test_a_killed_rank_ends_the_job_and_is_named(self):
        err = self.check_killed(1)
        # A rank that waited for it tells where.
        self.assertIn("rank 1", err.split("was ended by signal")[0])

    def test_a_killed_rank_0_ends_the_job_and_is_named(self):
        self.check_killed(0)

    def test_ranks_end_with_a_killed_launcher(self):
        process, ranks = self.start("launcher", 2)
        process.kill()
        process.communicate(timeout=support.SECONDS)
        self.check_gone(ranks)

    def test_a_killed_run_goes_on(self):
        process, ranks = self.start("again", 2)
        process.kill()
        process.communicate(timeout=support.SECONDS)
        self.check_gone(ranks)
        self.do("train", "run.toml", "--run.name=again", "-n", 2, "--train.steps=4", "--train.global_batch=12")
        self.assertEqual(self.metrics("again")[0][-1]["step"], 4)  # every line of the file is whole


if __name__ == "__main__":
    support.main()
