"""A parameter of torch while its unit is gathered, and how writes of it are noticed."""

from __future__ import annotations

import math
import sys
from typing import Any

import torch
from torch import nn

import paramshard
from paramshard.torch.gradient_access import check_read, check_set, module_of
from paramshard.torch.placeholder import Placeholder
from paramshard.torch.torch_internals import set_versions, without_modes

GRADIENT = torch.Tensor.grad  # of any tensor: what autograd has accumulated
_data = torch.Tensor.data
_NO_VALUES = 1 << 30  # the version without values

Contents = list[tuple[torch.Tensor, torch.Tensor]]  # a fingerprint, if the parameter is watched


class GatheredParameter(nn.Parameter):
    """A parameter that has memory while its unit is gathered, in a block that the unit owns.

    The daemon alone changes parameters, so a write to a gathered one would be lost. Autograd's version detects most
    writes. Writes through `.data` leave no trace, so a read of `.data` calls watch(), and the contents are compared
    when the memory goes.
    """

    _paramshard_name: str
    _paramshard_placeholder: Placeholder  # which the module has when it is not gathered
    _paramshard_memory: torch.Tensor  # the same memory, which its unit alone writes
    _paramshard_contents: Contents

    @staticmethod
    def __new__(cls, memory: torch.Tensor, placeholder: Placeholder, contents: Contents) -> GatheredParameter:
        parameter = super().__new__(cls, memory)
        parameter._paramshard_name = placeholder.parameter_name
        parameter._paramshard_placeholder = placeholder
        parameter._paramshard_contents = contents
        parameter.own_memory()
        return parameter

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """Does nothing: __new__ has set everything."""

    def own_memory(self) -> torch.Tensor:
        """Keeps its present memory as its own. Returns it as a tensor with a version of its own."""
        self._paramshard_memory = _data.__get__(self)
        return self._paramshard_memory

    def watch(self) -> None:
        """Keeps a fingerprint of the contents, unless there is one, to compare when the memory goes."""
        if not self._paramshard_contents:
            self._paramshard_contents.append(fingerprint(self._paramshard_memory))

    def has_changed(self) -> bool:
        """Returns True if it was watched and its contents have changed. Ends watching."""
        if not self._paramshard_contents:
            return False
        before, now = self._paramshard_contents.pop(), fingerprint(self._paramshard_memory)
        return not all(torch.equal(one, other) for one, other in zip(before, now))

    def restore(self) -> bool:
        """Gives its own memory back to it. Returns True if it had other memory."""
        own = self._paramshard_memory
        if self.data_ptr() == own.data_ptr() and self.dtype == own.dtype:
            return False
        _data.__set__(self, own)
        return True

    @property
    def data(self) -> torch.Tensor:
        """Same as `Tensor.data`, but writes through it are noticed."""
        if torch.compiler.is_compiling():
            return self.detach()  # which shares the version
        if self.untyped_storage().nbytes():
            self.watch()
        return _data.__get__(self)

    @data.setter
    def data(self, value: torch.Tensor) -> None:
        self._refuse_other_memory(value)

    @property
    def grad(self) -> torch.Tensor | None:
        """Always None: gradients go to the daemon as they are computed. Raises where a program would miss one."""
        if not torch.compiler.is_compiling():
            check_read(self, self._paramshard_name, self._paramshard_placeholder.owner, sys._getframe(1))
        return GRADIENT.__get__(self)

    @grad.setter
    def grad(self, value: torch.Tensor | None) -> None:
        if not module_of(sys._getframe(1)).startswith("torch._"):
            check_set(self, self._paramshard_name, self._paramshard_placeholder.owner, value)
        GRADIENT.__set__(self, value)

    @grad.deleter
    def grad(self) -> None:
        self.grad = None

    def register_post_accumulate_grad_hook(self, hook: Any) -> Any:
        """Refused, as for a Placeholder."""
        raise self._paramshard_placeholder.refusal_of(torch.Tensor.register_post_accumulate_grad_hook)

    def set_(self, source: Any = None, *rest: Any, **options: Any) -> GatheredParameter:
        """Does nothing for a tensor of the same memory; other memory is refused."""
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
            f"set the values of {self._paramshard_name}: it is gathered, and writes to it are lost: set "
            "`parameter.data`, or call load_state_dict(), outside of forwards and of `with sharded.unsharded():`")

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Parameter:
        memo[id(self)] = copy = nn.Parameter(self.detach().clone(), self.requires_grad)
        return copy

    def __reduce_ex__(self, protocol: Any) -> Any:
        return nn.Parameter(self.detach(), self.requires_grad).__reduce_ex__(protocol)


def set_autograd_version(parameters: tuple[GatheredParameter, ...], version: int | None) -> None:
    """Sets the version by which autograd knows the parameters' values. None: they have no values now.

    Values that are gathered again get their old version, so that graphs that saved them stay valid. Other values get
    another version, whichever way they are written. A graph that needs values without memory raises.
    """
    set_versions(parameters, (_NO_VALUES if version is None else version,) * len(parameters))


def fingerprint(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns integer sums of the rows and columns of its bytes, which differ for other values or another order.

    values: contiguous, any type. Enqueued on the current stream.
    """
    with without_modes(), torch.no_grad():
        words = values.view(-1)
        words = words.view(torch.int64 if values.nbytes % 8 == 0 and values.nbytes else torch.uint8)
        matrix = words.view(-1, max(1, math.gcd(words.numel(), 4096)))
        return matrix.sum(0, dtype=torch.int64), matrix.sum(1, dtype=torch.int64)
