"""A parameter of a unit, in both of its forms.

Outside of the unit's own work the module has a Placeholder. While the unit is gathered it has a parameter of torch with
memory. Autograd knows the latter alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import nn

import paramshard
from paramshard.torch.fp8 import Fp8Weight
from paramshard.torch.gathered_parameter import GRADIENT, Contents, GatheredParameter
from paramshard.torch.placeholder import Placeholder
from paramshard.torch.torch_internals import own_parameters, version_of


class ParameterRow(NamedTuple):
    """A parameter as the functions of paramshard._core see it that work on all parameters of a unit."""

    placeholder: Placeholder
    unsharded: GatheredParameter
    memory: torch.Tensor
    contents: Contents
    places: tuple[tuple[nn.Module, str], ...]


class UnitParameter:
    """A parameter of a unit, and every place of the module that has it (tied parameters have several)."""

    def __init__(self, name: str, like: nn.Parameter, dtype: torch.dtype, device: torch.device):
        self.name = name
        self.dtype = like.dtype  # of its module and of the state_dict; the type of the computation may differ
        self.names: list[str] = []  # by each path to it
        self.places: list[tuple[nn.Module, str]] = []
        self.placeholder = Placeholder(like, name=name, dtype=dtype, device=device, owner=None)
        # Attributes that programs set on a parameter are there in both.
        self._attributes = {key: value for key, value in vars(like).items() if not key.startswith("_paramshard")}
        self.placeholder.__dict__.update(self._attributes)
        self._contents: Contents = []
        self.unsharded = self._make_unsharded(torch.empty(like.shape, dtype=dtype, device=device))
        self.unsharded.untyped_storage().resize_(0)  # its unit's UnitMemory has memory for it
        self.fp8_weight: Fp8Weight | None = None  # of a Linear that multiplies in 8 bits
        self._memory: torch.Tensor | None = None
        self.was_trained = like.requires_grad  # when it was gathered last
        self.trainable = like.requires_grad  # as the daemon has it, once the model is open; until then as it was

    def _make_unsharded(self, memory: torch.Tensor) -> GatheredParameter:
        made = GatheredParameter(memory, self.placeholder, self._contents)
        made.__dict__.update(self._attributes)
        return made

    def row(self) -> ParameterRow:
        """Returns its present objects. Another row is needed after own_memory(), and when is_written() is True."""
        return ParameterRow(self.placeholder, self.unsharded, self._memory, self._contents, tuple(self.places))

    def own_memory(self) -> None:
        """Keeps the memory that its unit has given it."""
        self._memory = self.unsharded.own_memory()

    def write(self, values: torch.Tensor) -> None:
        """Writes values into its memory. Autograd does not count it as a change."""
        self._memory.copy_(values)

    def drop_gradient(self) -> None:
        GRADIENT.__set__(self.unsharded, None)

    def put_into_module(self, parameter: nn.Parameter) -> None:
        """Puts its placeholder or its unsharded parameter into the module, at all of its places."""
        for module, attribute in self.places:
            own_parameters(module)[attribute] = parameter

    def replaced(self) -> nn.Parameter | None:
        """Returns the parameter that the module has in place of the placeholder, if it was replaced."""
        return next((found for found in self._found() if found is not None and found is not self.unsharded and
                     not self._is_same(found)), None)

    def _is_same(self, found: nn.Parameter) -> bool:
        """Returns True for the parameter's own placeholder, and for copies of it by a conversion or nn.Parameter.

        A copy may have been frozen or thawed.
        """
        if type(found) is not Placeholder or found.parameter_name != self.name or (
                found.owner is not self.placeholder.owner):
            return False
        if found is not self.placeholder:
            self.placeholder.requires_grad_(found.requires_grad)
        return True

    def is_removed(self) -> bool:
        return any(found is None for found in self._found())

    def _found(self) -> Iterator[nn.Parameter | None]:
        for module, attribute in self.places:
            yield own_parameters(module).get(attribute)

    def follow_requires_grad(self) -> bool:
        """Returns True if it is trained. Between steps it may be frozen, or thawed if the daemon has its moments."""
        wanted = self.placeholder.requires_grad
        if wanted and not self.trainable:
            raise paramshard.FailedPreconditionError(
                f"train {self.name}: it was frozen when its optimizer was made, so the daemon has no moments of it; "
                "set requires_grad before, and freeze it after the optimizer is made")
        if self.unsharded.requires_grad != wanted:
            self.unsharded.requires_grad = wanted  # requires_grad_() is refused inside of transforms
        self.was_trained = wanted
        return wanted

    def keep_requires_grad(self) -> None:
        """Keeps a change of requires_grad that was made while it was gathered."""
        if self.unsharded.requires_grad != self.was_trained:
            self.placeholder.requires_grad_(self.unsharded.requires_grad)

    def is_touched(self, version: int) -> bool:
        """Returns False, quickly, if nothing has happened to it since it was gathered with this version."""
        unsharded = self.unsharded
        if version_of(unsharded) != version or self._contents or unsharded.data_ptr() != self._memory.data_ptr():
            return True
        for module, attribute in self.places:
            if own_parameters(module).get(attribute) is not unsharded:
                return True
        return False

    def is_written(self, version: int) -> bool:
        """Returns True if it was written, moved, or replaced. Undoes that, except for its values."""
        if type(self.unsharded) is not GatheredParameter:
            # torch.utils.swap_tensors has made another parameter of it.
            self._contents.clear()
            self.unsharded = self._make_unsharded(self._memory)
            self.unsharded.requires_grad = self.was_trained
            if self.fp8_weight is not None:
                self.fp8_weight.parameter = self.unsharded
            return True
        replaced = any(found is not self.unsharded and found is not self.placeholder for found in self._found())
        return any((replaced, version_of(self.unsharded) != version, self.unsharded.restore(),
                    self.unsharded.has_changed()))
