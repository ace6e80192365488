"""Ranks that another launcher has started: they find each other and train as `lockstep train -n` does, or are refused by
name. launchers_test.py BUILD_FOLDER"""
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from unittest import mock

import support

USAGE, ENVIRONMENT, PEER_LOST, SAVED = 2, 3, 6, 75
TORCHRUN = Path(sys.executable).parent / "torchrun"
# What says who this process is: a test under one of these launchers must not see it.
LAUNCHERS = ("OMPI_", "PMI", "PMIX_", "SLURM_", "TORCHELASTIC_", "RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "LOCKSTEP_")
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHERS)}


def open_mpi(rank, size, local_size=None):
    return {"OMPI_COMM_WORLD_RANK": rank, "OMPI_COMM_WORLD_SIZE": size, "OMPI_COMM_WORLD_LOCAL_RANK": rank,
            "OMPI_COMM_WORLD_LOCAL_SIZE": size if local_size is None else local_size}


def slurm(rank, job, size=2, per_node="2"):
    return {"SLURM_JOB_ID": job, "SLURM_STEP_ID": 0, "SLURM_PROCID": rank, "SLURM_NTASKS": size, "SLURM_LOCALID": rank,
            "SLURM_NODEID": 0, "SLURM_STEP_TASKS_PER_NODE": per_node, "SLURM_JOB_NODELIST": "n[1-2]"}


class Started:
    """A process under test, its output collected."""

    def __init__(self, command, folder, variables):
        env = {**CLEAN, **{name: str(value) for name, value in variables.items()}}
        self.command = [str(word) for word in command]
        self.process = subprocess.Popen(self.command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        text=True, start_new_session=True)
        self.lines = []
        self.reader = threading.Thread(target=lambda: self.lines.extend(self.process.stderr))
        self.reader.start()

    def end(self):
        """How it ended; it has the time of one command."""
        timer = threading.Timer(support.SECONDS, lambda: os.killpg(self.process.pid, signal.SIGKILL))
        timer.start()
        try:
            out = self.process.stdout.read()
            code = self.process.wait()
        finally:
            timer.cancel()
        self.reader.join()
        self.process.stdout.close()
        self.process.stderr.close()
        return support.Result(self.command, code, out, "".join(self.lines))


class LaunchersTest(support.LockstepTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        with mock.patch.dict(os.environ, CLEAN, clear=True):
            cls.train("twin", ranks=2)  # what every other way of starting two ranks must compute

    def start(self, arguments, variables=None, before=()):
        started = Started([*before, *self.command(*arguments)], self.folder, variables or {})
        self.addCleanup(lambda: started.process.poll() is None and os.killpg(started.process.pid, signal.SIGKILL))
        return started

    def start_all(self, name, variables_of, *arguments, ranks=2):
        """All ranks by hand; the last one first, since the order must not matter."""
        words = ["train", "run.toml", f"--run.name={name}", *arguments]
        return [self.start(words, variables_of(rank)) for rank in reversed(range(ranks))][::-1]

    def assert_same_as_twin(self, name):
        self.assertEqual(self.losses(name), self.losses("twin"))
        self.assertEqual(self.tensors(name, 6), self.tensors("twin", 6))

    def run_alone(self, variables, *arguments):
        return self.start(arguments, variables).end()

    # ---- ways that work

    def test_torchrun(self):
        result = self.start(["train", "run.toml", "--run.name=torchrun"],
                            before=[TORCHRUN, "--no-python", "--nproc-per-node=2"]).end()
        self.assertEqual(result.code, 0, result)
        self.assertIn("joining 2 ranks over shared_memory (all ranks are on one host); told by torchrun: RANK=0 WORLD_SIZE=2",
                      result.err)
        self.assert_same_as_twin("torchrun")

    def test_srun_variables(self):
        results = [one.end() for one in self.start_all("slurm", lambda rank: slurm(rank, os.getpid()))]
        self.assertEqual([result.code for result in results], [0, 0], "\n".join(map(str, results)))
        self.assertIn("told by Slurm: SLURM_PROCID=0 SLURM_NTASKS=2", results[0].err)
        self.assertEqual(results[1].err + results[1].out, "")  # rank 0 alone talks
        self.assert_same_as_twin("slurm")

    def test_flags(self):
        place = f"127.0.0.1:{20000 + os.getpid() % 10000}"
        ranks = [self.start(["train", "run.toml", "--run.name=flags", "--rank", rank, "--world-size=2", "--rendezvous", place])
                 for rank in (1, 0)]
        self.assertEqual([one.end().code for one in ranks], [0, 0])
        self.assert_same_as_twin("flags")

    def test_verify_under_a_launcher(self):
        ranks = [self.start(["verify", "run.toml", "--json"], slurm(rank, 100000 + os.getpid())) for rank in (0, 1)]
        results = [one.end() for one in ranks]
        self.assertEqual([result.code for result in results], [0, 0], "\n".join(map(str, results)))
        self.assertTrue(results[0].json()["ok"])
        self.assertEqual(results[1].out, "")

    def test_pods_start_their_own_ranks(self):
        result = self.run_alone({"RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "pod-0", "MASTER_PORT": 29500},
                                "train", "run.toml", "--run.name=pod", "-n", "2")
        self.assertEqual(result.code, 0, result)
        self.assert_same_as_twin("pod")

    def test_sigterm_through_torchrun_saves(self):
        job = self.start(["train", "run.toml", "--run.name=term", "--train.steps=100000"],
                         before=[TORCHRUN, "--no-python", "--nproc-per-node=2"])
        metrics = self.run_folder("term") / "metrics.jsonl"
        self.wait_until(lambda: metrics.exists() and metrics.read_text().count("train/loss") >= 2)
        job.process.send_signal(signal.SIGTERM)  # torchrun passes it on
        job.end()
        stops = [event for event in self.metrics("term")[1] if event["event"] == "stop"]
        self.assertEqual([event["code"] for event in stops], [SAVED])
        self.assertTrue((self.step_folder("term", stops[0]["step"]) / "manifest.json").exists())

    def test_torchrun_starts_lost_ranks_again(self):
        steps = ["--train.steps=300", "--checkpoint.every=20"]
        self.train("calm", *steps, ranks=2)
        job = self.start(["train", "run.toml", "--run.name=again", *steps],
                         before=[TORCHRUN, "--no-python", "--nproc-per-node=2", "--max-restarts=1"])
        saved = self.step_folder("again", 20) / "manifest.json"
        self.wait_until(saved.exists)
        os.kill(max(support.children(job.process.pid)), signal.SIGKILL)
        result = job.end()
        self.assertEqual(result.code, 0, result)
        self.assertEqual([event["event"] for event in self.metrics("again")[1]].count("resume"), 1)
        self.assertEqual(self.losses("again"), self.losses("calm"))
        self.assertEqual(self.tensors("again", 300), self.tensors("calm", 300))

    def test_torchrun_shows_our_error_as_root_cause(self):
        result = self.start(["train", "run.toml", "--run.name=fails", "--checkpoint.resume=nowhere"],
                            before=[TORCHRUN, "--no-python", "--nproc-per-node=2"]).end()
        self.assertEqual(result.code, 1, result)
        self.assertRegex(result.err.partition("Root Cause")[2], r"error LS13\d\d")

    def wait_until(self, condition):
        for _ in range(support.SECONDS * 50):
            if condition():
                return
            time.sleep(0.02)
        self.fail("nothing happened")

    # ---- what goes wrong

    def test_a_rank_that_never_comes_is_named(self):
        words = ["train", "run.toml", "--run.name=absent", "--train.join_timeout=10s", "--train.micro_batch=1"]
        ranks = {rank: self.start(words, slurm(rank, 200000 + os.getpid(), 4, "4")) for rank in (3, 1, 0)}
        results = [ranks[rank].end() for rank in (0, 1, 3)]
        self.assertEqual([result.code for result in results], [PEER_LOST] * 3, "\n".join(map(str, results)))
        for rank, result in zip((0, 1, 3), results):
            self.assertIn(f"[rank {rank}] error LS3123: rank 2 never came", result.err)
        self.assertFalse(self.run_folder("absent").exists())

    def test_a_stale_rank_of_a_killed_job_is_in_nobodys_way(self):
        job = 300000 + os.getpid()
        stale = self.start(["train", "run.toml", "--run.name=stale"], slurm(0, job))
        self.wait_until(lambda: any("joining" in line for line in stale.lines))
        stale.process.kill()
        stale.end()
        results = [one.end() for one in self.start_all("stale", lambda rank: slurm(rank, job))]
        self.assertEqual([result.code for result in results], [0, 0], "\n".join(map(str, results)))
        self.assert_same_as_twin("stale")

    def test_nothing_is_left_behind(self):
        lost = [self.start(["train", "run.toml", "--run.name=lost", "--train.steps=100000"], slurm(rank, 400000 + os.getpid()))
                for rank in (0, 1)]
        metrics = self.run_folder("lost") / "metrics.jsonl"
        self.wait_until(lambda: metrics.exists() and "train/loss" in metrics.read_text())
        maps = Path(f"/proc/{lost[0].process.pid}/maps").read_text()
        self.assertIn("/memfd:lockstep (deleted)", maps)  # the memory that they share has no name to be left
        self.assertNotIn("/dev/shm", maps)
        lost[1].process.kill()
        lost[1].end()
        result = lost[0].end()
        self.assertEqual(result.code, PEER_LOST, result)
        self.assertIn(f"rank 1 (process {lost[1].process.pid}) died", result.err)

    def test_another_jobs_token_is_refused(self):
        job = 500000 + os.getpid()
        right = {"LOCKSTEP_JOB_TOKEN": "right"}
        words = ["train", "run.toml", "--run.name=token"]
        rank0 = self.start(words, {**slurm(0, job), **right})
        stranger = self.start(words, {**slurm(1, job), "LOCKSTEP_JOB_TOKEN": "wrong"}).end()
        self.assertEqual(stranger.code, ENVIRONMENT, stranger)
        self.assertIn("LS3124", stranger.err)
        self.assertIn("[rank 1] error", stranger.err)
        rank1 = self.start(words, {**slurm(1, job), **right}).end()
        self.assertEqual([rank0.end().code, rank1.code], [0, 0], rank1)

    def refused_together(self, name, first, second, *texts, verb=("train", "run.toml")):
        """Two ranks by hand with flags of their own: both end with the same refusal, and nothing of a run is there."""
        place = f"127.0.0.1:{20000 + os.getpid() % 10000}"
        ranks = [self.start([*verb, *words, "--rank", rank, "--world-size=2", "--rendezvous", place])
                 for rank, words in ((1, second), (0, first))][::-1]
        results = [one.end() for one in ranks]
        self.assertEqual([result.code for result in results], [USAGE] * 2, "\n".join(map(str, results)))
        told = [result.err.partition(f"[rank {rank}] error ")[2] for rank, result in enumerate(results)]
        self.assertEqual(told[0], told[1])
        for text in "LS1103", *texts:
            self.assertIn(text, told[0])
        self.assertFalse(self.run_folder(name).exists())

    def test_ranks_with_other_values_are_refused(self):
        run = "--run.name=differs"
        self.refused_together("differs", [run, "--optimizer.lr=1e-4"], [run, "--optimizer.lr=1e-1", "--train.seed=99"],
                              "optimizer.lr: 1e-04 on rank 0 (--optimizer.lr, on ", "0.1 on rank 1 (--optimizer.lr, on ",
                              "train.seed: 1234 on rank 0 (default, on ", "99 on rank 1 (--train.seed, on ")

    def test_ranks_with_other_layouts_types_and_backends_are_refused(self):
        run = "--run.name=differs"
        for field, value in (("parallel.tp", "2"), ("parallel.tp", "3"), ("parallel.pp", "2"), ("train.precision", "bf16"),
                             ("parallel.backend", "nccl")):
            with self.subTest(field=field, value=value):
                self.refused_together("differs", [run], [run, f"--{field}={value}"], f"{field}: ")

    def test_ranks_with_other_data_are_refused(self):
        run = "--run.name=differs"
        self.refused_together("differs", [run], [run, "--data.train=held"],
                              "data.train: .bin: ", "data.train: .idx: ", "held.idx, on ")

    def test_what_may_differ_may(self):
        for suffix in ".bin", ".idx":
            shutil.copy(self.folder / f"austen{suffix}", self.folder / f"copy{suffix}")
        own = [["--train.threads=1"], ["--train.threads=2", "--data.train=copy"]]
        ranks = [self.start(["train", "run.toml", "--run.name=own", *own[rank]], slurm(rank, 600000 + os.getpid()))
                 for rank in (1, 0)]
        self.assertEqual([one.end().code for one in ranks], [0, 0])

    def test_other_verbs_compare_too(self):
        self.refused_together("differs", ["--steps=1"], ["--steps=2"], "--steps: 1 on rank 0", verb=("verify", "run.toml"))
        self.refused_together("differs", ["--prompt=It"], ["--prompt=He"], "--prompt: It on rank 0 (on ", "He on rank 1 (on ",
                              verb=("generate", "runs/twin"))

    def test_heads_are_judged_after_the_ranks_have_compared(self):
        """runs/twin has 12 heads: 5 ranks cannot share them, but that they were told two prompts is said first."""
        place = f"127.0.0.1:{20000 + os.getpid() % 10000}"
        for prompts, code, text in ((["It", "He", "It", "It", "It"], "LS1103", "--prompt"),
                                    (["It"] * 5, "LS1007", "heads(12) % tp(5) = 2")):
            ranks = [self.start(["generate", "runs/twin", f"--prompt={prompts[rank]}", "--rank", rank, "--world-size=5",
                                 "--rendezvous", place]) for rank in range(5)]
            results = [one.end() for one in ranks]
            self.assertTrue(any(result.code == USAGE and code in result.err for result in results), results)
            for result in results:  # a rank may have heard it of another: LS3003
                self.assertIn(text, result.err)

    def test_several_hosts_without_a_backend_are_refused(self):
        for variables, words in ((slurm(0, 1, 2, "1(x2)"), "1 of 2 ranks are on this host"),
                                 ({"PMI_RANK": 0, "PMI_SIZE": 2}, "nothing says how many ranks are on this host"),
                                 ({"RANK": 1, "WORLD_SIZE": 2, "MASTER_ADDR": "pod-0", "MASTER_PORT": 1}, "1 of 2 ranks")):
            result = self.run_alone(variables, "train", "run.toml")
            self.assertEqual(result.code, ENVIRONMENT, result)
            for text in "LS3121", words, "mpirun":
                self.assertIn(text, result.err)

    def test_ranks_of_several_hosts_meet_over_tcp(self):
        """Each rank takes itself for the only one of its host. That they met shows in how far they come: to NCCL, which without a
        GPU or its library refuses by a code of its own."""
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        words = ["train", "run.toml", "--run.name=tcp", "--train.device=cuda"]
        by_flags = [self.start([*words, "--rank", rank, "--world-size", 2, "--local-rank", 0, "--local-size", 1, "--rendezvous",
                                f"127.0.0.1:{port}"]) for rank in (1, 0)]
        self.assert_met([one.end() for one in by_flags])
        agents = [self.start(words, before=[TORCHRUN, "--no-python", "--nnodes=2", f"--node-rank={rank}", "--nproc-per-node=1",
                                            "--master-addr=127.0.0.1", f"--master-port={port}"]) for rank in (1, 0)]
        self.assert_met([one.end() for one in agents])

    def assert_met(self, results):
        self.assertTrue(any("joining 2 ranks over nccl" in result.err for result in results), "\n".join(map(str, results)))
        for result in results:
            self.assertNotIn("LS31", result.err, result)
            if Path("/dev/nvidiactl").exists() and (support.BUILD / "liblockstep_nccl.so").exists():
                self.assertEqual(result.code, 0, result)
            else:
                self.assertNotEqual(result.code, 0, result)  # torchrun has one of its own
                self.assertIn("LS304", result.err)

    def test_a_port_on_the_network_needs_a_token(self):
        result = self.run_alone({}, "train", "run.toml", "--train.device=cuda", "--rank=0", "--world-size=2", "--local-rank=0",
                                "--local-size=1", "--rendezvous=203.0.113.1:29500")
        self.assertEqual(result.code, ENVIRONMENT, result)
        for text in "LS3124", "203.0.113.1:29500", "LOCKSTEP_JOB_TOKEN":
            self.assertIn(text, result.err)

    def test_a_backend_is_never_replaced_by_another(self):
        refused = {("mpi", "cpu"): ("LS3121", "mpirun"), ("nccl", "cpu"): ("LS3121", "train.device")}
        for (backend, device), texts in refused.items():
            result = self.run_alone({}, "train", "run.toml", "-n", "2", f"--parallel.backend={backend}",
                                    f"--train.device={device}")
            self.assertEqual(result.code, ENVIRONMENT, result)
            for text in texts:
                self.assertIn(text, result.err)

    def test_ranks_cannot_start_ranks(self):
        for flag in ["-n", "2"], ["--max-restarts", "3"]:
            result = self.run_alone(open_mpi(1, 4), "train", "run.toml", *flag)
            self.assertEqual(result.code, USAGE, result)
            for text in "LS1005", flag[0], "OMPI_COMM_WORLD_RANK=1":
                self.assertIn(text, result.err)

    def test_contradictions_name_the_variables(self):
        result = self.run_alone(open_mpi(4, 4), "train", "run.toml")
        self.assertEqual(result.code, USAGE, result)
        for words in "LS1061", "OMPI_COMM_WORLD_RANK=4", "OMPI_COMM_WORLD_SIZE=4":
            self.assertIn(words, result.err)

    def test_verbs_that_do_not_compute_do_not_care(self):
        self.assertEqual(self.run_alone(open_mpi(1, 4), "show", "layout", "run.toml", "-n", "2").code, 0)


if __name__ == "__main__":
    support.main()
