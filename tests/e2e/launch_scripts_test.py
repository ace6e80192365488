"""What `lockstep launch --print` writes: scripts that bash runs, with stand-ins for srun, scontrol, mpirun and torchrun; and a
manifest as YAML. launch_scripts_test.py BUILD_FOLDER"""
import json
import os
import re
import signal
import subprocess
import time

import support
import yaml

USAGE, ENVIRONMENT, SAVED = 2, 3, 75
NASTY = "it's $(touch pwned) `x`\n#SBATCH --wrap=\"y\" *"

# Writes its arguments down, then ends with the next code of the file `codes`.
STAND_IN = """#!/usr/bin/env python3
import json, os, sys
open(os.environ["CALLS"], "a").write(json.dumps([os.path.basename(sys.argv[0]), *sys.argv[1:]]) + "\\n")
codes = open(os.environ["CODES"]).read().split()
open(os.environ["CODES"], "w").write(" ".join(codes[1:]))
print(end="", flush=True)
sys.exit(int(codes[0]))
"""
# As srun: starts the ranks with Slurm's variables, passes SIGUSR1 on, ends with the highest code.
SRUN = """#!/usr/bin/env python3
import os, signal, subprocess, sys
size = int([word.partition("=")[2] for word in sys.argv if word.startswith("--ntasks=")][0])
command = [word for word in sys.argv[1:] if not word.startswith("--ntasks=") and not word.startswith("--kill")
           and not word.startswith("--cpus")]
ranks = [subprocess.Popen(command, env={**os.environ, "SLURM_STEP_ID": "0", "SLURM_PROCID": str(rank), "SLURM_NTASKS": str(size),
                                        "SLURM_LOCALID": str(rank), "SLURM_STEP_TASKS_PER_NODE": str(size)})
         for rank in range(size)]
signal.signal(signal.SIGUSR1, lambda *_: [rank.send_signal(signal.SIGUSR1) for rank in ranks])
sys.exit(max(rank.wait() for rank in ranks))
"""


class ScriptsTest(support.LockstepTest):
    def setUp(self):
        self.bin = self.folder / f"bin-{self._testMethodName}"
        self.bin.mkdir()
        self.calls, self.codes = self.bin / "calls", self.bin / "codes"
        self.env = {**os.environ, "PATH": f"{self.bin}:{os.environ['PATH']}", "CALLS": str(self.calls),
                    "CODES": str(self.codes), "SLURM_JOB_ID": "4711"}

    def stand_in(self, name, text=STAND_IN):
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    def written(self, system, *arguments):
        return self.do("launch", "--print", system, "run.toml", *arguments).out

    def script(self, system, *arguments):
        path = self.bin / f"{system}.sh"
        path.write_text(self.written(system, *arguments))
        checked = subprocess.run(["bash", "-n", path], capture_output=True, text=True)
        self.assertEqual((checked.returncode, checked.stderr), (0, ""))
        return path

    def run_script(self, path, *codes):
        self.codes.write_text(" ".join(map(str, codes)))
        self.calls.write_text("")
        done = subprocess.run(["bash", path], cwd=self.folder, env=self.env, capture_output=True, text=True,
                              timeout=support.SECONDS)
        calls = [json.loads(line) for line in self.calls.read_text().splitlines()]
        return done.returncode, calls

    # ---- Slurm

    def test_slurm_requeues_on_75_alone(self):
        self.stand_in("srun")
        self.stand_in("scontrol")
        path = self.script("slurm", "-n", 4)
        self.assertIn("#SBATCH --requeue\n", path.read_text())
        self.assertIn("#SBATCH --signal=B:USR1@600\n", path.read_text())
        code, calls = self.run_script(path, SAVED, 0)
        self.assertEqual((code, [call[0] for call in calls]), (SAVED, ["srun", "scontrol"]))
        self.assertEqual(calls[0][1:], ["--ntasks=4", "--cpus-per-task=1", "--kill-on-bad-exit=0", *self.command("train", "run.toml")])
        self.assertEqual(calls[1][1:], ["requeue", "4711"])
        for other in 0, 1, 3, 6, 130, 143:
            code, calls = self.run_script(path, other)
            self.assertEqual((code, [call[0] for call in calls]), (other, ["srun"]))

    def test_a_slurm_job_is_saved_requeued_and_finished(self):
        self.train("twin", ranks=2)
        self.stand_in("srun", SRUN)
        self.stand_in("scontrol")
        self.codes.write_text("0 0 0 0")
        long = self.script("slurm", "-n", 2, "--run.name=slurm", "--train.steps=100000")
        stopped, calls = self.signalled(long, "slurm", signal.SIGUSR1)
        self.assertEqual(stopped, SAVED)
        self.assertEqual(calls, [["scontrol", "requeue", "4711"]])
        # The same once more, by somebody who wants the job to end: saved, not requeued.
        stopped, calls = self.signalled(long, "slurm", signal.SIGTERM)
        self.assertEqual((stopped, calls), (SAVED, []))
        stops = [event["code"] for event in self.metrics("slurm")[1] if event["event"] == "stop"]
        self.assertEqual(stops, [SAVED, SAVED])

        done = subprocess.run(["bash", self.script("slurm", "-n", 2, "--run.name=whole")], cwd=self.folder, env=self.env,
                              capture_output=True, text=True, timeout=support.SECONDS)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.losses("whole"), self.losses("twin"))

    def signalled(self, script, run, number):
        """Runs a script, signals it when its ranks have trained a step, and returns its code and the calls that it made."""
        metrics = self.run_folder(run) / "metrics.jsonl"
        before = metrics.read_text().count("train/loss") if metrics.exists() else 0
        self.calls.write_text("")
        job = subprocess.Popen(["bash", script], cwd=self.folder, env=self.env, stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL, start_new_session=True)
        try:
            for _ in range(support.SECONDS * 50):
                if metrics.exists() and metrics.read_text().count("train/loss") > before:
                    break
                time.sleep(0.02)
            job.send_signal(number)
            code = job.wait(support.SECONDS)
        finally:
            if job.poll() is None:
                os.killpg(job.pid, signal.SIGKILL)
                job.wait()
        return code, [json.loads(line) for line in self.calls.read_text().splitlines()]

    def test_slurm_asks_for_what_the_job_needs(self):
        text = self.written("slurm", "-n", 8, "--nodes", 2, "--train.device=cuda", "--train.threads=3", "--time", "3h50m",
                            "--train.micro_batch=1")
        for line in ("nodes=2", "ntasks=8", "ntasks-per-node=4", "gpus-per-node=4", "cpus-per-task=3", "time=3:50:00",
                     "signal=B:USR1@600"):
            self.assertIn(f"#SBATCH --{line}\n", text)
        self.assertRegex(text, r"\nexport LOCKSTEP_JOB_TOKEN=[0-9a-f]{32}\n")  # for the port that rank 0 opens
        self.assertIn("exec srun --ntasks=8", text)
        self.assertIn("#SBATCH --signal=B:USR1@90\n", self.written("slurm", "-n", 2, "--time", "15min"))
        cpus = self.written("slurm", "-n", 8, "--nodes", 2, "--train.micro_batch=1")
        self.assertIn("exec mpirun -n 8 --map-by ppr:4:node ", cpus)
        self.assertNotIn("gpus", cpus)

    # ---- quoting

    def test_words_arrive_as_they_were_written(self):
        for system, starter in ("slurm", "srun"), ("mpirun", "mpirun"), ("torchrun", "torchrun"):
            with self.subTest(system=system):
                self.stand_in(starter)
                path = self.script(system, "-n", 2, f"--run.name={NASTY}", "--run.dir=a b")
                code, calls = self.run_script(path, 3)
                self.assertEqual(code, 3)
                self.assertEqual(calls[0][-5:], self.command("train", "run.toml", f"--run.name={NASTY}", "--run.dir=a b"))
                options = [line for line in path.read_text().splitlines() if line.startswith("#SBATCH")]
                self.assertTrue(all(re.fullmatch(r"#SBATCH --[\w.=:@%-]+", line) for line in options), options)
        self.assertFalse((self.folder / "pwned").exists())

    # ---- mpirun and torchrun

    def test_mpirun_starts_again_on_75_alone(self):
        self.stand_in("mpirun")
        path = self.script("mpirun", "-n", 2)
        code, calls = self.run_script(path, SAVED, SAVED, 0)
        self.assertEqual((code, len(calls)), (0, 3))
        code, calls = self.run_script(path, SAVED, 6)
        self.assertEqual((code, len(calls)), (6, 2))
        several = self.script("mpirun", "-n", 4, "--nodes", 2)
        self.assertNotEqual(self.run_script(several, 0)[0], 0)  # nobody has named the hosts
        self.env["HOSTS"] = "n1:2,n2:2"
        code, calls = self.run_script(several, 0)
        self.assertEqual(calls[0][calls[0].index("--host") + 1], "n1:2,n2:2")

    def test_torchrun_loses_codes_and_the_script_finds_them(self):
        # Each start adds what stands in its file, as a run's rank 0 does, and ends as torchrun does.
        self.stand_in("torchrun", "#!/bin/sh\nn=$(($(cat count) + 1)); echo $n > count\n"
                                  "cat event$n >> runs/torchrun/metrics.jsonl\ntest -f ok$n\n")
        self.run_folder("torchrun").mkdir(parents=True)
        path = self.script("torchrun", "-n", 2, "--run.name=torchrun")
        stop = '{"event":"stop","step":3,"time":1.0,"reason":"SIGTERM","code":%d}\n'

        def run(*events, ok=None):
            (self.folder / "count").write_text("0")
            (self.run_folder("torchrun") / "metrics.jsonl").write_text(stop % SAVED)  # of an earlier start
            for number, event in enumerate(events, 1):
                (self.folder / f"event{number}").write_text(event)
                (self.folder / f"ok{number}").unlink(missing_ok=True)
            if ok:
                (self.folder / f"ok{ok}").touch()
            code = subprocess.run(["bash", path], cwd=self.folder, env=self.env, timeout=support.SECONDS,
                                  stderr=subprocess.DEVNULL).returncode
            return code, int((self.folder / "count").read_text())

        self.assertEqual(run(stop % SAVED, "", ok=2), (0, 2))  # saved, started again, done
        self.assertEqual(run(stop % SAVED, stop % 130), (130, 2))
        self.assertEqual(run(""), (1, 1))  # no stop: torchrun's own code
        self.assertEqual(run('{"step":4}\n', ok=1), (0, 1))

    # ---- Kubernetes

    def manifest(self, *arguments):
        return list(yaml.safe_load_all(self.written("k8s", "--image", "registry/lockstep:1", "--claim", "work", *arguments)))

    def test_a_job_of_one_pod(self):
        [job] = self.manifest("-n", 2, "--run.name=My Run")
        self.assertEqual((job["kind"], job["metadata"]["name"]), ("Job", "my-run"))
        rules = job["spec"]["podFailurePolicy"]["rules"]
        self.assertEqual((rules[0]["action"], rules[0]["onExitCodes"]["values"]), ("Ignore", [SAVED]))
        self.assertEqual((rules[-1]["action"], rules[-1]["onExitCodes"]["operator"]), ("FailJob", "NotIn"))
        pod = job["spec"]["template"]["spec"]
        self.assertEqual(pod["restartPolicy"], "Never")  # a pod failure policy asks for it
        [container] = pod["containers"]
        self.assertEqual(container["command"], ["lockstep", "train", "run.toml", "--run.name=My Run", "-n", "2"])
        self.assertEqual(container["image"], "registry/lockstep:1")
        self.assertNotIn("env", container)

    def test_a_job_of_several_pods(self):
        secret, service, job = self.manifest("-n", 4, "--nodes", 2, "--train.device=cuda", f"--run.name={NASTY}")
        spec = job["spec"]
        self.assertEqual((spec["completionMode"], spec["completions"], spec["parallelism"]), ("Indexed", 2, 2))
        pod = spec["template"]["spec"]
        [container] = pod["containers"]
        env = {entry["name"]: entry for entry in container["env"]}
        self.assertIn("job-completion-index", env["RANK"]["valueFrom"]["fieldRef"]["fieldPath"])
        self.assertEqual(env["WORLD_SIZE"]["value"], "2")
        self.assertEqual(env["MASTER_ADDR"]["value"], f"{job['metadata']['name']}-0.{service['metadata']['name']}")
        self.assertEqual(pod["subdomain"], service["metadata"]["name"])
        self.assertEqual(service["spec"]["selector"], {"batch.kubernetes.io/job-name": job["metadata"]["name"]})
        self.assertEqual(env["LOCKSTEP_JOB_TOKEN"]["valueFrom"]["secretKeyRef"]["name"], secret["metadata"]["name"])
        self.assertEqual(len(secret["stringData"]["token"]), 32)
        self.assertEqual(container["resources"]["limits"], {"nvidia.com/gpu": 2})
        self.assertRegex(job["metadata"]["name"], r"^[a-z]([a-z0-9-]*[a-z0-9])?$")
        self.assertEqual(container["command"][4], f"--run.name={NASTY}".replace("$", "$$"))  # Kubernetes reads $$ as $

    # ---- what is refused

    def test_refusals(self):
        for words, code, texts in (
                (["run.toml"], USAGE, ["LS1003", "--print", "slurm, k8s, mpirun, torchrun"]),
                (["--print", "pbs", "run.toml"], USAGE, ["LS1005", "pbs"]),
                (["--print", "slurm"], USAGE, ["LS1004"]),
                (["--print", "slurm", "run.toml", "-n", "4", "--nodes", "3"], USAGE, ["LS1005", "--nodes 3"]),
                (["--print", "slurm", "run.toml", "-n", "3"], USAGE, ["LS1101", "dp(3)"]),
                (["--print", "mpirun", "run.toml", "--time", "1h"], USAGE, ["LS1005", "--stop-after"]),
                (["--print", "slurm", "run.toml", "--time", "90"], USAGE, ["LS1005", "unit"]),
                (["--print", "slurm", "run.toml", "--image", "x"], USAGE, ["LS1005", "--image"]),
                (["--print", "k8s", "run.toml"], USAGE, ["LS1003", "--image"]),
                (["--print", "torchrun", "run.toml", "-n", "4", "--nodes", "2"], ENVIRONMENT, ["LS3121", "mpirun"])):
            result = self.lockstep("launch", *words)
            self.assertEqual((result.code, result.out), (code, ""), result)
            for text in texts:
                self.assertIn(text, result.err)


if __name__ == "__main__":
    support.main()
