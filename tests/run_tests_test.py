"""scripts/run_tests.py on a folder of made-up tests: what is left out, what is named, how it ends. run_tests_test.py SOURCE"""
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SOURCE = Path(sys.argv.pop(1))
TESTS = """\
add_test(quick "true")
add_test(slow "sleep" "0.3")
add_test(long "true")
set_tests_properties(long PROPERTIES LABELS check)
"""


class RunTestsTest(unittest.TestCase):
    def run_tests(self, tests, *words):
        with tempfile.TemporaryDirectory() as build:
            (Path(build) / "CTestTestfile.cmake").write_text(tests)
            done = subprocess.run([sys.executable, SOURCE / "scripts/run_tests.py", build, *words], capture_output=True, text=True)
        return done.returncode, done.stdout

    def test_without_check_what_has_the_label_is_left_out(self):
        code, said = self.run_tests(TESTS)
        self.assertEqual(code, 0, said)
        self.assertIn("100% tests passed, 0 tests failed out of 2", said)
        self.assertNotIn("long", said)

    def test_with_check_everything_runs(self):
        self.assertIn("100% tests passed, 0 tests failed out of 3", self.run_tests(TESTS, "--check")[1])

    def test_the_slowest_are_named_in_order(self):
        _, said = self.run_tests(TESTS)
        self.assertIn("The 10 slowest:", said)
        names = [line.split()[-1] for line in said.partition("The 10 slowest:")[2].splitlines() if line]
        self.assertEqual(names, ["slow", "quick"])

    def test_a_failure_is_its_exit_code_and_what_it_said_is_shown(self):
        code, said = self.run_tests(TESTS + 'add_test(broken "sh" "-c" "echo what went wrong; false")\n')
        self.assertNotEqual(code, 0)
        self.assertIn("what went wrong", said)
        self.assertIn("broken", said)


if __name__ == "__main__":
    unittest.main(verbosity=2)
