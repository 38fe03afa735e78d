"""The programs that the package brings: `paramshardd` and `paramshardctl`."""

from __future__ import annotations

import os
import pathlib
import sys
from typing import NoReturn


def path_of(program: str) -> pathlib.Path:
    """Returns the path of a program of the package."""
    return pathlib.Path(__file__).parent / "bin" / program


def _become(program: str) -> NoReturn:
    path = path_of(program)
    os.execv(path, [str(path), *sys.argv[1:]])


def paramshardd() -> NoReturn:
    """Becomes the daemon."""
    _become("paramshardd")


def paramshardctl() -> NoReturn:
    """Replaces this process with paramshardctl."""
    _become("paramshardctl")
