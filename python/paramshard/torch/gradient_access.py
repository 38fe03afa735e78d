"""Errors for programs that read a parameter's gradient, which is in the daemon."""

from __future__ import annotations

import types

import torch
from torch import nn

import paramshard
from paramshard.torch.parameter_owner import ParameterOwner

_DROP_GRADIENTS = (nn.Module.__module__, "torch.optim.optimizer")  # modules that read gradients to drop them


def check_read(parameter: torch.Tensor, name: str, owner: ParameterOwner | None, frame: types.FrameType) -> None:
    """Raises if the code of a frame would take None for "there is no gradient", and do nothing.

    Gradients go to the daemon as they come; code that clips them here, or steps, would not notice. The zero_grad() of
    a module that contains the sharded one is carried out.
    """
    reader = module_of(frame)
    if reader.startswith("torch.optim.") and reader not in _DROP_GRADIENTS:
        raise paramshard.UnimplementedError(
            f"step by {reader}: gradients are in the daemon, which steps: make a "
            "paramshard.torch.AdamW, SGD, Lion or Muon")
    if reader == "torch.nn.utils.clip_grad":
        raise paramshard.FailedPreconditionError(
            "clip gradients: they are in the daemon, which clips them: give the optimizer max_grad_norm=")
    if reader.startswith("torch._") or owner is None or not owner.has_gradients(parameter):
        return
    if reader not in _DROP_GRADIENTS:
        raise paramshard.UnimplementedError(
            f"read the gradient of {name} in {reader}: it is in the daemon; the optimizer's "
            "last_norm() is the norm of all gradients of a step")
    if frame.f_code.co_name == "zero_grad":
        _drop_by(frame.f_locals.get("self"), name, owner)


def _drop_by(dropper: object, name: str, owner: ParameterOwner) -> None:
    if not isinstance(dropper, nn.Module) or all(each is not owner.module for each in dropper.modules()):
        raise _partial_drop(name)
    owner.discard()


def check_set(parameter: torch.Tensor, name: str, owner: ParameterOwner | None, value: torch.Tensor | None) -> None:
    """Raises if a gradient is set, or an existing one is dropped."""
    if value is not None:
        raise paramshard.UnimplementedError(
            f"set the gradient of {name}: gradients come from backward(), and are in the daemon")
    if owner is not None and owner.has_gradients(parameter):
        raise _partial_drop(name)


def _partial_drop(name: str) -> paramshard.UnimplementedError:
    return paramshard.UnimplementedError(
        f"drop the gradient of {name}: the daemon drops the gradients of all parameters together; call zero_grad() of "
        "the optimizer")


def module_of(frame: types.FrameType) -> str:
    """Returns the name of the Python module whose code the frame runs."""
    return frame.f_globals.get("__name__", "")
