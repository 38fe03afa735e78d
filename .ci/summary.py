"""Says what the parts of CI found: which failed, how many tests ran, and why some were skipped.

Takes a file with a line for each part, `NAME KIND STATUS SECONDS`, and reads the reports that the parts with tests wrote
into the build folder. Exits with 1 unless every part succeeded, and those with tests passed some; there may be no time for
parts of the kind `spare`.
"""

import collections
import pathlib
import sys
import xml.etree.ElementTree

REPORTS = {"asan": "build-asan/reports/*.xml", "interop": "build/interop/*.xml", "release": "build/reports/*.xml",
           "torch-newest": "build/torch-newest.xml", "torch-oldest": "build/torch-oldest.xml",
           "tsan": "build-tsan/reports/*.xml"}
TIMED_OUT = (124, 137)  # of timeout; the second where it had to kill
LINES_OF_A_FAILURE = 60


def print_tests(paths):
    """Prints the numbers of one part, the reasons for skipping, and the ends of what failed.

    Returns how many passed.
    """
    counts = collections.Counter()
    reasons = collections.Counter()
    failures = []
    for path in paths:
        for case in xml.etree.ElementTree.parse(path).getroot().iter("testcase"):
            failed = next((found for kind in ("failure", "error") if (found := case.find(kind)) is not None), None)
            skipped = case.find("skipped")
            if failed is not None:
                counts["failed"] += 1
                failures.append((case.get("name"), failed.text or failed.get("message") or ""))
            elif skipped is not None:
                counts["skipped"] += 1
                reasons[skipped.get("message")] += 1
            else:
                counts["passed"] += 1
    print(f"  {counts['passed']} tests passed, {counts['failed']} failed, {counts['skipped']} skipped")
    for reason, count in sorted(reasons.items()):
        print(f"  {count} skipped: {reason}")
    for name, output in failures:
        print(f"  FAILED: {name}")
        for line in output.splitlines()[-LINES_OF_A_FAILURE:]:
            print(f"    {line}")
    if not counts["passed"]:
        print("  FAILED: no test passed")
    return counts["passed"]


def main():
    parts = [line.split() for line in pathlib.Path(sys.argv[1]).read_text().splitlines()]
    succeeded = True
    print("== summary")
    for name, kind, status, seconds in parts:
        left_out = kind == "spare" and int(status) in TIMED_OUT
        succeeded &= status == "0" or left_out
        said = "passed" if status == "0" else f"FAILED with status {status}"
        if int(status) in TIMED_OUT:
            said = "no time was left"
        print(f"{name}: {said}, {int(seconds) // 60} min {int(seconds) % 60} s")
        if name in REPORTS:
            reports = sorted(pathlib.Path().glob(REPORTS[name]))
            if not reports:
                print("  no tests ran to the end")
            if not (reports and print_tests(reports)):
                succeeded &= left_out
    return 0 if succeeded else 1


if __name__ == "__main__":
    sys.exit(main())
