"""Names links of pages, and paths in sources and pages, that lead nowhere; `./dev format --check` runs it.

Prints "FILE: TARGET" for each, and exits with 1 if there are any. A link's anchor has to be a heading of its page, or an
<a id="...">. A path is a source below a top folder of the tree, as in a comment: "(server/base/exit_codes.h)"; NAME in
it stands for any name. Files of _PLANTED have paths of trees that tests plant.
"""

import collections
import pathlib
import re
import subprocess
import sys

_PLANTED = (pathlib.Path("tests/architecture"), pathlib.Path("tests/install/consumer"))
_CODE = re.compile(r"```.*?```", re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_PATH = re.compile(r"(?<![\w/.-])(?:client|common|deploy|docs|findings|kernels|lab|proto|python|server|tests)/[\w/.-]*\.(?:cc|cu|h|md|proto|py|sh)\b")


def anchors_of(page: pathlib.Path) -> set[str]:
    """Returns what GitHub makes of the page's headings: the second of two equal ones ends with -1."""
    text = _CODE.sub("", page.read_text())
    found = set(re.findall(r'<a id="([^"]+)"', text))
    seen: collections.Counter[str] = collections.Counter()
    for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE):
        anchor = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        found.add(f"{anchor}-{seen[anchor]}" if seen[anchor] else anchor)
        seen[anchor] += 1
    return found


def dead_links(page: pathlib.Path) -> list[str]:
    dead = []
    for link in _LINK.findall(_CODE.sub("", page.read_text())):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if ":" not in link and (not target.exists() or anchor and anchor not in anchors_of(target)):
            dead.append(link)
    return dead


def main() -> int:
    patterns = ["*.md", "*.h", "*.cc", "*.cu", "*.py", "*.proto", "*CMakeLists.txt"]
    files = subprocess.run(["git", "ls-files", *patterns], capture_output=True, text=True, check=True).stdout.split()
    dead = []
    for file in map(pathlib.Path, files):
        dead += [f"{file}: {link}" for link in dead_links(file)] if file.suffix == ".md" else []
        if file.parent not in _PLANTED:
            dead += [f"{file}: {path}" for path in _PATH.findall(file.read_text())
                     if "NAME" not in path and not pathlib.Path(path).exists()]
    print(*dead, sep="\n", end="\n" if dead else "")
    return int(bool(dead))


if __name__ == "__main__":
    sys.exit(main())
