"""README's table "What works" and the families of docs/models.md are tables that scripts/support_table.py writes; whether their results are
those of the tests that have just run says `support_table.py RESULTS --check`. support_table_test.py SOURCE BUILD"""
import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SOURCE, BUILD = Path(sys.argv.pop(1)), Path(sys.argv.pop(1))
sys.path.insert(0, str(SOURCE / "scripts"))
import support_table  # noqa: E402

TABLES = support_table.TABLES
NAMED = {test for table in TABLES for row in table.rows for test in row.tests}
CASES = '<testcase name="a" status="run"/><testcase name="b" status="fail"/><testcase name="c" status="notrun"/>'


def source_of(test):
    """The file of a test by ctest's name of it."""
    room, dot, name = test.partition(".")
    if dot and room != "e2e":
        return next(SOURCE.glob(f"lockstep/{room.replace('_', '/')}/{name}.cpp"))
    return SOURCE / "tests" / f"{test.replace('.', '/')}.py"


def claims():
    """Of each table what its page says."""
    for table in TABLES:
        _, inside, _ = support_table.marked(table, (SOURCE / table.page).read_text())
        yield table, inside, support_table.claimed(table, inside)


class SupportTableTest(unittest.TestCase):
    def test_every_row_names_tests_that_exist(self):
        listed = subprocess.run(["ctest", "--test-dir", BUILD, "--show-only=json-v1"], capture_output=True, check=True)
        self.assertEqual(NAMED - {test["name"] for test in json.loads(listed.stdout)["tests"]}, set())
        for table in TABLES:
            for row in table.rows:
                self.assertTrue(row.tests, row.name)

    def test_every_family_is_in_the_tests_that_its_row_names(self):
        for row in support_table.FAMILIES:
            for test in row.tests:
                said = source_of(test).read_text().lower().replace("_", "")
                if test.startswith(("hf_", "e2e.hf_", "e2e.families")):
                    self.assertTrue(row.name.strip("`").replace("_", "") in said, f"{row.name} in {test}")

    def test_the_pages_hold_what_the_script_writes(self):
        for table, inside, results in claims():
            self.assertEqual(inside, support_table.text_of(table, results), f"{table.page}: run scripts/support_table.py RESULTS --write")

    def test_a_table_says_of_each_test_what_it_was_made_of(self):
        words = ("passed", "failed", "not run", "passed", "passed")
        results = {test: words[number % len(words)] for number, test in enumerate(sorted(NAMED))}
        for table in TABLES:
            named = {test: results[test] for row in table.rows for test in row.tests}
            self.assertEqual(support_table.claimed(table, support_table.text_of(table, results)), named)

    def test_results_that_the_pages_do_not_show_are_an_error(self):
        results = {test: outcome for _, _, of_page in claims() for test, outcome in of_page.items()}
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

    def test_a_page_without_marks_is_refused(self):
        with self.assertRaises(ValueError):
            support_table.marked(support_table.SUPPORT, "# Title\n")


if __name__ == "__main__":
    unittest.main(verbosity=2)
