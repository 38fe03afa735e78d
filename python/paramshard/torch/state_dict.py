"""Values for `state_dict()` of a sharded module, or of a part of it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from paramshard.torch.exported_values import ExportedValues
from paramshard.torch.memory_block import place_of
from paramshard.torch.placeholder import Placeholder
from paramshard.torch.torch_internals import (
    call_state_dict_hook_first,
    own_modules,
    own_parameters,
    without_forward_hooks,
)
from paramshard.torch.unit import Unit
from paramshard.torch.unit_parameter import UnitParameter


class StateDicts:
    """Hooks that put full values into dictionaries of `state_dict()`.

    torch goes from module to module, and each adds its own keys. Values come to a module's keys before other hooks of
    it see them: hooks that a program has registered work as without a daemon. Values of a unit are read once for a
    dictionary, and a tied parameter has the same tensor under each of its names.
    """

    def __init__(self, units: Sequence[Unit], read: Callable[[Sequence[UnitParameter]], dict[str, torch.Tensor]]):
        """`read` returns values in full precision, by name."""
        self._read = read
        self._at = {place: parameter for unit in units for parameter in unit.parameters for place in parameter.places}
        self._by_name = {parameter.name: parameter for parameter in self._at.values()}
        self._unit_of = {parameter.name: unit for unit in units for parameter in unit.parameters}
        self._units = units
        self._dictionaries: list[tuple[nn.Module, str]] = []  # calls of state_dict, each inside of the one before
        self._wanted: set[str] = set()  # parameters of the outermost one
        self._values: dict[str, torch.Tensor] = {}  # likewise
        self._type: torch.dtype | None = None  # of all values; None: each has its module's
        self._reads = True
        self.exported = ExportedValues()

    def attach(self, module: nn.Module, hook: Callable[[str], Callable[..., None]]) -> None:
        """Registers the hooks. `hook` makes a hook from the name of a method."""
        for each in module.modules():
            each.register_state_dict_pre_hook(hook("begin"))
            call_state_dict_hook_first(each, each.register_state_dict_post_hook(hook("fill")))

    def masters_of(self, module: nn.Module) -> dict[str, Any]:
        """Returns `state_dict()` in full precision."""
        self._type = torch.float32
        try:
            return module.state_dict()
        finally:
            self._type = None

    @contextlib.contextmanager
    def without_values(self) -> Iterator[None]:
        """Inside, parameters in `state_dict()` are placeholders, or have memory that goes with their unit's."""
        self._reads = False
        try:
            yield
        finally:
            self._reads = True

    def value_of(self, value: Any) -> Any:
        """Returns the parameter that a dictionary's value stands for, in the module's type; else the value itself."""
        parameter = self._parameter(value)
        return value if parameter is None else self._read([parameter])[parameter.name].to(parameter.dtype)

    def type_of(self, parameter: nn.Parameter) -> torch.dtype:
        """Returns its type in `state_dict()`, which may differ from the type of the computation."""
        return self._parameter(parameter).dtype

    @contextlib.contextmanager
    def materialized(self, module: nn.Module) -> Iterator[None]:
        """Inside, a part of the model has its values in host memory, and calling it gathers nothing.

        Any rank may do it alone.
        """
        places = [(place, self._at[place]) for each in module.modules() for attribute in own_parameters(each)
                  if (place := (each, attribute)) in self._at]
        values = {parameter.name: self._read([parameter])[parameter.name].to(parameter.dtype)
                  for _, parameter in places}
        before = [(owner, attribute, own_parameters(owner)[attribute]) for (owner, attribute), _ in places]
        try:
            for (owner, attribute), parameter in places:
                own_parameters(owner)[attribute] = nn.Parameter(values[parameter.name], requires_grad=False)
            with without_forward_hooks(module):
                yield
        finally:
            for owner, attribute, parameter in before:
                own_parameters(owner)[attribute] = parameter

    # --- Hooks ---

    def begin(self, module: nn.Module, prefix: str, keep_vars: bool) -> None:
        # Calls that an exception has ended are still listed, and this one is not inside of them.
        while self._dictionaries and not _is_part(module, prefix, *self._dictionaries[-1]):
            self._dictionaries.pop()
        if not self._dictionaries:
            self._values.clear()
            self._wanted = {self._at[each, attribute].name for each in module.modules()
                            for attribute in own_parameters(each) if (each, attribute) in self._at}
        self._dictionaries.append((module, prefix))

    def fill(self, module: nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
        while self._dictionaries and self._dictionaries.pop() != (module, prefix):
            pass
        if self._reads:
            # Keys that a module adds under other names are found at the end.
            own = [prefix + attribute for attribute in own_parameters(module)] if self._dictionaries else list(state)
            for key in own:
                self._fill_key(state, key)
        if not self._dictionaries:
            self._values.clear()

    def _fill_key(self, state: dict[str, Any], key: str) -> None:
        value = state.get(key)
        parameter = self._parameter(value)
        if parameter is not None:
            state[key] = self._value(parameter)
        elif self._unit_around(value) is not None:
            state[key] = value.clone()  # a view of a gathered parameter, whose memory goes with its unit's

    def _parameter(self, value: Any) -> UnitParameter | None:
        """Returns the parameter of a placeholder, or of a tensor that is a whole gathered parameter; else None."""
        if isinstance(value, Placeholder):
            found = self._by_name.get(value.parameter_name)
            return found if found is None or found.placeholder.owner is value.owner else None
        unit = self._unit_around(value)
        return None if unit is None else next(
            (each for each in unit.parameters if place_of(each.unsharded) == place_of(value) and
             (each.unsharded.dtype, each.unsharded.shape, each.unsharded.stride()) ==
             (value.dtype, value.shape, value.stride())), None)

    def _unit_around(self, value: Any) -> Unit | None:
        if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
            return None
        storage = place_of(value)[0]
        return next((unit for unit in self._units if storage in unit.storages), None)

    def _value(self, parameter: UnitParameter) -> torch.Tensor:
        if parameter.name not in self._values:
            others = [each for each in self._unit_of[parameter.name].parameters if each.name in self._wanted]
            with torch.inference_mode(False):
                read = self._read(others if parameter in others else [parameter])
                self._values |= {name: value.to(self._type or self._by_name[name].dtype)
                                 for name, value in read.items()}
            for name in read:
                self.exported.note(name, self._values[name])
        return self._values[parameter.name]


def _is_part(module: nn.Module, prefix: str, whole: nn.Module, prefix_of_whole: str) -> bool:
    return any(part is module and prefix == f"{prefix_of_whole}{name}." for name, part in own_modules(whole).items())
