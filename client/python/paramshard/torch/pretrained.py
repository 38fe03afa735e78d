"""Values from and to folders of safetensors."""

from __future__ import annotations

import json
import os
import pathlib
import re
from collections.abc import Iterable, Mapping

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

    Persistent buffers are copied into the module, with or without `reads`; those that the files lack stay as they are.
    Adapters of PEFT have no values in the folder, which is that of their base model: they begin as they were made.
    NotFoundError for parameters that the files lack, InvalidArgumentError for other shapes; names them.
    """
    adapts = hasattr(module, "get_base_model")  # of PEFT
    buffers = _persistent_buffers(module)
    names = [*wanted, *buffers]
    name_in_folder = _names_before_adapters(module, names) if adapts else {name: name for name in names}
    buffers = {name: buffer for name, buffer in buffers.items() if name in name_in_folder}
    own = {name: name_in_folder[name] for name in wanted if name in name_in_folder}
    if not reads and not buffers:
        return {name: torch.empty(0) for name in own}
    folder = pathlib.Path(directory)
    base = module.get_base_model() if adapts else module
    needed = {name_in_folder[name] for name in (name_in_folder if reads else buffers)}
    state = _by_transformers(base, folder) if hasattr(base, "from_pretrained") else _by_files(folder, needed)
    present = {name: buffer for name, buffer in buffers.items() if name_in_folder[name] in state}
    missing = [name for name in own.values() if name not in state] if reads else []
    if missing:
        raise paramshard.NotFoundError(
            f"load_pretrained {folder}: values of all parameters expected, got none of {', '.join(missing[:5])}"
            f"{f' and {len(missing) - 5} more' if len(missing) > 5 else ''}")
    for name, tensor in [*((name, wanted[name]) for name in own if reads), *present.items()]:
        found = state[name_in_folder[name]]
        if found.shape != tensor.shape:
            raise paramshard.InvalidArgumentError(
                f"load_pretrained {folder}: {name}: shape {list(tensor.shape)} expected, got {list(found.shape)}")
    with torch.no_grad():
        for name, buffer in present.items():
            buffer.copy_(state[name_in_folder[name]])
    return {name: state[source].detach() if reads else torch.empty(0) for name, source in own.items()}


def _persistent_buffers(module: nn.Module) -> dict[str, torch.Tensor]:
    return {f"{prefix}.{name}" if prefix else name: buffer
            for prefix, owner in module.named_modules() for name, buffer in owner._buffers.items()
            if buffer is not None and name not in owner._non_persistent_buffers_set}


def _names_before_adapters(module: nn.Module, names: Iterable[str]) -> dict[str, str]:
    adapter = module.base_model.prefix  # "lora_", say
    return {name: _WRAPPED.sub(".", name.removeprefix("base_model.model.")) for name in names if adapter not in name}


def _by_transformers(module: nn.Module, folder: pathlib.Path) -> dict[str, torch.Tensor]:
    whole = type(module).from_pretrained(folder, config=module.config, dtype="auto")
    return dict(whole.named_parameters()) | dict(whole.named_buffers())


def _by_files(folder: pathlib.Path, needed: set[str]) -> dict[str, torch.Tensor]:
    from safetensors import safe_open
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
        with safe_open(folder / file, "pt") as opened:
            state |= {name: opened.get_tensor(name) for name in opened.keys() if name in needed}
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
