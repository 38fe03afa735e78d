"""Tests run_cases.py on a program with odd cases: run_cases_test.py PROGRAM."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree as ElementTree

PROGRAM = sys.argv.pop()
RUN_CASES = pathlib.Path(__file__).with_name("run_cases.py")
ALL = ["Passes", "Skips", "Fails", "Aborts", "ExitsAsIfAllWereWell", "Hangs", "LeavesAChildThatHoldsThePipe",
       "ChangesTheProcess", "RunsInAnUnchangedProcess", "IsLast"]


class RunCasesTest(unittest.TestCase):
    def setUp(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self.addCleanup(self._folder.cleanup)
        self.report = pathlib.Path(self._folder.name) / "reports/odd.xml"
        self.passed = pathlib.Path(self._folder.name) / "passed/odd"

    def run_cases(self, cases: str, *arguments: str, **environment: str) -> tuple[int, dict[str, str], str]:
        """Returns the exit code, how each case ended, and what was printed."""
        command = [sys.executable, str(RUN_CASES), f"--report={self.report}", f"--passed={self.passed}", "--timeout=2",
                   *arguments, PROGRAM]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60,
                               env=os.environ | {"GTEST_FILTER": cases} | environment)
        results = {}
        if self.report.exists():
            for case in ElementTree.parse(self.report).getroot():
                name = case.get("name", "").removeprefix("odd_cases.OddTest.")
                self.assertNotIn(name, results)
                results[name] = case[0].tag if len(case) else "passed"
        return ended.returncode, results, ended.stdout + ended.stderr

    def test_each_case_has_its_result_though_others_hang_and_die(self) -> None:
        code, results, printed = self.run_cases("*", "--alone=*.ChangesTheProcess")
        self.assertEqual(code, 1, printed)
        failed = ("Fails", "Aborts", "ExitsAsIfAllWereWell", "Hangs")
        expected = {name: "failure" if name in failed else "passed" for name in ALL} | {"Skips": "skipped"}
        self.assertEqual(results, expected, printed)
        for said in ("one is not two", "the program died by SIGABRT", "the program exited with 0", "timed out after 2 s",
                     "5 passed, 4 failed, 1 skipped"):
            self.assertIn(said, printed)
        self.assertIn("no reason but this one", self.report.read_text())

    def test_a_case_that_changes_the_process_is_felt_by_the_next_one_unless_it_is_alone(self) -> None:
        code, results, printed = self.run_cases("*Process")
        self.assertEqual((code, results["RunsInAnUnchangedProcess"]), (1, "failure"), printed)

    def test_shards_have_all_cases_once(self) -> None:
        _, first, _ = self.run_cases("*Passes:*Skips:*IsLast", "--shard=1/2")
        _, second, _ = self.run_cases("*Passes:*Skips:*IsLast", "--shard=2/2")
        self.assertEqual(sorted([*first, *second]), ["IsLast", "Passes", "Skips"])

    def test_what_has_passed_runs_again_only_when_it_changes(self) -> None:
        self.assertEqual(self.run_cases("*IsLast", "--shard=1/1")[0], 0)
        self.assertFalse(self.passed.exists())  # some cases alone prove nothing about the program
        self.passed.parent.mkdir()
        self.passed.write_text("another program's")
        self.assertEqual(self.run_cases("*IsLast", PARAMSHARD_CHANGED="1")[1], {"IsLast": "passed"})


if __name__ == "__main__":
    unittest.main()
