"""Measures the shape of the tree: lines, words, rooms and their circles, and the classes with the most functions.

    python3 lab/measure/tree.py [CLASSES]

A room is a folder with C++ sources; an arrow is an include from one room into another. A class's functions are all that
it declares or defines (public, private, friends) and those that it inherits from classes of the tree; an override counts
once. CLASSES (default: 8) is how many are printed.
"""

import ast
import collections
import os
import pathlib
import re
import subprocess
import sys

_PRODUCT = ("client", "common", "kernels", "proto", "python", "server")
_CODE = (".h", ".cc", ".cu", ".cuh", ".py", ".proto")
_INCLUDE = re.compile(r'^\s*#\s*include "([^"]+)"', re.MULTILINE)
_CLASS = re.compile(r"\b(?:class|struct)\s+(?:ABSL_\w+(?:\([^)]*\))?\s+)?([\w:]+)\s*(?:final\s*)?(?::([^{;()]*))?\{")
_FUNCTION = re.compile(r"[\w~\]=<>+*!&|^%/-]\s*\(")


def git_files() -> list[str]:
    return subprocess.run(["git", "ls-files"], capture_output=True, text=True, check=True).stdout.split("\n")[:-1]


def lines_of(files: list[str]) -> int:
    return sum(len(pathlib.Path(file).read_text().splitlines()) for file in files)


def circles(arrows: dict[str, set[str]]) -> list[list[str]]:
    """Returns the sets of nodes that reach each other (Tarjan's strongly connected components with more than one)."""
    found: list[list[str]] = []
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(arrows.get(node, ())):
            if other not in index:
                visit(other)
            if other in stack:
                low[node] = min(low[node], low[other])
        if low[node] == index[node]:
            at = stack.index(node)
            if len(stack) - at > 1:
                found.append(sorted(stack[at:]))
            del stack[at:]

    for node in sorted(arrows):
        if node not in index:
            visit(node)
    return found


def include_arrows(files: list[str]) -> dict[str, set[str]]:
    known = set(files)
    arrows: dict[str, set[str]] = {os.path.dirname(file): set() for file in files}
    for file in files:
        for header in _INCLUDE.findall(pathlib.Path(file).read_text()):
            if header in known and os.path.dirname(header) != os.path.dirname(file):
                arrows[os.path.dirname(file)].add(os.path.dirname(header))
    return arrows


def import_arrows(files: list[str]) -> dict[str, set[str]]:
    """Returns the imports between modules of the Python package, those for type checking included."""
    modules = {file.removeprefix("python/").removesuffix(".py").removesuffix("/__init__").replace("/", "."): file
               for file in files}
    arrows: dict[str, set[str]] = {}
    for module, file in modules.items():
        arrows[module] = set()
        for node in ast.walk(ast.parse(pathlib.Path(file).read_text())):
            if isinstance(node, ast.ImportFrom) and node.module in modules:
                names = {f"{node.module}.{alias.name}" for alias in node.names}
                arrows[module] |= names & modules.keys() or {node.module}
            elif isinstance(node, ast.Import):
                arrows[module] |= {alias.name for alias in node.names} & modules.keys()
        arrows[module].discard(module)
    return arrows


def class_functions(files: list[str]) -> collections.Counter[str]:
    """Returns the number of functions of each class, with the class's file; overloads count one by one."""
    own: dict[tuple[str, str], list[str]] = {}  # by file and name
    bases: dict[tuple[str, str], list[str]] = {}
    includes: dict[str, list[str]] = {}
    for file in files:
        text = re.sub(r"//[^\n]*", "", pathlib.Path(file).read_text())
        includes[file] = _INCLUDE.findall(text)
        text = re.sub(r'"(?:[^"\\\n]|\\.)*"', '""', text)
        text = re.sub(r"\b(?:(?:ABSL|PARAMSHARD)_[A-Z_]+|alignas)(?:\([^()]*\))?", "", text)
        for found in _CLASS.finditer(text):
            key = (file, found[1])
            bases[key] = re.findall(r"(?:^|,)\s*(?:(?:virtual|public|private|protected)\s+)*([\w:]+)",
                                    without_arguments(found[2] or ""))
            own[key] = list(filter(None, map(function_name, statements(text, found.end()))))

    def functions(key: tuple[str, str]) -> list[str]:
        """Returns the names of the class's functions; what it declares itself hides what it inherits."""
        inherited = []
        for base in bases[key]:
            named = [other for other in own if last_name(other[1]) == last_name(base) and other != key]
            if named:  # the nearest one
                inherited += functions(min(named, key=lambda k: (k[0] != key[0], k[0] not in includes[key[0]])))
        constructors = {last_name(base) for base in bases[key]}
        return own[key] + [name for name in inherited
                           if name not in own[key] and name not in constructors and not name.startswith("~")]

    return collections.Counter({f"{name} ({file})": len(functions((file, name))) for file, name in own})


def last_name(name: str) -> str:
    return name.split("::")[-1]


def without_arguments(text: str) -> str:
    """Returns the text without the arguments of templates."""
    shorter = re.sub(r"(?<!operator)<[^<>]*>", "", text)
    return text if shorter == text else without_arguments(shorter)


def statements(text: str, at: int) -> list[str]:
    """Returns what the body of a class that begins at `at` declares, without the bodies of functions."""
    found = []
    braces = parentheses = 0
    is_body = False
    current = ""
    while braces >= 0 and at < len(text):
        char = text[at]
        if char == "{":
            # A value in braces belongs to its statement: a default argument, or a constructor's initializer.
            if braces == 0:
                is_body = parentheses == 0 and not re.search(r"\)\s*(?:noexcept\s*)?:(?!:).*[\w>]\s*$", current, re.DOTALL)
            braces += 1
        elif char == "}":
            braces -= 1
            if braces == 0 and is_body:
                found.append(current)
                current = ""
        elif braces == 0 and char == ";":
            found.append(current)
            current = ""
        elif braces == 0:
            parentheses += (char == "(") - (char == ")")
            current += char
        at += 1
    return found


def function_name(statement: str) -> str | None:
    """Returns the name of the function that a statement declares; None if it declares none."""
    statement = re.sub(r"\b(?:public|private|protected)\s*:", "", without_arguments(statement)).strip()
    if not _FUNCTION.search(statement) or re.match(r"(?:using|typedef|static_assert|class|struct|enum)\b", statement):
        return None
    head = statement.split("(")[0]
    if "operator" in head:
        return head[head.index("operator"):]
    return None if "=" in head else re.findall(r"~?\w+", head)[-1]


def main() -> None:
    files = git_files()
    code = [file for file in files if file.endswith(_CODE)]
    product = [file for file in code if file.startswith(_PRODUCT)]
    pages = [file for file in files if re.match(r"(?:docs|lab)/.*\.md$", file)]
    words = sum(len(pathlib.Path(file).read_text().split()) for file in pages)
    print(f"product: {lines_of(product)} lines; tests: {lines_of([f for f in code if f.startswith('tests/')])};",
          f"lab: {lines_of([f for f in code if f.startswith('lab/')])}")
    print(f"pages: {lines_of(pages)} lines, {words} words")
    cpp = [file for file in product if file.endswith((".h", ".cc", ".cu", ".cuh"))]
    arrows = include_arrows(cpp)
    print(f"rooms: {len(arrows)}, {sum(map(len, arrows.values()))} arrows, circles: {circles(arrows) or 'none'}")
    imports = import_arrows([file for file in product if re.match(r"python/paramshard/.*\.py$", file)])
    print(f"Python: {len(imports)} modules, circles: {circles(imports) or 'none'}")
    for name, count in class_functions(cpp).most_common(int(sys.argv[1]) if sys.argv[1:] else 8):
        print(f"{count:5} functions  {name}")


if __name__ == "__main__":
    main()
