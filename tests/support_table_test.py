"""README's table "What works" is what scripts/support_table.py makes of passed tests. support_table_test.py SOURCE BUILD"""
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

    def test_the_readme_holds_what_the_script_writes_where_they_pass(self):
        _, inside, _ = support_table.marked((SOURCE / "README.md").read_text())
        self.assertEqual(inside, support_table.table(dict.fromkeys(NAMED, "passed")),
                         "run scripts/support_table.py RESULTS --write")

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
