"""A folder of weights, of which the files are chosen as transformers does."""

from __future__ import annotations

import json
import pathlib
import warnings
from collections.abc import Container
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch

import paramshard
from paramshard._core import Weights, WeightTensor

_SAFETENSORS = ("model.safetensors", "model.safetensors.index.json")
# What transformers reads where there are none of these.
_FILES_OF_TORCH = ("pytorch_model.bin", "pytorch_model.bin.index.json")
_HALVES = {"BF16": torch.bfloat16, "F16": torch.float16}
_VALUES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


@dataclass
class Contents:
    """Tensors of a folder by key."""

    tensors: dict[str, torch.Tensor]  # in files of torch there may be other objects
    refused: dict[str, str]  # why there are no values of those that nothing here decodes
    unread: set[str]  # keys that were not needed


def read_folder(folder: pathlib.Path, needed: Container[str] | None = None) -> Contents:
    """Reads the tensors that are needed, or all, and decodes those that are quantized to float32.

    Errors of paramshard._core.Weights. Warns of files and tensors that are left out in favor of others.
    """
    config = _config_of(folder)
    named = config.get("transformers_weights")
    files_of_torch = next((name for name in _FILES_OF_TORCH if (folder / name).exists()), None)
    if named is None and files_of_torch is not None and not any((folder / name).exists() for name in _SAFETENSORS):
        if config.get("quantization_config"):
            raise paramshard.InvalidArgumentError(
                f"load_pretrained {folder}: quantized weights in {files_of_torch} are not decoded: want safetensors")
        state = _read_files_of_torch(folder / files_of_torch)
        taken = {key: tensor for key, tensor in state.items() if needed is None or key in needed}
        refused = {key: f"{folder}: {key}: want values, got {key}_scale_inv beside them, and nothing says whether they "
                   "are multiplied" for key in taken if f"{key}_scale_inv" in state}
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
    """True for a tensor whose elements may be values of a parameter, and are no codes."""
    return isinstance(found, torch.Tensor) and found.dtype in _VALUES and found.layout == torch.strided


def _map(tensors: list[WeightTensor]) -> dict[str, torch.Tensor]:
    """Those that lie in files as they are, which are read when they are used."""
    from safetensors import safe_open
    mapped: dict[str, torch.Tensor] = {}
    for file in {tensor.file for tensor in tensors}:
        with safe_open(file, "pt") as opened:
            mapped |= {tensor.name: opened.get_tensor(tensor.name) for tensor in tensors if tensor.file == file}
    return mapped


def _read(weights: Weights, tensor: WeightTensor) -> torch.Tensor:
    values = torch.from_numpy(weights.read(tensor.name))
    return values.to(_HALVES[tensor.dtype]) if tensor.encoding in _HALVES else values


def _config_of(folder: pathlib.Path) -> dict[str, Any]:
    """Empty also for a config that is no JSON object, which Weights refuses."""
    config = folder / "config.json"
    try:
        read = json.loads(config.read_text()) if config.exists() else {}
    except ValueError:
        return {}
    return read if isinstance(read, dict) else {}


def _read_files_of_torch(file: pathlib.Path) -> dict[str, torch.Tensor]:
    if file.suffix != ".json":
        return torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    state: dict[str, torch.Tensor] = {}
    for name in sorted(set(json.loads(file.read_text())["weight_map"].values())):
        state |= _read_files_of_torch(file.parent / name)
    return state
