"""Runs that stop, are damaged or killed, and go on. resume_test.py BUILD_FOLDER"""
import os
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

    def test_none_starts_afresh(self):
        self.half("none", ranks=2)
        result = self.train("none", DROPOUT, "--train.steps=3", "--checkpoint.resume=none", ranks=2)
        self.assertNotIn("resumed", result.err)
        self.assertEqual(self.metrics("none")[0][-3]["step"], 1)
        for step, loss in self.losses("none").items():
            self.assertEqual(loss, self.reference[step])

    def test_a_path_starts_another_run_from_there(self):
        self.half("first", ranks=2)
        for number, path in enumerate(("runs/first/checkpoints", f"runs/first/checkpoints/step-{HALF:08d}")):
            self.rest(f"second{number}", f"--checkpoint.resume={path}", ranks=2)
            expected = {step: loss for step, loss in self.reference.items() if step > HALF}
            self.assertEqual(self.losses(f"second{number}"), expected)

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
