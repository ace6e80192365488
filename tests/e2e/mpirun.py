"""What the tests of the backend mpi share: ranks that mpirun starts. Where they cannot run they say why and are counted as
not run (exit code 77), never as passed."""
import shutil
import subprocess
import sys

import support

NOT_RUN = 77  # as tests/CMakeLists.txt says
# By root too, more ranks than cores, and on any of them. Where a rank is lost, mpirun leaves the others a second to say so,
# which a busy machine may not have.
MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "--mca", "odls_base_sigkill_timeout", "3"]


def not_run(reason):
    print(f"not run: {reason}")
    sys.exit(NOT_RUN)


def main():
    if len(sys.argv) > 1 and not (support.Path(sys.argv[1]) / "liblockstep_mpi.so").is_file():
        not_run("this build has no liblockstep_mpi.so")
    if not shutil.which("mpirun"):
        not_run("there is no mpirun")
    support.main()


class MpiTestCase(support.LockstepTest):
    def mpirun(self, ranks, *arguments, command=MPIRUN):
        """`lockstep ARGUMENTS` on so many ranks over MPI."""
        words = [*command, "-n", str(ranks), *self.command(*arguments), "--parallel.backend=mpi"]
        done = subprocess.run(words, cwd=self.folder, capture_output=True, text=True, timeout=support.SECONDS)
        return support.Result(words, done.returncode, done.stdout, done.stderr)

    def train_over_mpi(self, name, ranks, *arguments, command=MPIRUN):
        result = self.mpirun(ranks, "train", "run.toml", f"--run.name={name}", *arguments, command=command)
        self.assertEqual(result.code, 0, result)
        self.assertIn(f"joining {ranks} ranks over mpi", result.err)
        return result

    def assert_same_bits(self, name, other, step=6):
        """Two runs of six steps have the same losses and the same weights and moments."""
        self.assertEqual(len(self.losses(name)), step)
        self.assertEqual(self.losses(name), self.losses(other))
        self.assertEqual(self.tensors(name, step), self.tensors(other, step))
