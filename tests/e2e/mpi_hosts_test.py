"""Four ranks on two "hosts" of this machine, network namespaces with a cable between them: the bits are those of four
ranks of one host. mpi_hosts_test.py BUILD_FOLDER

mpirun runs in the first namespace and starts its daemon in the second through an agent, as it would by ssh. Ranks of one
host talk through shared memory of MPI's, those of two over TCP on the cable.
"""
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import mpirun
import support

HOSTS = {"a": "10.213.77.1", "b": "10.213.77.2"}
NETWORK = "10.213.77.0/24"


def name_of(host):
    return f"lockstep-{os.getpid()}-{host}"


def ip(*words):
    return subprocess.run(["ip", *words], capture_output=True, text=True, check=False)


def set_up():
    """Makes the namespaces; the reason where this machine does not let us."""
    if not shutil.which("ip") or not shutil.which("unshare"):
        return "there is no ip or unshare (Debian: iproute2, util-linux)"
    steps = [["netns", "add", name_of(host)] for host in HOSTS]
    steps.append(["link", "add", "cable", "netns", name_of("a"), "type", "veth", "peer", "name", "cable", "netns",
                  name_of("b")])
    for host, address in HOSTS.items():
        steps += [["-n", name_of(host), "addr", "add", f"{address}/24", "dev", "cable"],
                  ["-n", name_of(host), "link", "set", "cable", "up"], ["-n", name_of(host), "link", "set", "lo", "up"]]
    for step in steps:
        done = ip(*step)
        if done.returncode != 0:
            tear_down()
            return f"ip {' '.join(step)}: {done.stderr.strip()}"
    return None


def tear_down():
    for host in HOSTS:
        ip("netns", "del", name_of(host))


def inside(host):
    """What to put before a command so that it runs on that host, which has its own name too."""
    return ["ip", "netns", "exec", name_of(host), "unshare", "--uts", "sh", "-c", f'hostname {name_of(host)}; exec "$@"', "sh"]


def ranks(name):
    """{rank: process id} of the living ranks of a run on both hosts, as this one numbers processes."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command, variables = ((process / name).read_bytes().split(b"\0") for name in ("cmdline", "environ"))
        except OSError:
            continue  # it has just ended
        rank = [word.partition(b"=")[2] for word in variables if word.startswith(b"OMPI_COMM_WORLD_RANK=")]
        if rank and f"--run.name={name}".encode() in command:
            found[int(rank[0])] = int(process.name)
    return found


class TwoHostsTest(mpirun.MpiTestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        # mpirun calls it as `agent HOST WORDS...`, the words being a command line for a shell.
        agent = cls.folder / "agent"
        agent.write_text("#!/bin/sh\nshift\n"
                         f"exec ip netns exec {name_of('b')} unshare --uts --pid --fork --kill-child --mount-proc "
                         f"sh -c \"hostname {name_of('b')}; $*\"\n")
        agent.chmod(0o755)
        hosts = ",".join(f"{address}:2" for address in HOSTS.values())
        cls.two_hosts = [*inside("a"), *mpirun.MPIRUN, "--host", hosts, "--mca", "plm_rsh_agent", str(agent),
                         "--mca", "oob_tcp_if_include", NETWORK, "--mca", "btl_tcp_if_include", NETWORK]

    def test_ranks_are_on_both(self):
        words = [*self.two_hosts, "-n", "4", "sh", "-c", "echo $OMPI_COMM_WORLD_RANK $(hostname)"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
        self.assertEqual(sorted(done.stdout.splitlines()),
                         [f"{rank} {name_of('aabb'[rank])}" for rank in range(4)])

    def test_the_bits_are_those_of_one_host(self):
        bucket = "--parallel.bucket_mib=0.05"
        for kind in "ring", "parameter_server":
            with self.subTest(kind=kind):
                arguments = [bucket, f"--parallel.data_parallel={kind}"]
                self.train(f"one-{kind}", *arguments, ranks=4)
                self.train_over_mpi(f"two-{kind}", 4, *arguments, command=self.two_hosts)
                self.assert_same_bits(f"two-{kind}", f"one-{kind}")

    def test_a_rank_killed_on_the_other_host(self):
        name = f"killed-{os.getpid()}"
        words = [*self.two_hosts, "-n", "4", *self.command("train", "run.toml", f"--run.name={name}", "--train.steps=1000000")]
        process = subprocess.Popen(words, cwd=self.folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        metrics = self.run_folder(name) / "metrics.jsonl"
        deadline = time.monotonic() + support.SECONDS
        while process.poll() is None and not (metrics.exists() and metrics.read_text().count("\n") >= 3):
            self.assertLess(time.monotonic(), deadline, "no step was made")
            time.sleep(0.05)
        pids = ranks(name)
        self.assertEqual(sorted(pids), [0, 1, 2, 3])
        os.kill(pids[3], signal.SIGKILL)
        _, err = process.communicate(timeout=60)
        self.assertNotEqual(process.returncode, 0)
        # A rank that has the news before mpirun's SIGTERM tells it: the neighbour on its host by itself (LS3002), others by letter
        # (LS3003, comm/mpi_faults_test.cpp). Who is faster is nobody's promise.
        self.assertRegex(err, r"LS300[23]: rank 3|mpirun noticed that process rank 3")
        deadline = time.monotonic() + 20
        while any(map(support.alive, pids.values())):
            self.assertLess(time.monotonic(), deadline, "an orphan is left")
            time.sleep(0.05)

    def test_mpi_is_chosen_where_nothing_is_said(self):
        words = [*self.two_hosts, "-n", "4", *self.command("train", "run.toml", "--run.name=auto", "--train.steps=1")]
        done = subprocess.run(words, cwd=self.folder, capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("joining 4 ranks over mpi (under mpirun, 2 of 4 ranks are on this host)", done.stderr)


if __name__ == "__main__":
    reason = set_up()
    if reason:
        mpirun.not_run(reason)
    try:
        mpirun.main()
    finally:
        tear_down()
