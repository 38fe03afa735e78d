"""A folder of weights, of which the files are chosen as transformers does."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import torch

import paramshard

_CONFIG = "config.json"
_INDEX_SUFFIX = ".index.json"
# In the order in which transformers looks.
_FILES = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
# Beside a model, and no part of it.
_NO_MODEL = ("adapter_model*", "consolidated*", "optimizer*")
_SHARDING = "DCP_SHARDING_INFO"  # in the metadata of files that torch's distributed checkpoints consist of
_PLAIN = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def read_folder(folder: pathlib.Path) -> dict[str, torch.Tensor]:
    """Tensors of all files that make up the folder's model, by key. They are mapped, and not read before they are used.

    NotFoundError where there are none. InvalidArgumentError for a file that holds parts of tensors.
    """
    files = _files_of(folder)
    state: dict[str, torch.Tensor] = {}
    parts: set[str] = set()  # keys that files say to hold a part of
    for file in files:
        if not file.exists():
            raise paramshard.NotFoundError(f"load_pretrained {folder}: {file.name} is not found; the index names it")
        tensors, sharding = _read_file(file)
        for key, description in sharding.items():
            if any(description.get("saved_offsets", ())) or key in parts and key in state:
                raise paramshard.InvalidArgumentError(
                    f"load_pretrained {file}: {key} is one of several parts of a tensor: consolidate the checkpoint "
                    "into whole tensors before it is loaded")
            parts.add(key)
        state |= tensors
    return state


def _files_of(folder: pathlib.Path) -> list[pathlib.Path]:
    named = config_of(folder).get("transformers_weights")
    found = named or next((name for name in _FILES if (folder / name).exists()), None)
    if found is None:
        return _files_of_other_names(folder)
    if not found.endswith(_INDEX_SUFFIX):
        return [folder / found]
    return [folder / name for name in sorted(set(json.loads((folder / found).read_text())["weight_map"].values()))]


def _files_of_other_names(folder: pathlib.Path) -> list[pathlib.Path]:
    files = [path for path in sorted(folder.glob("*.safetensors"))
             if not any(path.match(pattern) for pattern in _NO_MODEL)]
    if not files:
        adapters = (folder / "adapter_config.json").exists()
        raise paramshard.NotFoundError(
            f"load_pretrained {folder}: no model.safetensors and no index of safetensors files is found" +
            ("; the folder has adapters alone: load the folder of their base model" if adapters else ""))
    return files


def config_of(folder: pathlib.Path) -> dict[str, Any]:
    file = folder / _CONFIG
    return json.loads(file.read_text()) if file.exists() else {}


def is_plain(tensor: torch.Tensor) -> bool:
    """True if its elements are values of a parameter, and not codes."""
    return tensor.dtype in _PLAIN


def refusal(folder: pathlib.Path, key: str, tensor: torch.Tensor) -> paramshard.Error:
    """For codes that nothing here decodes."""
    return paramshard.UnimplementedError(
        f"load_pretrained {folder}: {key} has codes of type {str(tensor.dtype).removeprefix('torch.')}, and no scales of "
        "a known format: dequantize the folder with the tools that made it, and save it in bfloat16 or float32")


def _read_file(file: pathlib.Path) -> tuple[dict[str, torch.Tensor], dict[str, dict[str, Any]]]:
    if file.suffix != ".safetensors":
        return torch.load(file, map_location="cpu", weights_only=True, mmap=True), {}
    from safetensors import safe_open
    with safe_open(file, "pt") as opened:
        tensors = {key: opened.get_tensor(key) for key in opened.keys()}
        return tensors, json.loads((opened.metadata() or {}).get(_SHARDING, "{}"))
