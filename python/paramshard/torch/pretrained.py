"""Initial values of a module, read from a folder of weights."""

from __future__ import annotations

import copy
import os
import pathlib
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import paramshard
from paramshard.torch.messages import some
from paramshard.torch.peft_adapters import BaseModel, depends_on_base, is_of_transformers
from paramshard.torch.torch_internals import non_persistent_buffers, own_buffers
from paramshard.torch.unit_parameter import UnitParameter
from paramshard.torch.weights_folder import is_value, kind_of, read_folder


@dataclass
class _Found:
    """A folder's tensors by their names in the model."""

    tensors: dict[str, torch.Tensor]
    additional: set[str]  # keys that the model has no place for
    refused: dict[str, str]  # by key: why it has no values


def read(module: nn.Module, directory: str | os.PathLike[str], parameters: Sequence[UnitParameter], *,
         reads: bool) -> dict[str, torch.Tensor]:
    """Returns values by parameter. Without `reads` the values have no meaning: another rank imports them.

    Persistent buffers are copied into the module, with or without `reads`; a warning names buffers that the files lack,
    which stay as they are. Adapters of PEFT have no values in the folder, which belongs to their base model: they begin
    as they were made, and FailedPreconditionError names one that was made from the base model's values. NotFoundError
    names parameters that the files lack, InvalidArgumentError parameters of other shapes or unknown encodings, and tied
    ones with several values in the files. A warning names keys that nothing takes.
    """
    adapter = depends_on_base(module)
    if adapter is not None:
        raise paramshard.FailedPreconditionError(
            f"load_pretrained {directory}: adapter {adapter} was made from other values of the base model than the "
            "folder has: open the folder by from_pretrained() before get_peft_model()")
    base = BaseModel(module)
    names = {parameter.name: _names_in(base, parameter.names) for parameter in parameters}
    names = {name: known for name, known in names.items() if known}
    buffers = {own: buffer for name, buffer in _persistent_buffers(module).items()
               if (own := base.name_of(name)) is not None}
    if not reads and not buffers:
        return {name: torch.empty(0) for name in names}
    folder = pathlib.Path(directory)
    empty = {own: parameter for name, parameter in module.named_parameters(remove_duplicate=False)
             if not parameter.numel() and (own := base.name_of(name)) is not None}
    places = {own: parameter.placeholder for parameter in parameters for own in names.get(parameter.name, ())}
    places |= buffers | empty
    needed = places if reads else buffers
    found = _find(base.module, folder, needed)
    if reads:
        _check_names(folder, found, names, buffers)
    _check_shapes(folder, found, needed)
    with torch.no_grad():
        for name, buffer in buffers.items():
            if name in found.tensors:
                buffer.copy_(found.tensors[name])
    if is_of_transformers(base.module) and hasattr(base.module.config, "quantization_config"):
        del base.module.config.quantization_config  # the model is saved with decoded values
    return {name: _value(folder, found, own) if reads else torch.empty(0) for name, own in names.items()}


def _names_in(base: BaseModel, names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(own for name in names if (own := base.name_of(name)) is not None))


def _persistent_buffers(module: nn.Module) -> dict[str, torch.Tensor]:
    return {f"{prefix}.{name}" if prefix else name: buffer
            for prefix, owner in module.named_modules(remove_duplicate=False)
            for name, buffer in own_buffers(owner).items()
            if buffer is not None and name not in non_persistent_buffers(owner)}


def _find(model: nn.Module, folder: pathlib.Path, places: Mapping[str, torch.Tensor]) -> _Found:
    renames = is_of_transformers(model)
    contents = read_folder(folder, None if renames else places)
    prefix = f"{getattr(model, 'base_model_prefix', '')}."  # which transformers adds or removes
    buffers = {name for name, _ in model.named_buffers()}
    refused = contents.refused | {
        key: f"{folder}: {key}: want values of a parameter, got {kind_of(tensor)}"
        for key, tensor in contents.tensors.items()
        if not is_value(tensor) and not {key, prefix + key, key.removeprefix(prefix)} & buffers}
    state = {key: tensor for key, tensor in contents.tensors.items() if key not in refused}
    if not renames:
        return _Found(state, contents.unread, refused)
    tensors, additional = _load_by_transformers(model, folder, state)
    return _Found(tensors, additional, refused)


def _load_by_transformers(model: nn.Module, folder: pathlib.Path,
                          state: dict[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], set[str]]:
    """Renames and merges tensors by the model's own from_pretrained, without values that it makes up."""
    config = copy.deepcopy(model.config)
    if hasattr(config, "quantization_config"):
        del config.quantization_config  # values are decoded
    try:
        whole, report = type(model).from_pretrained(
            None, config=config, state_dict=state, dtype=_type_of(state), output_loading_info=True,
            ignore_mismatched_sizes=True)
    except (RuntimeError, ValueError) as error:
        raise paramshard.InvalidArgumentError(f"load_pretrained {folder}: transformers failed: {error}") from error
    for name, found, wanted in report["mismatched_keys"]:
        raise _wrong_shape(folder, name, wanted, found)
    tensors: dict[str, torch.Tensor] = {**dict(whole.named_parameters(remove_duplicate=False)),
                                        **dict(whole.named_buffers(remove_duplicate=False))}
    return ({name: tensor.detach() for name, tensor in tensors.items() if name not in report["missing_keys"]},
            set(report["unexpected_keys"]))


def _type_of(state: Mapping[str, torch.Tensor]) -> torch.dtype:
    """Returns a type in which no value loses bits on its way to float32."""
    types = {tensor.dtype for tensor in state.values() if tensor.is_floating_point()}
    return types.pop() if len(types) == 1 and types <= {torch.bfloat16, torch.float16} else torch.float32


def _check_names(folder: pathlib.Path, found: _Found, names: Mapping[str, list[str]],
                 buffers: Mapping[str, Any]) -> None:
    missing = [own[0] for own in names.values() if not any(name in found.tensors for name in own)]
    refused = [found.refused[key] for key in found.refused
               if any(key.endswith(name) or name.endswith(key) for name in missing)] or list(found.refused.values())
    if missing and refused:
        raise paramshard.InvalidArgumentError(f"load_pretrained: {refused[0]}")
    if missing:
        raise paramshard.NotFoundError(
            f"load_pretrained {folder}: {some(missing)} not found{_advice(missing, found.additional)}")
    additional = sorted(found.additional | found.refused.keys())
    if additional:
        warnings.warn(f"load_pretrained {folder}: the model has no place for {some(additional)}, which are not loaded",
                      stacklevel=5)
    kept = [name for name in buffers if name not in found.tensors]
    if kept:
        warnings.warn(f"load_pretrained {folder}: buffers {some(kept)} not found; they stay as they are",
                      stacklevel=5)


def _advice(missing: Sequence[str], additional: Iterable[str]) -> str:
    """Returns advice for an error: how keys differ from names, if they differ by a prefix."""
    for key in sorted(additional):
        for name in missing:
            if key.endswith(f".{name}"):
                return f"; the folder has {key}: rename its keys, which begin with {key.removesuffix(name)!r}"
            if name.endswith(f".{key}"):
                return f"; the folder has {key}: rename its keys, which lack {name.removesuffix(key)!r} before them"
    return f"; the folder has {some(sorted(additional))} instead" if additional else ""


def _check_shapes(folder: pathlib.Path, found: _Found, places: Mapping[str, torch.Tensor]) -> None:
    for name, place in places.items():
        tensor = found.tensors.get(name)
        if tensor is not None and tensor.shape != place.shape:
            raise _wrong_shape(folder, name, place.shape, tensor.shape)


def _wrong_shape(folder: pathlib.Path, name: str, wanted: Sequence[int], found: Sequence[int]) -> paramshard.Error:
    return paramshard.InvalidArgumentError(
        f"load_pretrained {folder}: {name}: want shape {list(wanted)}, got {list(found)}")


def _value(folder: pathlib.Path, found: _Found, names: Sequence[str]) -> torch.Tensor:
    """Returns the value of a parameter, which is the same under all its names in the files."""
    first, *others = (name for name in names if name in found.tensors)
    value = found.tensors[first]
    for other in others:
        if found.tensors[other] is not value and not torch.equal(found.tensors[other], value):
            raise paramshard.InvalidArgumentError(
                f"load_pretrained {folder}: {first} and {other} are one parameter of the model, and differ in the "
                "folder: make the model with parameters of their own (tie_word_embeddings=False, if it is one of "
                "transformers), or leave one of them out of the files")
    return value
