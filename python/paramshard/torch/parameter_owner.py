"""The sharded model, as its parameters see it."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import nn


class ParameterOwner(Protocol):
    """Interface of ShardedModel for the parameters that refer to it."""

    module: nn.Module

    def has_gradients(self, parameter: torch.Tensor) -> bool:
        """Returns True if a plain parameter of torch would have a gradient now."""

    def has_place(self, placeholder: torch.Tensor, module: nn.Module, attribute: str) -> bool:
        """Returns True if shard() has found the parameter in this attribute of the module."""

    def set_value(self, name: str, value: torch.Tensor) -> None:
        """Sets the values of a parameter that is not gathered."""

    def discard(self) -> None:
        """Drops the gradients since the last step."""
