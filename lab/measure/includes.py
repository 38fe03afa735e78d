"""Counts, for each header of the tree, the sources that include it, directly or through other headers.

    python3 lab/measure/includes.py [N]

Prints the N (default 20) headers that most sources include. Unity builds do not count: a source is a file of its own.
"""

import collections
import pathlib
import re
import subprocess
import sys

_INCLUDE = re.compile(r'^\s*#\s*include "([^"]+)"', re.MULTILINE)


def headers_of(file: str, includes: dict[str, list[str]]) -> set[str]:
    """Returns all headers of the tree that `file` includes."""
    reached: set[str] = set()
    to_scan = [file]
    while to_scan:
        for header in includes[to_scan.pop()]:
            if header in includes and header not in reached:
                reached.add(header)
                to_scan.append(header)
    return reached


def main() -> None:
    files = subprocess.run(["git", "ls-files", "*.h", "*.cc", "*.cu", "*.cuh"], capture_output=True, text=True,
                           check=True).stdout.split()
    includes = {file: _INCLUDE.findall(pathlib.Path(file).read_text()) for file in files}
    sources = [file for file in files if file.endswith((".cc", ".cu"))]
    counts = collections.Counter(header for source in sources for header in headers_of(source, includes))
    for header, count in counts.most_common(int(sys.argv[1]) if sys.argv[1:] else 20):
        print(f"{count:5} of {len(sources)}  {header}")


if __name__ == "__main__":
    main()
