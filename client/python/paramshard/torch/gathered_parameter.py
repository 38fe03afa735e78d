"""A parameter of torch while its unit is gathered, and how writes of it are noticed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

import paramshard
from paramshard.torch.torch_internals import set_versions, version_of, without_modes

_data = torch.Tensor.data
_AWAY = 1 << 30  # what is added to a version while there are no values


class GatheredParameter(nn.Parameter):
    """A parameter that has memory while its unit is gathered, in a block that the unit owns.

    The daemon alone changes parameters, so that a write of a gathered one would be lost. begin() is called when it has
    been gathered, and take_back() before its memory goes: it returns True if the parameter was written. Autograd's
    version tells of most writes. Writes through `.data` leave no trace: whoever reads `.data` makes the parameter
    compare a fingerprint of its contents, and so does begin(closely=True).
    """

    _paramshard_name: str
    _paramshard_home: torch.Tensor  # the same memory, known to nobody else
    _paramshard_version: int  # counts the values that it has had
    _paramshard_contents: tuple[torch.Tensor, torch.Tensor] | None  # likewise, or before the first read of `.data`
    _paramshard_is_gathered: bool

    @staticmethod
    def __new__(cls, memory: torch.Tensor, name: str) -> GatheredParameter:
        parameter = super().__new__(cls, memory)
        parameter._paramshard_name = name
        parameter.settle()
        parameter._paramshard_version = 0
        parameter._paramshard_contents = None
        parameter._paramshard_is_gathered = False
        return parameter

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """Everything is done by __new__, for which torch has no constructor that this could call."""

    def settle(self) -> torch.Tensor:
        """The memory that the parameter has now is its own from now on. Returns it, with a version apart."""
        self._paramshard_home = _data.__get__(self)
        return self._paramshard_home

    def begin(self, closely: bool) -> None:
        """Its values have come. `closely` compares contents at the end, which reads them twice."""
        self._paramshard_contents = fingerprint(self._paramshard_home) if closely else None
        self._paramshard_is_gathered = True

    def watch(self) -> None:
        """Contents are compared at the end: with those of now, unless they are watched already."""
        if self._paramshard_contents is None:
            self._paramshard_contents = fingerprint(self._paramshard_home)

    def take_back(self) -> bool:
        """Returns True if somebody has written the parameter since begin(), or given it other memory."""
        if not self._paramshard_is_gathered:
            return False
        written = version_of(self) != self._paramshard_version or self._has_moved()
        contents, self._paramshard_contents = self._paramshard_contents, None
        if not written and contents is not None:
            now = fingerprint(self._paramshard_home)
            written = not all(torch.equal(before, after) for before, after in zip(contents, now))
        if written and self._has_moved():
            _data.__set__(self, self._paramshard_home)
        self._paramshard_is_gathered = False
        return written

    def _has_moved(self) -> bool:
        return self.data_ptr() != self._paramshard_home.data_ptr() or self.dtype != self._paramshard_home.dtype

    @property
    def data(self) -> torch.Tensor:
        """As of any tensor; but what is written through it does not go unnoticed."""
        if torch.compiler.is_compiling():
            return self.detach()  # which shares the version
        if self._paramshard_is_gathered:
            self.watch()
        return _data.__get__(self)

    @data.setter
    def data(self, value: torch.Tensor) -> None:
        self._refuse_other_memory(value)

    def set_(self, source: Any = None, *rest: Any, **options: Any) -> GatheredParameter:
        """As of any tensor. The memory that it has already leaves it as it is."""
        if rest or options or not isinstance(source, torch.Tensor):
            raise self._refusal()
        self._refuse_other_memory(source)
        return self

    def _refuse_other_memory(self, value: torch.Tensor) -> None:
        if not isinstance(value, torch.Tensor) or value.dtype != self.dtype or value.shape != self.shape or (
                value.data_ptr() != self.data_ptr() or value.stride() != self.stride()):
            raise self._refusal()

    def _refusal(self) -> paramshard.FailedPreconditionError:
        return paramshard.FailedPreconditionError(
            f"set the values of {self._paramshard_name}: it is gathered, and other memory would be lost: set "
            "`parameter.data`, or call load_state_dict(), outside of forwards and of `with sharded.unsharded():`")

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Parameter:
        memo[id(self)] = copy = nn.Parameter(self.detach().clone(), self.requires_grad)
        return copy

    def __reduce_ex__(self, protocol: Any) -> Any:
        return nn.Parameter(self.detach(), self.requires_grad).__reduce_ex__(protocol)


def show_versions(parameters: Sequence[GatheredParameter], *, gathered: bool, other_values: bool = False) -> None:
    """Tells autograd which values they have, by the versions that it compares: none while they are not gathered.

    The same values may come back as often as they like, and serve graphs that have saved them before. Others are a
    change, whichever way they are written. A graph that asks for values which are not there raises, and reads nothing.
    """
    for parameter in parameters:
        parameter._paramshard_version += other_values
    away = 0 if gathered else _AWAY
    set_versions(parameters, [parameter._paramshard_version + away for parameter in parameters])


def fingerprint(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Integer sums of the rows and of the columns of its bytes: other values have others, in another order, too.

    values: contiguous, any type. Enqueued on the present stream.
    """
    with without_modes(), torch.no_grad():
        words = values.view(-1)
        words = words.view(torch.int64 if values.nbytes % 8 == 0 and values.nbytes else torch.uint8)
        matrix = words.view(-1, max(1, math.gcd(words.numel(), 4096)))
        return matrix.sum(0, dtype=torch.int64), matrix.sum(1, dtype=torch.int64)
