"""Finds the installed packages that a script will import, without running it.

The script's own modules are read, not imported: those in its folder, and those elsewhere on the path that are not
installed, such as of PYTHONPATH and of editable packages.
"""

from __future__ import annotations

import ast
import importlib.machinery
import os
import pathlib
import re
import site
import sys
import sysconfig
from collections.abc import Iterator
from typing import NamedTuple

_MOST_FILES = 300  # of the script's own modules that are read


class Import(NamedTuple):
    """`import module`, or `from module import names`."""

    module: str
    names: tuple[str, ...] = ()


def installed_imports(script: pathlib.Path, folder: pathlib.Path) -> list[Import]:
    """Returns imports of installed modules at the top level of a script and of its own modules, in their order.

    Args:
        script: Its file.
        folder: Folder that the script finds its own modules in first.
    """
    found: dict[Import, None] = {}
    read: set[pathlib.Path] = set()

    def visit(file: pathlib.Path) -> bool:
        """Returns False where imports that follow may find other modules, or modules that begin otherwise."""
        if file in read or len(read) >= _MOST_FILES:
            return True
        read.add(file)
        for each, level in _imports_of(file):
            if each is None:
                return False
            files: list[pathlib.Path] = []
            if level:
                base = file.parents[level - 1]
                files = _files_of(base, [*each.module.split("."), ""] if each.module else [""], each.names)
            else:
                top, *rest = each.module.split(".")
                spec = _find(top, [str(folder), *sys.path])
                if spec is None or top == "paramshard":  # which is imported in any case
                    continue
                if is_installed(spec):
                    found[each] = None
                elif spec.origin is not None and spec.origin.endswith(".py"):
                    origin = pathlib.Path(spec.origin)
                    files = [origin, *(_files_of(origin.parent, rest, each.names)
                                       if spec.submodule_search_locations else [])]
            if not all(map(visit, files)):
                return False
        return True

    visit(script)
    return list(found)


def shadowed_by(folder: pathlib.Path, names: set[str]) -> list[str]:
    """Returns the top-level modules among `names` that a script in the folder would find there instead."""
    specs = {name: _find(name, [str(folder)]) for name in names - set(sys.builtin_module_names)}
    return sorted(name for name, spec in specs.items() if spec is not None and spec.origin is not None)


def is_installed(spec: importlib.machinery.ModuleSpec) -> bool:
    """Returns True for modules of Python and of folders that pip installs into."""
    if spec.origin in ("built-in", "frozen"):
        return True
    places = spec.submodule_search_locations or ([spec.origin] if spec.origin else [])
    roots = [os.path.realpath(root) + os.sep for root in _installed_folders()]
    return bool(places) and all(os.path.realpath(place).startswith(tuple(roots)) for place in places)


def _installed_folders() -> Iterator[str]:
    paths = sysconfig.get_paths()
    yield from (paths[key] for key in ("purelib", "platlib"))
    yield from site.getsitepackages()
    yield site.getusersitepackages()
    # Python's own, where packages of other prefixes may lie as well.
    yield paths["stdlib"]
    yield os.path.join(paths["platstdlib"], "lib-dynload")


def _find(name: str, path: list[str]) -> importlib.machinery.ModuleSpec | None:
    if name in sys.builtin_module_names:
        return importlib.machinery.BuiltinImporter.find_spec(name)
    try:
        return importlib.machinery.PathFinder.find_spec(name, path)
    except (ImportError, ValueError, OSError):
        return None


def _files_of(folder: pathlib.Path, parts: list[str], names: tuple[str, ...]) -> list[pathlib.Path]:
    """Returns files that an import of own modules may run: of the packages on the way, and of names that it takes."""
    files = [folder / "__init__.py"]
    for part in filter(None, parts):
        files.append(folder / f"{part}.py")
        folder /= part
        files.append(folder / "__init__.py")
    for name in names:
        files += [folder / f"{name}.py", folder / name / "__init__.py"]
    return [file for file in files if file.is_file()]


# Statements after which an import may find another module, or one that begins otherwise.
_SETTING = re.compile(r"^(os\.)?environ\[|^sys\.(path|modules|meta_path)\b")
_SETTING_CALL = re.compile(r"(\benviron\.(update|setdefault|pop|clear)|\b(un|put)env|\bsys\.path\.\w+|"
                           r"\baddsitedir|\bload_dotenv)$")


def _changes_imports(node: ast.AST) -> bool:
    if isinstance(node, (ast.Assign, ast.Delete)):
        return any(_SETTING.match(ast.unparse(target)) for target in node.targets)
    if isinstance(node, (ast.AugAssign, ast.AnnAssign)):
        return bool(_SETTING.match(ast.unparse(node.target)))
    return (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and
            bool(_SETTING_CALL.search(ast.unparse(node.value.func))))


def _imports_of(file: pathlib.Path) -> Iterator[tuple[Import | None, int]]:
    """Yields the imports of a file, with the level of relative ones: those that run whenever the file does. None for a
    statement that changes what imports after it do."""
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return  # the worker says what is wrong
    to_visit: list[tuple[ast.AST, bool]] = [(node, True) for node in reversed(tree.body)]
    while to_visit:
        node, is_certain = to_visit.pop()
        if _changes_imports(node):
            yield None, 0
        elif isinstance(node, ast.Import):
            for alias in node.names if is_certain else ():
                yield Import(alias.name), 0
        elif isinstance(node, ast.ImportFrom):
            if is_certain:
                names = tuple(alias.name for alias in node.names if alias.name != "*")
                yield Import(node.module or "", names), node.level
        elif isinstance(node, (ast.If, ast.Match)):  # a package that is not used may change others
            is_main = isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'"
            to_visit += [(each, is_certain and is_main) for each in reversed(list(ast.iter_child_nodes(node)))]
        elif not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.expr)):
            to_visit += [(each, is_certain) for each in reversed(list(ast.iter_child_nodes(node)))]
