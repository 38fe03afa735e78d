"""Names messages and comments that have to be read twice; `./dev format --check` runs it.

    python3 tests/architecture/language.py [FOLDER...]

Prints "FILE:LINE: RULE: TEXT" for each, and exits with 1 if there are any. Rules:

    message: say `want X, got Y`, or the state (`already exists`), instead of `X expected`
    comment: begin with the subject or the verb, instead of with Of, What, Who, Whether, Those or As
"""

import pathlib
import re
import subprocess
import sys

_PRODUCT = ("client", "common", "kernels", "proto", "python", "server")
_TEXT = re.compile(r'"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\'')
_MESSAGE = re.compile(r"\bexpected\b")
_COMMENT = re.compile(r'(?:^\s*|\s)(?://+|#|""")\s*(\S.*)')
_WHOLE_LINE = re.compile(r"\s*(?://|#)")
_OPENING = re.compile(r"(?:Of|What|Whatever|Who|Whoever|Whose|Whether|Those|As)\b")


def breaches(path: pathlib.Path) -> list[tuple[int, str, str]]:
    """Returns (line, rule, text). A comment of several lines is looked at where it begins."""
    found = []
    in_comment = False
    for number, line in enumerate(path.read_text().splitlines(), 1):
        comment = _COMMENT.search(line)
        begins = comment is not None and not (in_comment and _WHOLE_LINE.match(line))
        if begins and _OPENING.match(comment[1]):
            found.append((number, "comment", comment[1]))
        in_comment = _WHOLE_LINE.match(line) is not None
        if path.parts[0] in _PRODUCT and not in_comment:
            found += [(number, "message", text) for text in _TEXT.findall(line) if _MESSAGE.search(text)]
    return found


def main() -> int:
    folders = sys.argv[1:] or [*_PRODUCT, "cmake", "deploy", "lab", "tests"]
    patterns = [f"{folder}/{name}" for folder in folders
                for name in ("*.h", "*.cc", "*.cu", "*.cuh", "*.py", "*.proto", "*CMakeLists.txt", "*.cmake", "*.sh")]
    files = subprocess.run(["git", "ls-files", *patterns], capture_output=True, text=True, check=True).stdout.split()
    lines = [f"{file}:{number}: {rule}: {text}" for file in files for number, rule, text in breaches(pathlib.Path(file))]
    print(*lines, sep="\n", end="\n" if lines else "")
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
