"""Runs that are asked to save, to stop or to say what they do, and ranks that are lost. stop_test.py BUILD_FOLDER"""
import json
import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import support

STEPS = 1000000


class StopTestCase(support.LockstepTest):
    def start(self, name, *arguments, ranks=2, steps=STEPS, ignored=()):
        """A run that goes on for ever, at its third step or later."""
        # A shell's background job ignores SIGINT; this one is to hear it.
        def set_signals():
            for number in (signal.SIGINT, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)

        process = subprocess.Popen(self.command("train", "run.toml", f"--run.name={name}", "-n", ranks,
                                                f"--train.steps={steps}", *arguments),
                                   cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   preexec_fn=set_signals)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        self.wait_until(lambda: process.poll() is not None or self.steps_done(name) >= 3, "no step was made")
        self.assertIsNone(process.poll(), "it ended by itself")
        return process

    def wait_until(self, condition, otherwise, seconds=support.SECONDS):
        deadline = time.monotonic() + seconds
        while not condition():
            self.assertLess(time.monotonic(), deadline, otherwise)
            time.sleep(0.02)

    def steps_done(self, name):
        path = self.run_folder(name) / "metrics.jsonl"
        return path.read_text().count("\n") if path.exists() else 0

    def check_ended(self, process, code):
        _, err = process.communicate(timeout=support.SECONDS)
        self.assertEqual(process.returncode, code, err)
        return err

    def check_stopped(self, name, code):
        """There is a checkpoint of the last step and a last event that says `code`; returns the step."""
        steps, events = self.metrics(name)
        last = steps[-1]["step"]
        self.assertEqual((events[-1]["event"], events[-1]["step"], events[-1]["code"]), ("stop", last, code))
        self.assertTrue((self.step_folder(name, last) / "manifest.json").is_file())
        self.assertFalse((self.run_folder(name) / "DONE").exists())
        return last


class SignalTest(StopTestCase):
    def check_signal(self, name, number, code, ranks=2):
        process = self.start(name, ranks=ranks)
        process.send_signal(number)
        err = self.check_ended(process, code)
        self.assertNotIn("exit code", err)
        self.assertNotIn("ended by", err)
        return self.check_stopped(name, code)

    def test_sigterm_saves_and_the_run_goes_on_as_if_nothing_had_been(self):
        last = self.check_signal("term", signal.SIGTERM, 75)
        result = self.train("term", f"--train.steps={last + 3}", ranks=2)
        self.assertIn(f"at step {last}", result.err)
        self.train("whole", f"--train.steps={last + 3}", ranks=2)
        self.assertEqual(self.losses("term"), self.losses("whole"))
        self.assertTrue((self.run_folder("term") / "DONE").exists())

    def test_one_rank_alone_listens_too(self):
        self.check_signal("alone", signal.SIGTERM, 75, ranks=1)

    def test_sigusr1_saves(self):
        self.check_signal("usr1", signal.SIGUSR1, 75)

    def test_sighup_saves(self):
        self.check_signal("hup", signal.SIGHUP, 75)

    def test_below_nohup_the_run_goes_on(self):
        process = self.start("nohup", ignored=[signal.SIGHUP])
        for target in (process.pid, *support.children(process.pid)):
            os.kill(target, signal.SIGHUP)
        done = self.steps_done("nohup")
        self.wait_until(lambda: self.steps_done("nohup") > done + 2, "it did not go on")
        process.send_signal(signal.SIGTERM)
        self.check_ended(process, 75)

    def test_a_question_while_the_program_loads_does_not_end_it(self):
        process = subprocess.Popen(self.command("train", "run.toml", "--run.name=early", "--train.steps=3"),
                                   cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        maps = Path(f"/proc/{process.pid}/maps")
        # LibTorch is being mapped: from here on, again and again until the run has ended.
        self.wait_until(lambda: process.poll() is not None or "libtorch_cpu" in maps.read_text(), "it loads nothing")
        while process.poll() is None:
            process.send_signal(signal.SIGUSR2)
            time.sleep(0.01)
        self.check_ended(process, 0)

    def test_sigint_saves_and_says_that_a_person_did_it(self):
        self.check_signal("int", signal.SIGINT, 130)

    def test_a_signal_to_one_rank_stops_all(self):
        process = self.start("one")
        os.kill(max(support.children(process.pid), key=support.rank_of), signal.SIGTERM)
        self.check_ended(process, 75)
        self.check_stopped("one", 75)

    def check_second(self, name, number, code, spoken):
        process = self.start(name)
        pids = support.children(process.pid)
        os.kill(pids[-1], signal.SIGSTOP)  # so that they cannot save
        process.send_signal(number)
        time.sleep(0.2)
        process.send_signal(number)
        err = self.check_ended(process, code)
        self.assertIn(f"ended by {spoken} before a checkpoint was complete", err)
        self.assertFalse([pid for pid in pids if support.alive(pid)], err)
        self.assertEqual(list(self.run_folder(name).rglob("manifest.json")), [])

    def test_a_second_signal_ends_at_once(self):
        self.check_second("second", signal.SIGTERM, 143, "SIGTERM")
        self.check_second("second-int", signal.SIGINT, 130, "SIGINT")

    def test_a_question_is_answered_by_every_rank(self):
        process = self.start("question")
        logs = [self.run_folder("question") / "logs" / f"rank-{rank:04d}.log" for rank in range(2)]
        process.send_signal(signal.SIGUSR2)
        self.wait_until(lambda: all("stack, innermost first" in log.read_text() for log in logs), "no answer")
        for rank, log in enumerate(logs):
            text = log.read_text()
            self.assertIn(f"rank {rank} was asked what it does", text)
            self.assertIn("last calls on group checkpoint, newest last:", text)
            self.assertRegex(text, r"all_reduce #\d+ 'reduce_grad|all_reduce #\d+ 'stop'")
            self.assertIn("lockstep::train::Trainer::", text.partition("stack, innermost first")[2])
        done = self.steps_done("question")
        self.wait_until(lambda: self.steps_done("question") > done + 2, "it did not go on")
        process.send_signal(signal.SIGTERM)
        self.assertIn("rank 0 was asked what it does", self.check_ended(process, 75))
        self.assertIn("rank 1 was asked", (self.run_folder("question") / "logs" / "rank-0001.out").read_text())


class SwitchTest(StopTestCase):
    def test_the_file_stop_saves_and_ends_well(self):
        process = self.start("stop")
        (self.run_folder("stop") / "stop").touch()
        self.assertIn("stopped by the file 'stop'", self.check_ended(process, 0))
        self.check_stopped("stop", 0)
        self.assertFalse((self.run_folder("stop") / "stop").exists())

    def test_the_file_save_saves_and_goes_on(self):
        process = self.start("save")
        (self.run_folder("save") / "save").touch()
        self.wait_until(lambda: any(event["event"] == "checkpoint" for event in self.whole_events("save")), "no checkpoint")
        self.assertFalse((self.run_folder("save") / "save").exists())
        done = self.steps_done("save")
        self.wait_until(lambda: self.steps_done("save") > done + 2, "it did not go on")
        process.send_signal(signal.SIGTERM)
        self.check_ended(process, 75)

    def whole_events(self, name):
        text = (self.run_folder(name) / "metrics.jsonl").read_text()
        rows = [json.loads(line) for line in text[:text.rfind("\n") + 1].splitlines()]
        return [row for row in rows if "event" in row]

    def test_stop_after(self):
        result = self.lockstep("train", "run.toml", "--run.name=after", "-n", 2, f"--train.steps={STEPS}", "--stop-after", "1s")
        self.assertEqual(result.code, 75, result)
        self.check_stopped("after", 75)

    def test_nonsense_is_refused(self):
        for flags in (("--stop-after", "3"), ("--max-restarts", "-1")):
            result = self.lockstep("train", "run.toml", *flags)
            self.assertEqual(result.code, 2, result)
            self.assertIn("LS1005", result.err)


class LostRankTest(StopTestCase):
    def check_gone(self, pids):
        self.wait_until(lambda: not any(map(support.alive, pids)), "orphans", seconds=10)

    def test_a_killed_rank_is_named_in_one_line_and_leaves_nothing(self):
        shared_before = set(os.listdir("/dev/shm"))
        process = self.start("killed", "--train.global_batch=12", ranks=3)
        pids = support.children(process.pid)
        os.kill(next(pid for pid in pids if support.rank_of(pid) == 1), signal.SIGKILL)
        process.wait(timeout=10)
        err = self.check_ended(process, 6)
        self.assertEqual(err.count("rank 1 was ended by signal 9 (Killed)\n"), 1, err)
        self.check_gone(pids)
        self.assertEqual([name for name in set(os.listdir("/dev/shm")) - shared_before if "lockstep" in name], [])

    def test_a_rank_that_hangs_is_named_at_the_deadline(self):
        process = self.start("hung", "--train.comm_timeout=2s")
        pids = support.children(process.pid)
        os.kill(next(pid for pid in pids if support.rank_of(pid) == 1), signal.SIGSTOP)
        err = self.check_ended(process, 6)
        self.assertIn("LS3002", err)
        self.assertRegex(err, r"rank 1\b")
        self.check_gone(pids)

    def test_lost_ranks_are_started_again_and_come_to_the_end(self):
        process = self.start("again", "--max-restarts=1", "--checkpoint.every=2", "--checkpoint.resume=none", steps=400)
        self.wait_until(lambda: self.step_folder("again", 2).parent.exists() and self.steps_done("again") > 5, "no checkpoint")
        os.kill(max(support.children(process.pid), key=support.rank_of), signal.SIGKILL)
        err = self.check_ended(process, 0)
        self.assertIn("rank 1 was ended by signal 9 (Killed)\nstarting all ranks again (1 of 1 restarts)\n", err)
        self.assertIn("resumed from", err)
        self.assertTrue((self.run_folder("again") / "DONE").exists())
        self.train("unbroken", "--train.steps=400", ranks=2)
        self.assertEqual(self.losses("again"), self.losses("unbroken"))


class OneRunTest(StopTestCase):
    def test_a_second_run_in_the_folder_is_refused(self):
        process = self.start("held")
        rank_0 = next(pid for pid in support.children(process.pid) if support.rank_of(pid) == 0)
        result = self.lockstep("train", "run.toml", "--run.name=held", "-n", 2, "--train.steps=3")
        self.assertEqual(result.code, 8, result)
        self.assertIn(f"LS1315: another run trains in runs/held: process {rank_0} on {socket.gethostname()}", result.err)
        done = self.steps_done("held")
        self.wait_until(lambda: self.steps_done("held") > done + 2, "the first did not go on")
        process.send_signal(signal.SIGTERM)
        self.check_ended(process, 75)
        last = self.check_stopped("held", 75)
        self.assertIn(f"at step {last}", self.train("held", f"--train.steps={last + 1}").err)

    def test_the_lock_of_a_killed_run_is_taken_over_at_once(self):
        process = self.start("killed-run", ranks=1)
        process.kill()
        process.communicate(timeout=support.SECONDS)
        self.train("killed-run", "--train.steps=3")
        self.assertIn(f"took the run directory over from process {process.pid}",
                      (self.run_folder("killed-run") / "logs" / "rank-0000.log").read_text())


if __name__ == "__main__":
    support.main()
