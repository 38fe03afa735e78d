"""Folder to which a sharded module is saved."""

from __future__ import annotations

import functools
import inspect
import os
import pathlib
import weakref
from typing import Any

import torch
from torch import nn

import paramshard
from paramshard.torch.peft_adapters import (has_adapters, is_of_transformers, materialized_prompts, plain_name,
                                            uncompiled)
from paramshard.torch.state_dict import StateDicts

_FILE = "model.safetensors"


def write(module: nn.Module, directory: str | os.PathLike[str], state: dict[str, Any]) -> None:
    """Writes a folder that transformers opens, for a model of transformers; else one file of safetensors.

    Keys with the same tensor are names of a tied parameter, which a file of safetensors has once. InvalidArgumentError
    names a value that such a file cannot have.
    """
    folder = pathlib.Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    module = uncompiled(module)
    state = _writable({plain_name(key): value for key, value in state.items()})
    if is_of_transformers(module) or has_adapters(module):
        module.save_pretrained(folder, state_dict=state)
        return
    from safetensors.torch import save_file
    first = {id(value): key for key, value in reversed(state.items())}
    save_file({key: value for key, value in state.items() if first[id(value)] == key}, folder / _FILE,
              metadata={"format": "pt"})


def _writable(state: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Gives every value memory of its own, in the order of its elements."""
    made: dict[int, torch.Tensor] = {}  # by value
    storages: set[int] = set()
    for key, value in state.items():
        if not isinstance(value, torch.Tensor) or value.layout != torch.strided or value.dtype == torch.complex128:
            kind = value.layout if isinstance(value, torch.Tensor) and value.layout != torch.strided else getattr(
                value, "dtype", type(value).__name__)
            raise paramshard.InvalidArgumentError(
                f"save_pretrained: {key}: want a dense tensor of a type that safetensors has, got {kind}; save "
                "state_dict() by torch.save() instead")
        if id(value) in made:
            continue
        storage = value.untyped_storage()
        own = value.resolve_conj().resolve_neg().contiguous()
        if own.untyped_storage().data_ptr() == storage.data_ptr() and (
                storage.nbytes() != own.nbytes or storage.data_ptr() in storages):
            own = own.clone()
        storages.add(storage.data_ptr())
        made[id(value)] = own
    return {key: made[id(value)] for key, value in state.items()}


def patch_save_pretrained(module: nn.Module, dictionaries: StateDicts) -> None:
    """Makes `module.save_pretrained()` of transformers or PEFT write the same files as without a daemon."""
    module = uncompiled(module)
    if not (is_of_transformers(module) or has_adapters(module)):
        return
    save = type(module).save_pretrained
    saved, values = weakref.ref(module), weakref.ref(dictionaries)  # both live while the module is called

    @functools.wraps(save)
    def save_pretrained(*arguments: Any, **options: Any) -> Any:
        given = inspect.signature(save).bind(saved(), *arguments, **options).arguments
        saved_type = _type_of_file(saved(), values(), given.get("state_dict"))
        with materialized_prompts(saved(), values()):
            result = save(saved(), *arguments, **options)
        if not has_adapters(saved()) and given.get("is_main_process", True):
            # The config has the type of placeholders now, which is the type of the computation.
            saved().config.dtype = str(saved_type).removeprefix("torch.")
            saved().config.save_pretrained(given["save_directory"])
        return result

    module.save_pretrained = save_pretrained


def _type_of_file(module: nn.Module, dictionaries: StateDicts, state: dict[str, Any] | None) -> torch.dtype:
    """Returns the type for the config, which transformers takes from the first parameter."""
    name, parameter = next((name, each) for name, each in module.named_parameters() if each.numel())
    return state[name].dtype if state and name in state else dictionaries.type_of(parameter)
