"""The program on a GPU: program_test.py BUILD_FOLDER [libemulated_gpu.so]. With the library on the emulated GPU, else on a real one."""
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "e2e"))
import support  # noqa: E402

EMULATION = None
# Few rows: on the emulated GPU the threads of a kernel take turns.
SMALL = ("--model.dropout=0.1", "--train.seq_len=16", "--train.global_batch=4", "--train.micro_batch=1")
STEPS, HALF = 4, 2
LLAMA = ("--model.preset=llama-test", "--memory.recompute=full")
SHARED = "--parallel.backend=shared_memory"  # ranks of one host exchange tensors through its memory: they may share a GPU
BOUND = 1e-5


class ProgramTest(support.LockstepTest):
    @classmethod
    def on_gpu(cls, *arguments):
        environment = dict(os.environ)
        if EMULATION:
            environment["LD_PRELOAD"] = EMULATION
        result = cls.lockstep(*arguments, *SMALL, "--train.device=cuda", env=environment)
        if result.code != 0:
            raise AssertionError(result)
        return result

    @classmethod
    def train_on_gpu(cls, name, *arguments, steps=STEPS):
        return cls.on_gpu("train", "run.toml", f"--run.name={name}", "-n", 1, f"--train.steps={steps}", *arguments)

    @classmethod
    def train_on_cpu(cls, name, *arguments, steps=STEPS):
        return cls.train(name, *SMALL, f"--train.steps={steps}", *arguments)

    def test_training_gives_the_losses_of_the_cpu(self):
        for name, arguments in (("gpt2", ()), ("llama", LLAMA)):
            with self.subTest(name):
                self.train_on_cpu(name, *arguments)
                self.train_on_gpu(f"{name}-gpu", *arguments)
                self.assert_close(self.losses(f"{name}-gpu"), self.losses(name), BOUND)

    def test_two_ranks_on_one_gpu_are_verified(self):
        for arguments in (["--parallel.zero=3"], ["--parallel.tp=2"]):
            with self.subTest(arguments[0]):
                report = self.on_gpu("verify", "run.toml", "--steps", 2, "--json", "-n", 2, SHARED, *arguments).json()
                self.assertIs(report["ok"], True)

    def test_a_run_goes_on_on_the_other_device(self):
        self.train_on_cpu("whole")
        for name, first, second in (("to-gpu", self.train_on_cpu, self.train_on_gpu), ("to-cpu", self.train_on_gpu, self.train_on_cpu)):
            with self.subTest(name):
                first(name, f"--checkpoint.every={HALF}", steps=HALF)
                self.assertIn(f"at step {HALF}", second(name).err)
                self.assert_close(self.losses(name), self.losses("whole"), BOUND)


if __name__ == "__main__":
    if len(sys.argv) > 2 and sys.argv[2].endswith(".so"):
        EMULATION = str(Path(sys.argv.pop(2)).resolve())
    support.main()
