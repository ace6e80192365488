"""Models whose states are several times what the device may hold: on the host, and on disk. offload_test.py BUILD_FOLDER"""
import os
import signal
import subprocess
import time

import support

ELEMENT = 16  # bytes of states in fp32: parameter, gradient, two moments
# One microbatch: gradients of several are added up on the host, and not inside the products.
MODEL = ("--model.preset=llama-test", "--model.layers=16", "--model.hidden=96", "--train.micro_batch=2", "--train.global_batch=2",
         "--checkpoint.every=0")
EVERYTHING = ("--memory.recompute=full", "--memory.offload=optimizer,parameters,activations")


class OffloadTest(support.LockstepTest):
    def parameters(self):
        shown = self.do("show", "run.toml", "memory", "--json", "-n", 1, *MODEL).json()
        return shown["ranks"][0]["bytes"]["parameters"] // 4

    def host_bytes(self, *arguments, ranks=1):
        shown = self.do("show", "run.toml", "memory", "--json", "-n", ranks, *MODEL, *EVERYTHING, *arguments).json()
        return max(rank["bytes"]["host"] for rank in shown["ranks"])

    def free(self, arguments=(), ranks=1):
        """Losses of the same run without offload."""
        name = f"free{ranks}"
        self.train(name, *MODEL, *arguments, ranks=ranks)
        return self.losses(name)

    def test_states_four_times_the_device(self):
        limit = self.parameters() * ELEMENT // 4
        refused = self.lockstep("train", "run.toml", "--run.name=refused", "-n", 1, *MODEL, f"--memory.device_limit={limit}")
        self.assertEqual(refused.code, 4, refused)
        result = self.train("host", *MODEL, *EVERYTHING, f"--memory.device_limit={limit}")
        self.assertRegex(result.out + result.err, r"copied \S+ \S+ between host and device in .*, \d+\.\d % of it hidden")
        self.assertEqual(self.losses("host"), self.free())

    def test_what_the_host_has_no_room_for_goes_to_disk(self):
        limit = self.parameters() * ELEMENT // 4
        host = self.host_bytes() * 2 // 3
        arguments = (*MODEL, *EVERYTHING, f"--memory.host_limit={host}", f"--memory.disk_path={self.folder / 'spill'}")
        self.train("disk", *arguments, f"--memory.device_limit={limit}")
        self.assertEqual(self.losses("disk"), self.free())
        event = [event for event in self.metrics("disk")[1] if event["event"] == "memory"][0]
        self.assertLessEqual(event["measured/host"], host)
        self.assertEqual(list((self.folder / "spill").iterdir()), [])
        traffic = self.do("show", "run.toml", "traffic", "-n", 1, *arguments).out
        self.assertIn("on disk: the states of", traffic)

    def test_a_limit_without_a_disk_is_refused(self):
        result = self.lockstep("train", "run.toml", "-n", 1, *MODEL, *EVERYTHING, f"--memory.host_limit={self.host_bytes() // 2}")
        self.assertEqual(result.code, 2, result)
        self.assertIn("LS4010", result.err)

    def test_shards_of_two_ranks_on_host_and_disk(self):
        sharded = ("--parallel.zero=3", "--train.micro_batch=1")
        expected = self.free(sharded, ranks=2)
        self.train("shards", *MODEL, *sharded, *EVERYTHING, ranks=2)
        self.assertEqual(self.losses("shards"), expected)
        host = self.host_bytes(*sharded, ranks=2) * 2 // 3
        self.train("spilled", *MODEL, *sharded, *EVERYTHING, f"--memory.host_limit={host}",
                   f"--memory.disk_path={self.folder / 'shards'}", ranks=2)
        self.assertEqual(self.losses("spilled"), expected)

    def test_a_killed_run_goes_on_from_its_checkpoint(self):
        sharded = ("--parallel.zero=3", "--train.micro_batch=1", "--train.steps=40", "--checkpoint.every=4", "--checkpoint.keep=0")
        host = self.host_bytes(*sharded, ranks=2) * 2 // 3
        arguments = (*MODEL, *sharded, *EVERYTHING, f"--memory.host_limit={host}", f"--memory.disk_path={self.folder / 'lost'}")
        self.train("whole", *arguments, ranks=2)
        job = subprocess.Popen(self.command("train", "run.toml", "--run.name=killed", "-n", 2, *arguments), cwd=self.folder,
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        end = time.monotonic() + support.SECONDS
        while not self.step_folder("killed", 4).exists() and time.monotonic() < end:
            time.sleep(0.01)
        ranks = {support.rank_of(pid): pid for pid in support.children(job.pid)}
        os.kill(ranks[1], signal.SIGKILL)
        _, text = job.communicate(timeout=support.SECONDS)
        self.assertNotEqual(job.returncode, 0, text)
        self.assertIn("rank 1", text)
        self.assertEqual(list((self.folder / "lost").iterdir()), [])
        self.train("killed", *arguments, ranks=2)
        self.assertEqual(self.losses("killed"), self.losses("whole"))


if __name__ == "__main__":
    support.main()
