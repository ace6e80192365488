"""Ranks of one host that mpirun starts talk through shared memory unless they are told otherwise. mpirun_test.py BUILD_FOLDER"""
import signal
import subprocess
import time

import mpirun
import support

SAVED = 75


class MpirunTest(support.LockstepTest):
    def words(self, name, *arguments):
        return [*mpirun.MPIRUN, "--mca", "orte_abort_on_non_zero_exit", "0", "-n", "2",
                *self.command("train", "run.toml", f"--run.name={name}", *arguments)]

    def test_same_bits_as_our_own_launcher(self):
        self.train("twin", ranks=2)
        done = subprocess.run(self.words("shared"), cwd=self.folder, capture_output=True, text=True, timeout=support.SECONDS)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("joining 2 ranks over shared_memory (all ranks are on one host); told by Open MPI: ", done.stderr)
        self.assertEqual(self.losses("shared"), self.losses("twin"))
        self.assertEqual(self.tensors("shared", 6), self.tensors("twin", 6))

    def test_a_signal_to_mpirun_saves_and_its_code_is_that_of_the_ranks(self):
        metrics = self.run_folder("signal") / "metrics.jsonl"
        job = subprocess.Popen(self.words("signal", "--train.steps=100000"), cwd=self.folder, stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL)
        try:
            for _ in range(support.SECONDS * 50):
                if metrics.exists() and "train/loss" in metrics.read_text():
                    break
                time.sleep(0.02)
            job.send_signal(signal.SIGUSR1)  # mpirun passes it on
            self.assertEqual(job.wait(support.SECONDS), SAVED)
        finally:
            job.kill()
            job.wait()
        stops = [event for event in self.metrics("signal")[1] if event["event"] == "stop"]
        self.assertEqual([event["code"] for event in stops], [SAVED])
        self.assertTrue((self.step_folder("signal", stops[0]["step"]) / "manifest.json").exists())


if __name__ == "__main__":
    mpirun.main()
