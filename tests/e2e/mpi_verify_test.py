"""The layouts of verify_test.py, tensor parallelism, pipelines and sharded states, with their ranks started by mpirun, over MPI.
mpi_verify_test.py BUILD_FOLDER"""
import itertools

import mpirun
import support
import verify_test


class OverMpi(mpirun.MpiTestCase):
    def on_ranks(self, ranks, *arguments):
        return self.mpirun(ranks, *arguments)


class VerifyOverMpiTest(OverMpi, verify_test.VerifyTest):
    pass


class TensorParallelOverMpiTest(OverMpi, verify_test.VerifyTestCase):
    def test_with_and_without_sequence_parallelism(self):
        for preset, sequence in (("gpt2-test", "true"), ("llama-test", "false")):
            with self.subTest(preset=preset, sequence_parallel=sequence):
                self.verify_fp32(2, f"--model.preset={preset}", "--parallel.tp=2", f"--parallel.sequence_parallel={sequence}",
                                 "--train.seq_len=31", "--train.micro_batch=3", "--train.global_batch=6", steps=1)


class PipelinesOverMpiTest(OverMpi, verify_test.VerifyTestCase):
    """Stages that hand over to each other, alone and with each of the other axes; one of a grid whose channels hold several."""

    @staticmethod
    def layout_of(ranks, arguments):
        axes = dict(word.removeprefix("--parallel.").split("=") for word in arguments if word.startswith("--parallel."))
        return f"pp {axes['pp']} ({axes['schedule'].partition(':')[0]}"

    def test_stages(self):
        grid = support.FIXTURES / "pipeline_grids" / "looped-bfs-pp2-v2-m8.csv"
        for ranks, *axes in ((2, "schedule=1f1b"), (2, f"schedule=file:{grid}", "dp=1"), (4, "schedule=zb-v", "tp=2"),
                             (4, "schedule=interleaved", "dp=2", "zero=1")):
            with self.subTest(axes):
                self.verify_fp32(ranks, "--model.layers=4", "--parallel.pp=2", *(f"--parallel.{axis}" for axis in axes),
                                 "--train.micro_batch=1", steps=1)


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
