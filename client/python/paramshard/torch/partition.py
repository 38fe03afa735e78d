"""How a module's parameters are cut into units."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

import paramshard
from paramshard.torch.placeholder import Placeholder
from paramshard.torch.unit import Unit, UnitParameter

UnitModules = nn.Module | Sequence[nn.Module]
_MOST_NAME_BYTES = 512  # of a unit


def partition(module: nn.Module, units: Iterable[UnitModules], *, param_dtype: torch.dtype | None,
              device: torch.device) -> list[Unit]:
    """Makes the units. A parameter belongs to the innermost of their modules that has it.

    InvalidArgumentError for modules that are not the model's, or in two units; for parameters in no unit, already
    sharded, or of a kind that cannot be; names them.
    """
    groups = [[unit] if isinstance(unit, nn.Module) else list(unit) for unit in units]
    names = {each: name for name, each in module.named_modules()}
    paths = list(module.named_modules(remove_duplicate=False))  # a module may be in several others
    unit_of = _units_by_path(_units_by_module(groups, names), paths)
    made = [Unit(name, group) for name, group in zip(_names_of(groups, names), groups)]
    by_parameter: dict[nn.Parameter, tuple[int, UnitParameter]] = {}
    borrowed: list[set[int]] = [set() for _ in made]
    homeless: list[str] = []
    for prefix, owner in paths:
        for attribute, parameter in owner._parameters.items():
            if parameter is None:
                continue
            name = f"{prefix}.{attribute}" if prefix else attribute
            _check(name, parameter)
            if isinstance(owner, nn.Embedding | nn.EmbeddingBag) and owner.max_norm is not None:
                raise paramshard.UnimplementedError(
                    f"shard: {name}: an embedding without max_norm expected, which would write weights in the forward, "
                    "where they are lost")
            unit = _innermost(prefix, unit_of)
            if unit is None:
                if prefix == names[owner]:
                    homeless.append(name)
                continue
            if parameter not in by_parameter:
                dtype = param_dtype or parameter.dtype
                by_parameter[parameter] = unit, UnitParameter(name, parameter, dtype, device)
                made[unit].parameters.append(by_parameter[parameter][1])
            home, known = by_parameter[parameter]
            known.names.append(name)
            if (owner, attribute) not in known.places:
                known.places.append((owner, attribute))
            if home != unit:
                borrowed[unit].add(home)
    if homeless:
        raise paramshard.InvalidArgumentError(
            f"shard: every parameter in a unit expected, got none for {_some(homeless)}: list the modules that they "
            "belong to, or the model itself as a last unit")
    _check_no_other_names(paths, by_parameter)
    for unit, homes in zip(made, borrowed):
        unit.lenders = [made[home] for home in sorted(homes)]
        if not unit.parameters and not homes:
            raise paramshard.InvalidArgumentError(f"shard: units with parameters expected, {unit.name} has none")
    return made


def _check_no_other_names(paths: list[tuple[str, nn.Module]], known: Mapping[nn.Parameter, Any]) -> None:
    """A parameter that a module also has in a list of its own would stay there as it is now, and never be trained."""
    for prefix, owner in paths:
        if isinstance(owner, nn.RNNBase):
            continue  # it looks at its list before it uses it
        for attribute, value in vars(owner).items():
            if attribute in ("_parameters", "_buffers", "_modules"):
                continue
            values = value.values() if isinstance(value, dict) else value
            if not isinstance(value, (dict, list, tuple)):
                values = [value]
            if any(isinstance(each, nn.Parameter) and each in known for each in values):
                raise paramshard.InvalidArgumentError(
                    f"shard: parameters that modules have under their names alone expected, got one in "
                    f"{prefix or 'the model'}.{attribute}: use an nn.ParameterList, or look it up when it is needed")


def _units_by_module(groups: list[list[nn.Module]], names: dict[nn.Module, str]) -> dict[nn.Module, int]:
    unit_of: dict[nn.Module, int] = {}
    for index, group in enumerate(groups):
        for each in group:
            if each not in names:
                raise paramshard.InvalidArgumentError(
                    f"shard: modules of the model expected, got another {type(each).__name__} in unit {index}")
            if isinstance(each, nn.ModuleList | nn.ModuleDict) and type(each).forward is nn.Module.forward:
                raise paramshard.InvalidArgumentError(
                    f"shard: modules with a forward expected, got the {type(each).__name__} {names[each]}, which nobody "
                    "calls: list its modules, as units of their own or as one in a list")
            if each in unit_of:
                raise paramshard.InvalidArgumentError(
                    f"shard: every module in one unit expected, {names[each] or 'the model'} is in two")
            unit_of[each] = index
    return unit_of


def _units_by_path(unit_of: dict[nn.Module, int], paths: list[tuple[str, nn.Module]]) -> dict[str, int]:
    return {path: unit_of[each] for path, each in paths if each in unit_of}


def _innermost(prefix: str, unit_of: dict[str, int]) -> int | None:
    while True:
        if prefix in unit_of:
            return unit_of[prefix]
        if not prefix:
            return None
        prefix = prefix.rpartition(".")[0]


def _names_of(groups: list[list[nn.Module]], names: dict[nn.Module, str]) -> list[str]:
    """The daemon knows units by these: a model that it has is resumed with the names that it was made with."""
    for root in ("model", ".model"):  # the latter is no module's path
        found = [_name_of([names[each] or root for each in group]) for group in groups]
        if len(set(found)) == len(found):
            break
    return found


def _name_of(group: list[str]) -> str:
    name = "+".join(group)
    return name if len(name.encode()) <= _MOST_NAME_BYTES else f"{group[0]}..{group[-1]}"


def _check(name: str, parameter: nn.Parameter) -> None:
    if isinstance(parameter, Placeholder):
        raise paramshard.InvalidArgumentError(f"shard: a module that is not sharded yet expected, {name} is")
    if isinstance(parameter, nn.parameter.UninitializedParameter):
        raise paramshard.InvalidArgumentError(
            f"shard: {name} has no shape yet: run the model once, so that its lazy modules are made")
    if hasattr(parameter, "placements"):
        raise paramshard.UnimplementedError(
            f"shard: {name} is a DTensor: tensor and expert parallelism beside this are not supported; FSDP2 is")
    if parameter.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise paramshard.InvalidArgumentError(
            f"shard: {name}: a parameter of float32, bfloat16 or float16 expected, got {parameter.dtype}")


def _some(names: list[str]) -> str:
    most = 5
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
