"""A reader of a model, with calls that take the next version where a step ends the present one."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

from paramshard import _core
from paramshard._core import Plan, Snapshot
from paramshard.errors import AbortedError, UnavailableError

T = TypeVar("T")


def _script() -> str | None:
    """Returns the name of the running script, or None: all of them are `python`."""
    name = os.path.basename(sys.argv[0]) if sys.argv else ""
    return name if name not in ("", "-c") and name.isprintable() and len(name.encode()) <= 64 else None


class Copied(NamedTuple):
    """The version that was copied: `history`, `version` and `data` of its snapshot."""

    history: str
    version: int
    data: bytes


class Reader(_core.Reader):
    __doc__ = _core.Reader.__doc__

    def __init__(self, model: str, socket_dir: str | None = None, *, name: str | None = None,
                 connect_timeout: float = 10.0):
        """Asks no daemon: the first `acquire` connects.

        Args:
            model: Name of the model in the daemon. It may come later.
            socket_dir: As for `Client`.
            name: Shown by `paramshardctl readers`, at most 64 bytes; several readers may have one. None: the name of the
                script.
            connect_timeout: Seconds for one attempt to connect. `acquire` tries again until its own timeout.

        Raises:
            InvalidArgumentError: A name is empty or too long.
        """
        super().__init__(model, socket_dir, name=_script() if name is None else name, connect_timeout=connect_timeout)

    def copy(self, outputs: Plan | Mapping[str, Any], *, min_version: int | None = None, timeout: float = 60.0,
             **options: Any) -> Copied:
        """Copies the newest version, all of it: takes a snapshot, and the next one if it ends during the copy.

            plan = paramshard.Plan(view, view.allocate())
            version = reader.copy(plan).version

        Args:
            outputs: A plan, or a mapping, as for `Snapshot.copy_into`.
            min_version: The least version, as for `acquire`.
            timeout: Seconds for all attempts.
            options: `decoded` and `stream`, as for `Snapshot.copy_into`.

        Raises:
            AbortedError: Every version ended before it was copied: the outputs are half new.
            UnavailableError: The daemon died during the copy, and did not come back: likewise.
            DeadlineExceededError: There was no such version. Nothing was written, or the outputs are half new.
            Error: Others of `acquire` and `Snapshot.copy_into`.
        """
        def copy(snapshot: Snapshot) -> Copied:
            snapshot.copy_into(outputs, **options)
            return Copied(snapshot.history, snapshot.version, snapshot.data)

        return self.read(copy, min_version=min_version, timeout=timeout)

    def read(self, use: Callable[[Snapshot], T], *, min_version: int | None = None, timeout: float = 60.0) -> T:
        """Calls `use` with a snapshot of the newest version, and returns its result, which is of that version alone.

        A snapshot that ends meanwhile is given up: `use` is called again with the next one, until `timeout` seconds
        have passed. Errors of `copy`, and those that `use` raises.
        """
        deadline = time.monotonic() + timeout
        while True:
            try:
                with self.acquire(min_version, max(deadline - time.monotonic(), 0.0)) as snapshot:
                    result = use(snapshot)
                    snapshot.check()
                    return result
            except (AbortedError, UnavailableError) as error:
                if time.monotonic() >= deadline:
                    more = "raise --reader-hold of the daemon: " if isinstance(error, AbortedError) else ""
                    raise type(error)(f"read {self.model}: every version ended before it was read, for {timeout:g}s: "
                                      f"{more}{error}") from error
