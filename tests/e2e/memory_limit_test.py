"""Runs that do not fit memory.device_limit or the host: refused before anything starts. memory_limit_test.py BUILD_FOLDER"""
import re
import socket
import subprocess

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

    def test_the_predicted_peak_is_enough(self):
        # Short rows: a chunk of the head is then smaller than what its product packs. On a parameter server one rank alone
        # holds the optimizer.
        for name, arguments in (("ring", []), ("short", ["--train.seq_len=20", "--train.micro_batch=1"]),
                                ("server", ["--parallel.data_parallel=parameter_server"])):
            with self.subTest(name):
                limit = max(self.predicted(*arguments))
                self.train(name, f"--memory.device_limit={limit}", *arguments, ranks=2)
                event = [event for event in self.metrics(name)[1] if event["event"] == "memory"][0]
                self.assertLessEqual(event["measured/peak"], event["predicted/peak"])

    def launched(self, *arguments):
        """Two ranks that are started by hand: the exit code of one, and what both say."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            place = f"127.0.0.1:{free.getsockname()[1]}"
        ranks = [subprocess.Popen(self.command(*arguments, "--rank", rank, "--world-size", 2, "--rendezvous", place),
                                  cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for rank in (0, 1)]
        said = [rank.communicate(timeout=support.SECONDS)[1] for rank in ranks]
        self.assertEqual(ranks[0].returncode, ranks[1].returncode, said)
        return support.Result(list(arguments), ranks[0].returncode, "", "".join(said))

    # So large that no machine holds it: every way to start ranks refuses it in the same way, before there is a run directory.
    def test_without_a_limit_the_host_is(self):
        large = ["--model.layers=8", "--model.hidden=131072", "--model.heads=1024", "--model.ffn=524288"]
        for name, verb, ranks in (("train", "train", ["-n", 2]), ("verify", "verify", ["-n", 2]), ("alone", "train", ["-n", 1]),
                                  ("launched", "train", [])):
            with self.subTest(name):
                start = self.lockstep if ranks else self.launched
                result = start(verb, "run.toml", f"--run.name={name}", *ranks, *large)
                self.assertEqual(result.code, 4, result)
                self.assertRegex(result.err, r"error LS4003: .* would .*need .*TiB.*, but .* are left on this host \(.*nothing was started\)")
                self.assertIn("cheapest ways out", result.err)
                self.assertNotIn("memory.offload", result.err)
                self.assertFalse(self.run_folder(name).exists())
        shown = self.lockstep("show", "run.toml", "memory", "-n", 2, *large)
        self.assertEqual(shown.code, 4, shown)
        self.assertIn("does not fit: 2 ranks of this host would together need", shown.out)
        self.assertIn("cheapest ways out", shown.out)
        # Elsewhere: GPUs, or a machine of which is said what a rank may have.
        self.do("show", "run.toml", "memory", "-n", 2, *large, "--train.device=cuda")
        self.assertTrue(self.do("show", "run.toml", "memory", "-n", 2, "--json", *large, "--memory.device_limit=9999TiB").json()["fits"])
        fits = self.lockstep("show", "run.toml", "memory", "-n", 2, "--json", *large, "--memory.device_limit=1GiB")
        self.assertEqual(fits.code, 4, fits)
        shown = fits.json()
        self.assertFalse(shown["fits"])
        self.assertEqual(shown["shortfalls"][0]["of"], "device_limit")
        self.assertEqual(shown["shortfalls"][0]["needed"], max(rank["bytes"]["peak"] for rank in shown["ranks"]))


if __name__ == "__main__":
    support.main()
