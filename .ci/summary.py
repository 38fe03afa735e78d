"""Says what the parts of CI found: which failed, how many tests ran, and why some were skipped.

Takes a file with a line for each part, `NAME KIND STATUS SECONDS`, and reads what ctest and pytest wrote into the build
folder for the parts that they run. Exits with 1 unless every part succeeded, and those with tests passed some; there may
be no time for parts of the kind `spare`.
"""

import collections
import pathlib
import re
import sys
import xml.etree.ElementTree

RESULTS = {"asan": "build-asan/tests.xml", "interop": "build/interop.xml", "release": "build/tests.xml",
           "torch-newest": "build/torch-newest.xml", "torch-oldest": "build/torch-oldest.xml",
           "tsan": "build-tsan/tests.xml"}
BY_PYTEST = ("torch-newest.xml", "torch-oldest.xml")
TIMED_OUT = (124, 137)  # of timeout; the second where it had to kill
LINES_OF_A_FAILURE = 60


def skip_reason(output):
    found = re.search(r": Skipped\n(.*)", output)
    return found.group(1).strip() if found else "no reason given"


def print_tests(path):
    """Prints the numbers of one part, the reasons for skipping, and the ends of what failed.

    Returns how many passed.
    """
    counts = collections.Counter()
    reasons = collections.Counter()
    failures = []
    for case in xml.etree.ElementTree.parse(path).getroot().iter("testcase"):
        output = case.findtext("system-out") or case.findtext("failure") or case.findtext("error") or ""
        skipped = case.find("skipped")
        if skipped is not None:
            counts["skipped"] += 1
            reasons[skipped.get("message") if path.name in BY_PYTEST else skip_reason(output)] += 1
        elif case.get("status", "run") == "run" and case.find("failure") is None and case.find("error") is None:
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
        if name in RESULTS:
            tests = pathlib.Path(RESULTS[name])
            if not tests.exists():
                print("  no tests ran to the end")
            if not (tests.exists() and print_tests(tests)):
                succeeded &= left_out
    return 0 if succeeded else 1


if __name__ == "__main__":
    sys.exit(main())
