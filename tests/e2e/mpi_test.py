"""Ranks started by mpirun, over MPI: the same numbers as over shared memory, and what happens when one is lost.
mpi_test.py BUILD_FOLDER"""
import os
import signal
import subprocess
import time

import mpirun
import support

BUCKET = "--parallel.bucket_mib=0.05"  # so that one of the small models fills several
PEER_LOST = 6


class NumbersTest(mpirun.MpiTestCase):
    def check(self, ranks, *arguments):
        name = f"{ranks}-{'-'.join(arguments)}".replace("=", "-").replace(".", "-")
        self.train(f"shared{name}", BUCKET, *arguments, ranks=ranks)
        self.train_over_mpi(f"mpi{name}", ranks, BUCKET, *arguments)
        self.assert_same_bits(f"mpi{name}", f"shared{name}")

    def test_a_ring_has_the_bits_of_shared_memory(self):
        for ranks in 2, 4:
            with self.subTest(ranks=ranks):
                self.check(ranks)

    def test_a_parameter_server_has_the_bits_of_shared_memory(self):
        self.check(4, "--parallel.data_parallel=parameter_server")

    def test_a_run_goes_on_with_another_number_of_ranks_and_backend(self):
        self.train_over_mpi("moved", 4, "--train.steps=3")
        self.train("moved", ranks=2)
        self.train("stayed", ranks=2)
        self.assert_close(self.losses("moved"), self.losses("stayed"), 1e-5)


class LibraryTest(mpirun.MpiTestCase):
    def test_mpi_is_loaded_where_it_is_the_backend_and_nowhere_else(self):
        def loads(*words):
            done = subprocess.run(words, cwd=self.folder, capture_output=True, text=True, timeout=support.SECONDS,
                                  env={**os.environ, "LD_DEBUG": "files"})
            self.assertEqual(done.returncode, 0, done.stderr[-2000:])
            return "libmpi.so" in done.stderr

        steps = "--train.steps=1"
        self.assertFalse(loads(*self.command("train", "run.toml", "--run.name=loads1", steps)))
        self.assertTrue(loads(*mpirun.MPIRUN, "-n", "2", *self.command("train", "run.toml", "--run.name=loads2", steps),
                              "--parallel.backend=mpi"))

    def test_ranks_that_mpirun_did_not_start(self):
        result = self.lockstep("train", "run.toml", "-n", "2", "--parallel.backend=mpi")
        self.assertEqual(result.code, 3, result)
        self.assertIn("LS3121", result.err)


    def test_ranks_with_other_backends_are_refused(self):
        train = self.command("train", "run.toml", "--run.name=mixed")
        done = subprocess.run([*mpirun.MPIRUN, "-n", "1", *train, "--parallel.backend=mpi",
                               ":", "-n", "1", *train, "--parallel.backend=shared_memory"],
                              cwd=self.folder, capture_output=True, text=True, timeout=support.SECONDS)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("LS1103", done.stderr)
        self.assertIn('parallel.backend: "mpi" on rank 0 (--parallel.backend, on ', done.stderr)
        self.assertFalse(self.run_folder("mixed").exists())


class LostRankTest(mpirun.MpiTestCase):
    def start(self, name, ranks=3):
        """A run that goes on for ever, at its third step or later; its ranks' processes."""
        process = subprocess.Popen([*mpirun.MPIRUN, "-n", str(ranks),
                                    *self.command("train", "run.toml", f"--run.name={name}", "--train.steps=1000000",
                                                  "--train.global_batch=24"),
                                    "--parallel.backend=mpi"],
                                   cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        metrics = self.run_folder(name) / "metrics.jsonl"
        self.wait_until(lambda: process.poll() is not None or
                        (metrics.exists() and metrics.read_text().count("\n") >= 3), "no step was made")
        self.assertIsNone(process.poll(), "it ended by itself")
        pids = support.children(process.pid)
        self.assertEqual(len(pids), ranks)
        return process, pids

    def wait_until(self, condition, otherwise, seconds=support.SECONDS):
        deadline = time.monotonic() + seconds
        while not condition():
            self.assertLess(time.monotonic(), deadline, otherwise)
            time.sleep(0.02)

    def check_all_gone(self, pids):
        self.wait_until(lambda: not any(map(support.alive, pids)), "an orphan is left", seconds=20)

    def test_a_killed_rank_is_named(self):
        process, pids = self.start("killed")
        os.kill(pids[-1], signal.SIGKILL)
        _, err = process.communicate(timeout=30)
        self.assertNotEqual(process.returncode, 0)
        self.assertIn(f"(process {pids[-1]}) died", err)
        self.check_all_gone(pids)

    def test_no_rank_outlives_mpirun(self):
        process, pids = self.start("orphans")
        process.kill()
        self.check_all_gone(pids)

    def test_sigusr1_saves(self):
        process, pids = self.start("saved")
        process.send_signal(signal.SIGUSR1)  # mpirun passes it on
        _, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 75, err)
        last = self.metrics("saved")[0][-1]["step"]
        self.assertTrue((self.step_folder("saved", last) / "manifest.json").is_file())
        self.check_all_gone(pids)


if __name__ == "__main__":
    mpirun.main()
