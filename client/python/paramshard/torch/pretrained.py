"""Values from and to folders of safetensors."""

from __future__ import annotations

import json
import os
import pathlib
import re
from collections.abc import Mapping

import torch
from torch import nn

import paramshard

_INDEX = "model.safetensors.index.json"
_FILE = "model.safetensors"
# What PEFT puts into the names of parameters that a model had before.
_WRAPPED = re.compile(r"\.(base_layer|original_module|modules_to_save\.[^.]+)\.")


def read(module: nn.Module, directory: str | os.PathLike[str], wanted: Mapping[str, torch.Tensor], *,
         reads: bool) -> dict[str, torch.Tensor]:
    """Values by parameter. Without `reads` there are names, and values of no meaning: another rank imports.

    Adapters of PEFT have no values in the folder, which is that of their base model: they begin as they were made.
    NotFoundError for parameters that the files lack, InvalidArgumentError for other shapes; names them.
    """
    adapts = hasattr(module, "get_base_model")  # of PEFT
    name_in_folder = {name: name for name in wanted} if not adapts else _names_before_adapters(module, wanted)
    if not reads:
        return {name: torch.empty(0) for name in name_in_folder}
    folder = pathlib.Path(directory)
    base = module.get_base_model() if adapts else module
    state = _by_transformers(base, folder) if hasattr(base, "from_pretrained") else _by_files(folder)
    missing = [name for name in name_in_folder.values() if name not in state]
    if missing:
        raise paramshard.NotFoundError(
            f"load_pretrained {folder}: values of all parameters expected, got none of {', '.join(missing[:5])}"
            f"{f' and {len(missing) - 5} more' if len(missing) > 5 else ''}")
    for name, own in name_in_folder.items():
        if state[own].shape != wanted[name].shape:
            raise paramshard.InvalidArgumentError(
                f"load_pretrained {folder}: {name}: shape {list(wanted[name].shape)} expected, got "
                f"{list(state[own].shape)}")
    return {name: state[own].detach() for name, own in name_in_folder.items()}


def _names_before_adapters(module: nn.Module, wanted: Mapping[str, torch.Tensor]) -> dict[str, str]:
    adapter = module.base_model.prefix  # "lora_", say
    return {name: _WRAPPED.sub(".", name.removeprefix("base_model.model.")) for name in wanted if adapter not in name}


def _by_transformers(module: nn.Module, folder: pathlib.Path) -> dict[str, torch.Tensor]:
    whole = type(module).from_pretrained(folder, config=module.config, dtype="auto")
    return dict(whole.named_parameters())


def _by_files(folder: pathlib.Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file
    if (folder / _INDEX).exists():
        files = sorted(set(json.loads((folder / _INDEX).read_text())["weight_map"].values()))
    elif (folder / _FILE).exists():
        files = [_FILE]
    else:
        files = sorted(path.name for path in folder.glob("*.safetensors"))
    if not files:
        raise paramshard.NotFoundError(f"load_pretrained {folder}: a folder with safetensors files expected")
    state: dict[str, torch.Tensor] = {}
    for file in files:
        state |= load_file(folder / file)
    return state


def write(module: nn.Module, directory: str | os.PathLike[str], state: dict[str, torch.Tensor]) -> None:
    """A folder that transformers opens, where the module is one of its models; else one file of safetensors."""
    folder = pathlib.Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    if hasattr(module, "save_pretrained"):
        module.save_pretrained(folder, state_dict=state)
        return
    from safetensors.torch import save_file
    by_storage: dict[int, str] = {}
    unique = {}
    for key, value in state.items():
        # Tied parameters have one value under several names, which the format does not allow.
        if by_storage.setdefault(value.untyped_storage().data_ptr(), key) == key:
            unique[key] = value.contiguous()
    save_file(unique, folder / _FILE, metadata={"format": "pt"})
