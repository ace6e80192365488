"""memory.device_limit: refused before anything starts, kept while it runs. memory_limit_test.py BUILD_FOLDER"""
import re
from pathlib import Path

import support


class MemoryLimitTest(support.LockstepTest):
    def predicted(self, *arguments, ranks=2):
        """Predicted peaks by rank."""
        shown = self.do("show", "run.toml", "memory", "--json", "-n", ranks, *arguments).json()
        return [rank["bytes"]["peak"] for rank in shown["ranks"]]

    def refuse(self, name, limit, *arguments, ranks=2):
        result = self.lockstep("train", "run.toml", f"--run.name={name}", "-n", ranks, f"--memory.device_limit={limit}",
                               *arguments)
        self.assertEqual(result.code, 4, result)
        return result

    def test_refused_before_anything_starts(self):
        result = self.refuse("tight", 1000000)
        self.assertIn("error LS4003", result.err)
        self.assertIn("memory.device_limit = 976.6 KiB (nothing was started)", result.err)
        for word in ("parameters", "gradients", "optimizer", "activations", "buffers", "peak", "cheapest ways out"):
            self.assertIn(word, result.err)
        self.assertFalse(self.run_folder("tight").exists())

    def test_a_way_out_that_is_named_is_one(self):
        limit = max(self.predicted()) - 1
        ways = re.findall(r"^\s+(\S+) = (\S+) +-\d.* %$", self.refuse("way", limit).err, re.MULTILINE)
        self.assertEqual(len(ways), 3)
        for number, (key, value) in enumerate(ways):
            self.train(f"way{number}", f"--memory.device_limit={limit}", "--{}={}".format(key, value.strip('"')), ranks=2)

    def test_the_measured_peak_is_enough(self):
        self.train("free", ranks=2)
        event = [event for event in self.metrics("free")[1] if event["event"] == "memory"][0]
        limit = max(event["measured/peak"], event["predicted/peak"])
        self.train("exact", f"--memory.device_limit={limit}", ranks=2)

    def test_kept_while_it_runs(self):
        # Scalars are not predicted: the head goes a few bytes beyond. On a parameter server that is the server, which
        # holds the optimizer; its worker leaves with it.
        for name, arguments in (("ring", []), ("server", ["--parallel.data_parallel=parameter_server"])):
            with self.subTest(name):
                result = self.refuse(name, max(self.predicted(*arguments)), *arguments)
                self.assertIn("error LS4001: rank 0 (dp_replicate0) out of memory", result.err)
                self.assertRegex(result.err, r": backward of head, microbatch \d asked \S+ \S+, \S+ \S+ free of memory.device_limit = ")
                self.assertRegex(result.err, r"predicted +measured\n")
                for word in ("activations", "peak", "cheapest ways out"):
                    self.assertIn(word, result.err)
                self.assertEqual(self.left_over(name), [])

    @staticmethod
    def left_over(name):
        """Processes of the run that are still there."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                words = (folder / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue  # it has just ended
            if f"--run.name={name}".encode() in words and support.alive(int(folder.name)):
                found.append(words)
        return found


if __name__ == "__main__":
    support.main()
