"""Partition of a module's parameters into units."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from torch import nn

import paramshard
from paramshard._core import MAX_NAME_BYTES
from paramshard.torch.dtypes import PARAMETER_DTYPES, listing
from paramshard.torch.initial_values import WatchedParameter
from paramshard.torch.memory_block import place_of
from paramshard.torch.messages import some
from paramshard.torch.placeholder import Placeholder
from paramshard.torch.stale_parameter import StaleParameter
from paramshard.torch.torch_internals import forward_pre_hooks, has_gradient_hooks, own_buffers, own_parameters
from paramshard.torch.unit import Unit
from paramshard.torch.unit_parameter import UnitParameter
from paramshard.torch.wrappers import wrapper_of

UnitModules = nn.Module | Sequence[nn.Module]
_OWN_KINDS = (torch.Tensor, nn.Parameter, nn.Buffer)  # classes whose storage says where their elements are


def partition(module: nn.Module, units: Iterable[UnitModules], *, param_dtype: torch.dtype | None,
              device: torch.device) -> list[Unit]:
    """Makes the units. A parameter belongs to the innermost unit that has it.

    Parameters without elements are in no unit. InvalidArgumentError names modules that are not the model's or are in
    two units, and parameters in no unit, already sharded, or of a kind that is not supported.
    """
    if isinstance(units, nn.Module) and not hasattr(units, "__iter__"):
        raise paramshard.InvalidArgumentError(
            f"shard: want units= a list of modules, got {type(units).__name__}: write units=[model]")
    groups = [[unit] if isinstance(unit, nn.Module) else list(unit) for unit in units]
    names = {each: name for name, each in module.named_modules()}
    paths = list(module.named_modules(remove_duplicate=False))  # a module may be in several others
    unit_of = _units_by_path(_units_by_module(groups, names), paths)
    made = [Unit(name, group) for name, group in zip(_names_of(groups, names), groups)]
    for prefix, owner in paths:
        _check_module(prefix, owner)
    by_parameter: dict[nn.Parameter, tuple[int, UnitParameter]] = {}
    tied: list[set[int]] = [set() for _ in made]  # units that have parameters of each unit's modules
    unassigned: list[str] = []
    for prefix, owner in paths:
        for attribute, parameter in own_parameters(owner).items():
            if parameter is None:
                continue
            name = f"{prefix}.{attribute}" if prefix else attribute
            _check(name, parameter)
            if not parameter.numel():
                continue  # it stays in the module: there is nothing to gather
            if isinstance(owner, nn.Embedding | nn.EmbeddingBag) and owner.max_norm is not None:
                raise paramshard.UnimplementedError(
                    f"shard: {name}: max_norm of an embedding is not supported: it writes weights in the forward, "
                    "where writes are lost")
            unit = _innermost(prefix, unit_of)
            if unit is None:
                if prefix == names[owner]:
                    unassigned.append(name)
                continue
            if parameter not in by_parameter:
                dtype = param_dtype or parameter.dtype
                by_parameter[parameter] = unit, UnitParameter(name, parameter, dtype, device)
                made[unit].parameters.append(by_parameter[parameter][1])
            owning_unit, known = by_parameter[parameter]
            known.names.append(name)
            if (owner, attribute) not in known.places:
                known.places.append((owner, attribute))
            if owning_unit != unit:
                tied[unit].add(owning_unit)
    if unassigned:
        raise paramshard.InvalidArgumentError(
            f"shard: parameters in no unit: {some(unassigned)}: list the modules that they belong to, or the model "
            "itself as a last unit")
    if not by_parameter:
        raise paramshard.InvalidArgumentError("shard: the module has no parameters")
    _check_memory({known.name: parameter for parameter, (_, known) in by_parameter.items()}, paths)
    for unit, others in zip(made, tied):
        unit.tied_units = [made[other] for other in sorted(others)]
    return made


def _check_memory(parameters: Mapping[str, nn.Parameter], paths: list[tuple[str, nn.Module]]) -> None:
    """Refuses tensors that share memory with a parameter: they would keep its present values."""
    by_storage: dict[int, list[tuple[str, nn.Parameter]]] = {}
    for name, parameter in parameters.items():
        others = by_storage.setdefault(place_of(parameter)[0], [])
        for other, values in others:
            if _overlap(parameter, values):
                raise paramshard.InvalidArgumentError(
                    f"shard: {name} and {other} share memory: use one nn.Parameter in both places, which ties them, or "
                    "give one of them a clone()")
        others.append((name, parameter))
    for prefix, owner in paths:
        for attribute, value in _tensors_beside_parameters(owner):
            for name, parameter in by_storage.get(place_of(value)[0], []):
                if value is parameter or _overlap(parameter, value):
                    raise paramshard.InvalidArgumentError(
                        f"shard: {prefix or 'the model'}.{attribute} holds {name}, or a view of it, which would keep "
                        "the values of now: use an nn.ParameterList, or look it up when it is needed")


def _tensors_beside_parameters(owner: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields buffers and tensor attributes of a module, and the tensors in its lists and dictionaries."""
    # Old weight_norm, spectral_norm and pruning compute an attribute anew before each forward.
    computed = {getattr(hook, "name", getattr(hook, "_tensor_name", None)) for hook in forward_pre_hooks(owner)}
    if isinstance(owner, nn.RNNBase):
        computed.add("_flat_weights")  # which it checks before use
    for attribute, value in (*own_buffers(owner).items(), *vars(owner).items()):
        if attribute in ("_parameters", "_buffers", "_modules") or attribute in computed:
            continue
        values = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else [value]
        for each in values:
            if isinstance(each, torch.Tensor) and each.layout == torch.strided and type(each) in _OWN_KINDS:
                yield attribute, each


def _overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Returns True if two tensors of one storage have an element in common."""
    if not one.numel() or not other.numel():
        return False
    first, last = _extent(one)
    other_first, other_last = _extent(other)
    if last < other_first or other_last < first:
        return False
    if one.element_size() != other.element_size():
        return True
    begin = min(one.storage_offset(), other.storage_offset())
    taken = torch.zeros(max(last, other_last) // one.element_size() - begin + 1, dtype=torch.bool)
    taken.as_strided(one.shape, one.stride(), one.storage_offset() - begin).fill_(True)
    return bool(taken.as_strided(other.shape, other.stride(), other.storage_offset() - begin).any())


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    """Returns the offsets in its storage, in bytes, of its first and its last element."""
    first = tensor.storage_offset()
    last = first + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
    return first * tensor.element_size(), last * tensor.element_size()


def _units_by_module(groups: list[list[nn.Module]], names: dict[nn.Module, str]) -> dict[nn.Module, int]:
    unit_of: dict[nn.Module, int] = {}
    for index, group in enumerate(groups):
        for each in group:
            if each not in names:
                raise paramshard.InvalidArgumentError(
                    f"shard: unit {index} has a {type(each).__name__} that is not a module of the model")
            if isinstance(each, nn.ModuleList | nn.ModuleDict) and type(each).forward is nn.Module.forward:
                raise paramshard.InvalidArgumentError(
                    f"shard: the {type(each).__name__} {names[each]} has no forward: list its modules, as units of "
                    "their own or as one in a list")
            if each in unit_of:
                raise paramshard.InvalidArgumentError(
                    f"shard: {names[each] or 'the model'} is in two units")
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
    """Returns the names by which the daemon knows units: a model is resumed with the same names."""
    for root in ("model", ".model"):  # the latter is no module's path
        found = [_name_of([names[each] or root for each in group]) for group in groups]
        if len(set(found)) == len(found):
            break
    return found


def _name_of(group: list[str]) -> str:
    name = "+".join(group)
    return name if len(name.encode()) <= MAX_NAME_BYTES else f"{group[0]}..{group[-1]}"


def _check_module(name: str, module: nn.Module) -> None:
    name = name or "the model"
    if isinstance(module, torch.jit.ScriptModule):
        raise paramshard.UnimplementedError(
            f"shard: {name} is a module of torch.jit, whose parameters cannot be taken out: shard the module that was "
            "scripted or traced")
    wrapper = next(filter(None, (wrapper_of(kind.__module__) for kind in type(module).__mro__)), None)
    if wrapper is not None:
        raise paramshard.UnimplementedError(
            f"shard: {name} is wrapped in {wrapper}: ranks share parameters and gradients through the daemon already; "
            "shard the module itself")


def _check(name: str, parameter: nn.Parameter) -> None:
    if isinstance(parameter, (Placeholder, StaleParameter)):
        raise paramshard.InvalidArgumentError(f"shard: {name} is already sharded")
    if isinstance(parameter, nn.parameter.UninitializedParameter):
        raise paramshard.InvalidArgumentError(
            f"shard: {name} has no shape yet: run the model once, so that its lazy modules are made")
    if has_gradient_hooks(parameter):
        raise paramshard.UnimplementedError(
            f"shard: {name} has hooks on its gradient, which would not be called, because gradients go to the daemon "
            "as they come: remove them before")
    if hasattr(parameter, "placements"):
        raise paramshard.UnimplementedError(
            f"shard: {name} is a DTensor: tensor and expert parallelism beside this are not supported; FSDP2 is")
    if type(parameter) is not nn.Parameter and not isinstance(parameter, WatchedParameter):
        raise paramshard.UnimplementedError(
            f"shard: {name} is a {type(parameter).__name__}: want a plain nn.Parameter, without a quantized or other "
            "layout of its own")
    if parameter.layout != torch.strided:
        raise paramshard.UnimplementedError(
            f"shard: {name} has layout {parameter.layout}: want a dense parameter, such as its to_dense()")
    if parameter.dtype not in PARAMETER_DTYPES:
        raise paramshard.InvalidArgumentError(
            f"shard: {name}: want {listing(PARAMETER_DTYPES)}, got {parameter.dtype}")
