"""The layouts of verify_test.py with their ranks started by mpirun, over MPI. mpi_verify_test.py BUILD_FOLDER"""
import mpirun
import verify_test


class VerifyOverMpiTest(mpirun.MpiTestCase, verify_test.VerifyTest):
    def on_ranks(self, ranks, *arguments):
        return self.mpirun(ranks, *arguments)


if __name__ == "__main__":
    mpirun.main()
