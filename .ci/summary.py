"""Says what the parts of CI found: which failed, how many tests ran, and why some were skipped.

Takes a file with a line for each part, `NAME KIND STATUS SECONDS`, and reads what ctest wrote into the build folder for
the parts that it runs. Exits with 1 unless every part succeeded; there may be no time for those of the kind `spare`.
"""

import collections
import pathlib
import re
import sys
import xml.etree.ElementTree

RESULTS = {"asan": "build-asan/tests.xml", "interop": "build/interop.xml", "release": "build/tests.xml",
           "tsan": "build-tsan/tests.xml"}
TIMED_OUT = (124, 137)  # of timeout; the second where it had to kill
LINES_OF_A_FAILURE = 60


def skip_reason(output):
    found = re.search(r": Skipped\n(.*)", output)
    return found.group(1).strip() if found else "no reason given"


def print_tests(path):
    """Prints the numbers of one part, the reasons for skipping, and the ends of what failed."""
    counts = collections.Counter()
    reasons = collections.Counter()
    failures = []
    for case in xml.etree.ElementTree.parse(path).getroot().iter("testcase"):
        output = case.findtext("system-out") or ""
        if case.find("skipped") is not None:
            counts["skipped"] += 1
            reasons[skip_reason(output)] += 1
        elif case.get("status") == "run":
            counts["passed"] += 1
        else:
            counts["failed"] += 1
            failures.append((case.get("name"), output))
    print(f"  {counts['passed']} tests passed, {counts['failed']} failed, {counts['skipped']} skipped")
    for reason, count in sorted(reasons.items()):
        print(f"  {count} skipped: {reason}")
    for name, output in failures:
        print(f"  FAILED: {name}")
        for line in output.splitlines()[-LINES_OF_A_FAILURE:]:
            print(f"    {line}")


def main():
    parts = [line.split() for line in pathlib.Path(sys.argv[1]).read_text().splitlines()]
    print("== summary")
    for name, kind, status, seconds in parts:
        said = "passed" if status == "0" else f"FAILED with status {status}"
        if int(status) in TIMED_OUT:
            said = "no time was left"
        print(f"{name}: {said}, {int(seconds) // 60} min {int(seconds) % 60} s")
        if name in RESULTS:
            tests = pathlib.Path(RESULTS[name])
            print_tests(tests) if tests.exists() else print("  no tests ran to the end")
    succeeded = [status == "0" or kind == "spare" and int(status) in TIMED_OUT for _, kind, status, _ in parts]
    return 0 if all(succeeded) else 1


if __name__ == "__main__":
    sys.exit(main())
