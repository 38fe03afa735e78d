"""A parameter that a program has kept from before shard(): nothing reads or trains it any more."""

from __future__ import annotations

import sys
import weakref
from typing import Any

import torch
from torch import nn

import paramshard
from paramshard.torch.gradient_access import check_read
from paramshard.torch.parameter_owner import ParameterOwner
from paramshard.torch.torch_internals import pytree, without_torch_function

_METHODS = frozenset({"size", "dim", "ndimension", "numel", "nelement", "stride", "element_size", "is_floating_point",
                      "is_complex", "is_contiguous", "get_device", "__len__", "__repr__"})
_VALUES = tuple(getattr(torch.Tensor, name).__get__ for name in ("data", "T", "H", "mT", "mH", "real", "imag"))


class StaleParameter(nn.Parameter):
    """A parameter from before shard(). It shows its shape and type; other uses raise FailedPreconditionError.

    Other modules and lists that hold it would go on with its first values, and its gradients would be lost.
    """

    _paramshard_stale_name: str
    _paramshard_owner: weakref.ref[ParameterOwner]

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        name = getattr(function, "__name__", str(function))
        is_getter = name == "__get__" and function not in _VALUES
        if function == torch.Tensor.grad.__get__:
            check_read(args[0], args[0]._paramshard_stale_name, args[0]._paramshard_owner(), sys._getframe(1))
        if is_getter or name in _METHODS:
            with without_torch_function():
                return function(*args, **(kwargs or {}))
        if name in ("__get__", "__set__", "__delete__"):
            name = function.__self__.__name__  # of a property
        found = next(value for value in pytree.tree_leaves((args, kwargs)) if isinstance(value, cls))
        raise paramshard.FailedPreconditionError(
            f"{found._paramshard_stale_name}: {name} of a parameter from before shard(), whose values nothing changes "
            "any more: take parameters from the module after shard(), and shard modules together that are tied")


def make_stale(parameter: nn.Parameter, name: str, owner: ParameterOwner) -> None:
    """Makes the parameter a StaleParameter: a Placeholder of this name has replaced it in its module."""
    parameter._paramshard_stale_name = name
    parameter._paramshard_owner = weakref.ref(owner)
    if parameter.requires_grad:
        # Views and graphs that were made before shard() are not of this class.
        parameter.register_hook(lambda _: _refuse_gradient(name))
    parameter.__class__ = StaleParameter


def _refuse_gradient(name: str) -> None:
    raise paramshard.FailedPreconditionError(
        f"{name}: a gradient of the parameter from before shard(), which would be lost: compute what leads to the loss "
        "after shard(), of parameters that the module has then")
