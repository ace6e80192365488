"""The layouts of verify_test.py, and sharded states, with their ranks started by mpirun, over MPI.
mpi_verify_test.py BUILD_FOLDER"""
import itertools

import mpirun
import verify_test


class OverMpi(mpirun.MpiTestCase):
    def on_ranks(self, ranks, *arguments):
        return self.mpirun(ranks, *arguments)


class VerifyOverMpiTest(OverMpi, verify_test.VerifyTest):
    pass


class ShardedOverMpiTest(OverMpi, verify_test.VerifyTestCase):
    """Stages of ZeRO alone, in replicated groups (HSDP) and with tensor parallelism. zero_test.py has more layouts."""

    @staticmethod
    def layout_of(ranks, arguments):
        return next(word for word in arguments if "zero" in word).replace("--parallel.zero=", "(zero ")

    def test_every_stage(self):
        layouts = ("gpt2-test", "--parallel.dp=4"), ("llama-test", "--parallel.dp_replicate=2"), ("llama-test", "--parallel.tp=2")
        for zero, (preset, axes) in itertools.product((1, 2, 3), layouts):
            with self.subTest(zero=zero, axes=axes):
                self.verify_fp32(4, f"--model.preset={preset}", f"--parallel.zero={zero}", axes)

    # The gradients of four ranks travel with 8 bits.
    def test_gradients_in_bf16_on_the_wire(self):
        report = self.verify(4, "--parallel.zero=3", "--parallel.reduce_precision=bf16", steps=1)
        self.assertGreater(report["steps"][0]["max_gradient_error"], 0)


if __name__ == "__main__":
    mpirun.main()
