"""A folder of weights, whose files are chosen as transformers chooses them."""

from __future__ import annotations

import json
import pathlib
import warnings
from collections.abc import Container, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from paramshard._core import Weights, WeightTensor, quantization_of

# The files that transformers reads: the first that exists.
_FILES_OF_SAFETENSORS = ("model.safetensors", "model.safetensors.index.json")
_FILES_OF_TORCH = ("pytorch_model.bin", "pytorch_model.bin.index.json")
_HALVES = {"BF16": torch.bfloat16, "F16": torch.float16}
_VALUES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


@dataclass
class Contents:
    """Tensors of a folder by key."""

    tensors: dict[str, Any]  # files of torch may have other objects than tensors
    refused: dict[str, str]  # by key: why a tensor cannot be decoded
    unread: set[str]  # keys that were not needed


def read_folder(folder: pathlib.Path, needed: Container[str] | None = None) -> Contents:
    """Reads the tensors that are needed, or all, and decodes quantized ones to float32.

    Errors of paramshard._core.Weights. Warns of files and tensors that are left out in favor of others.
    """
    named = _named_by_config(folder)
    chosen = next((name for name in _FILES_OF_SAFETENSORS + _FILES_OF_TORCH if (folder / name).is_file()), None)
    if named is None and chosen in _FILES_OF_TORCH:
        state = _read_files_of_torch(folder / chosen)
        taken = {key: found for key, found in state.items() if needed is None or key in needed}
        refused = _refused_of_torch(folder, chosen, taken, state)
        return Contents(taken, refused, state.keys() - taken.keys())
    weights = Weights(str(folder / named if named else folder))
    for note in weights.notes:
        warnings.warn(f"load_pretrained: {note}", stacklevel=6)
    tensors = {key: tensor for key, tensor in weights.tensors().items() if needed is None or key in needed}
    refused = {key: tensor.refusal for key, tensor in tensors.items() if tensor.refusal}
    mapped = _map([tensor for tensor in tensors.values() if tensor.file])
    read = [tensor for key, tensor in tensors.items() if key not in refused and key not in mapped]
    with ThreadPoolExecutor() as pool:
        values = dict(zip((tensor.name for tensor in read), pool.map(lambda tensor: _read(weights, tensor), read)))
    return Contents(mapped | values, refused, weights.tensors().keys() - tensors.keys())


def is_value(found: Any) -> bool:
    """True for a dense tensor whose elements may be values of a parameter, and are no codes."""
    return (type(found) in (torch.Tensor, nn.Parameter) and found.dtype in _VALUES
            and found.layout == torch.strided and not found.is_meta)


def kind_of(found: Any) -> str:
    """Describes an object of a folder for a message."""
    if not isinstance(found, torch.Tensor):
        return type(found).__name__
    plain = type(found) in (torch.Tensor, nn.Parameter)
    layout = "" if found.layout == torch.strided else f", {found.layout}"
    return f"{found.dtype}{layout}{', on meta' if found.is_meta else ''}{'' if plain else f', {type(found).__name__}'}"


def _map(tensors: list[WeightTensor]) -> dict[str, torch.Tensor]:
    """Maps tensors that lie in files unencoded; they are read when they are used."""
    from safetensors import safe_open
    mapped: dict[str, torch.Tensor] = {}
    for file in {tensor.file for tensor in tensors}:
        with safe_open(file, "pt") as opened:
            mapped |= {tensor.name: opened.get_tensor(tensor.name) for tensor in tensors if tensor.file == file}
    return mapped


def _read(weights: Weights, tensor: WeightTensor) -> torch.Tensor:
    values = torch.from_numpy(weights.read(tensor.name))
    return values.to(_HALVES[tensor.dtype]) if tensor.encoding in _HALVES else values


def _named_by_config(folder: pathlib.Path) -> str | None:
    """Returns the file that config.json names, if any; None also if it is no JSON object, which Weights refuses."""
    config = folder / "config.json"
    try:
        read = json.loads(config.read_text()) if config.exists() else None
    except ValueError:
        return None
    return read.get("transformers_weights") if isinstance(read, dict) else None


def _refused_of_torch(folder: pathlib.Path, file: str, taken: Iterable[str], state: Container[str]) -> dict[str, str]:
    """Returns, by key, why tensors are refused: quantized tensors in files of torch are not decoded."""
    quantization = quantization_of(str(folder))
    advice = "save it in BF16 with the program that wrote it"
    if quantization:
        return {key: f"{folder / file}: {key}: want weights that are not quantized, got {quantization}; {advice}"
                for key in taken}
    return {key: f"{folder / file}: {key}: want values without scales, got {key}_scale_inv beside; {advice}"
            for key in taken if f"{key}_scale_inv" in state}


def _read_files_of_torch(file: pathlib.Path) -> dict[str, Any]:
    if file.suffix != ".json":
        return torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    state: dict[str, Any] = {}
    for name in sorted(set(json.loads(file.read_text())["weight_map"].values())):
        state |= _read_files_of_torch(file.parent / name)
    return state
