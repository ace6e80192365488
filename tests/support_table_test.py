"""README's table "What works" is one that scripts/support_table.py writes; whether its results are those of the tests that have
just run says `support_table.py RESULTS --check`. support_table_test.py SOURCE BUILD"""
import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SOURCE, BUILD = Path(sys.argv.pop(1)), Path(sys.argv.pop(1))
sys.path.insert(0, str(SOURCE / "scripts"))
import support_table  # noqa: E402

NAMED = {test for row in support_table.ROWS for test in row.tests}
CASES = '<testcase name="a" status="run"/><testcase name="b" status="fail"/><testcase name="c" status="notrun"/>'


class SupportTableTest(unittest.TestCase):
    def test_every_row_names_tests_that_exist(self):
        listed = subprocess.run(["ctest", "--test-dir", BUILD, "--show-only=json-v1"], capture_output=True, check=True)
        self.assertEqual(NAMED - {test["name"] for test in json.loads(listed.stdout)["tests"]}, set())
        for row in support_table.ROWS:
            self.assertTrue(row.tests, row.name)

    def test_the_readme_holds_what_the_script_writes(self):
        _, inside, _ = support_table.marked((SOURCE / "README.md").read_text())
        self.assertEqual(inside, support_table.table(support_table.claimed(inside)), "run scripts/support_table.py RESULTS --write")

    def test_a_table_says_of_each_test_what_it_was_made_of(self):
        words = ("passed", "failed", "not run", "passed", "passed")
        results = {test: words[number % len(words)] for number, test in enumerate(sorted(NAMED))}
        self.assertEqual(support_table.claimed(support_table.table(results)), results)

    def test_results_that_the_readme_does_not_show_are_an_error(self):
        _, inside, _ = support_table.marked((SOURCE / "README.md").read_text())
        results = support_table.claimed(inside)
        lost = next(test for test, outcome in results.items() if outcome == "passed")
        for change, code in ({}, 0), ({lost: "fail"}, 1), ({lost: "notrun"}, 1):
            words = {"passed": "run", "failed": "fail", "not run": "notrun"}
            cases = {test: words[outcome] for test, outcome in results.items()} | change
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "results.xml"
                path.write_text("<testsuite>" + "".join(f'<testcase name="{name}" status="{status}"/>' for name, status in cases.items())
                                + "</testsuite>")
                done = subprocess.run([sys.executable, SOURCE / "scripts/support_table.py", path, "--check"], capture_output=True, text=True)
            self.assertEqual((done.returncode, f"`{lost}`" in done.stdout), (code, code == 1), done)

    def test_what_did_not_pass_is_named_instead(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "results.xml"
            path.write_text(f'<testsuite name="t">{CASES}</testsuite>')
            results = support_table.outcomes(path)
        self.assertEqual(results, {"a": "passed", "b": "failed", "c": "not run"})

        def works(*tests):
            return support_table.cells(support_table.row("name", "what", "limits", *tests), results)[1]

        self.assertEqual(works("a"), "what")
        self.assertEqual(works("a", "b", "c", "d"), "**failed**: `b`; **not run**: `c`, `d`")

    def test_a_readme_without_marks_is_refused(self):
        with self.assertRaises(ValueError):
            support_table.marked("# Title\n")


if __name__ == "__main__":
    unittest.main(verbosity=2)
