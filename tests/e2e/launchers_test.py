"""Ranks that another launcher has started: recognised, and refused by name. launchers_test.py BUILD_FOLDER"""
import os
from unittest import mock

import support

USAGE, ENVIRONMENT = 2, 3
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
            "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}


class LaunchersTest(support.LockstepTest):
    def under(self, variables, *arguments):
        with mock.patch.dict(os.environ, variables):
            return self.lockstep(*arguments)

    def test_a_rank_of_several_does_not_train_alone(self):
        for verb in ["train"], ["verify"], ["train", "-n", "2"]:
            result = self.under(OPEN_MPI, verb[0], "run.toml", *verb[1:])
            self.assertEqual(result.code, ENVIRONMENT, result)
            for words in "LS3121", "rank 1 of 4", "OMPI_COMM_WORLD_RANK=1", "-n 4":
                self.assertIn(words, result.err)
        self.assertFalse((self.folder / "runs").exists())

    def test_contradictions_name_the_variables(self):
        result = self.under({**OPEN_MPI, "OMPI_COMM_WORLD_RANK": "4"}, "train", "run.toml")
        self.assertEqual(result.code, USAGE, result)
        for words in "LS1061", "OMPI_COMM_WORLD_RANK=4", "OMPI_COMM_WORLD_SIZE=4":
            self.assertIn(words, result.err)

    def test_verbs_that_do_not_compute_do_not_care(self):
        self.assertEqual(self.under(OPEN_MPI, "show", "layout", "run.toml", "-n", "2").code, 0)


if __name__ == "__main__":
    support.main()
