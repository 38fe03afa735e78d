"""Optimizers that would step a sharded model's parameters, and find no gradients.

Classes that derive from torch.optim.Optimizer are refused when they are made of a sharded module's parameters, and when
they step parameters that they have from before shard(), or from inside of unsharded(). Placeholder refuses other
classes when they read a gradient.
"""

from __future__ import annotations

import types
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

import paramshard

_NAME = "_paramshard_name"  # which a GatheredParameter has already


def mark_sharded(parameter: torch.Tensor, name: str) -> None:
    """Marks a tensor whose parameter, of this name, the daemon steps; other optimizers may not take it."""
    setattr(parameter, _NAME, name)


def steps_in_daemon(kind: type[torch.optim.Optimizer]) -> type[torch.optim.Optimizer]:
    """Marks an optimizer class, and those that derive from it, as allowed (a class decorator)."""
    kind._steps_in_daemon = True
    return kind


def refuse_made_by(frame: types.FrameType, name: str) -> None:
    """Refuses the optimizer that takes a parameter by this frame of torch, if one does."""
    optimizer = frame.f_locals.get("self")
    if (frame.f_globals.get("__name__") == torch.optim.Optimizer.__module__ and
            isinstance(optimizer, torch.optim.Optimizer) and not getattr(type(optimizer), "_steps_in_daemon", False)):
        _refuse(optimizer, name)


def _refuse_step(optimizer: torch.optim.Optimizer, args: tuple, kwargs: dict[str, Any]) -> None:
    if getattr(type(optimizer), "_steps_in_daemon", False):
        return
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            name = getattr(parameter, _NAME, None)
            if name is not None:
                _refuse(optimizer, name)


def _refuse(optimizer: torch.optim.Optimizer, name: str) -> None:
    raise paramshard.UnimplementedError(
        f"{type(optimizer).__name__}: {name} is sharded, and the daemon has its gradients: make a "
        "paramshard.torch.AdamW, SGD, Lion or Muon of the model's parameters after shard(), and other optimizers of "
        "other parameters")


register_optimizer_step_pre_hook(_refuse_step)
