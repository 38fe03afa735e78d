"""Values that state_dict() has handed out: writes into them are lost, and raise at the next use of the model."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass

import torch

import paramshard
from paramshard.torch.torch_internals import version_of


@dataclass
class _Export:
    name: str
    value: weakref.ref[torch.Tensor]
    address: int
    counter: torch.Tensor  # has the version of the value, and no memory
    version: int


class ExportedValues:
    """Notices writes into values of `state_dict()`, which are copies here and the parameters themselves in torch.

    A program may write into a dictionary and drop it before the next check, so the counter of a value's writes is kept
    instead of the value. Writes that torch does not count, such as by NumPy and through `.data`, are not noticed.
    """

    def __init__(self) -> None:
        self._exports: list[_Export] = []

    def note(self, name: str, value: torch.Tensor) -> None:
        """Notes that the program has the value from now on."""
        if value.is_inference():
            return  # it has no counter
        counter = value.detach()
        counter.data = value.new_empty(0)
        self._exports.append(_Export(name, weakref.ref(value), value.data_ptr(), counter, version_of(counter)))

    def accept(self, name: str) -> None:
        """Notes that the parameter was given a value: earlier writes no longer count."""
        for export in self._exports:
            if export.name == name:
                export.version = version_of(export.counter)

    def check(self, pending: Mapping[str, torch.Tensor]) -> None:
        """Raises FailedPreconditionError with the names of values that were written since the last check.

        `pending`: values that are still to be imported, by name. Writes into these are kept.
        """
        written = []
        kept = []
        for export in self._exports:
            version = version_of(export.counter)
            if version != export.version:
                export.version = version
                brought = pending.get(export.name)
                if brought is None or brought.data_ptr() != export.address:
                    written.append(export.name)
            if export.value() is not None:
                kept.append(export)
        self._exports = kept
        if written:
            raise paramshard.FailedPreconditionError(
                f"{', '.join(dict.fromkeys(written))}: written in place in a dictionary of state_dict(), which has "
                "copies: call load_state_dict() with it, or clone() what is to be changed apart from the model")
