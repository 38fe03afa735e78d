"""Weights of SGLang from a model of the daemon: a custom weight loader.

    engine = sglang.Engine(model_path="checkpoint", custom_weight_loader=["paramshard.sglang.load"])
    engine.begin_weight_update()
    engine.update_weights_from_tensor(paramshard.sglang.request("policy"), load_format="paramshard.sglang.load")
    engine.end_weight_update()

Tested with a module that loads weights as SGLang's models do, and with no engine. docs/train/rollouts.md has the rest.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable

import torch
from torch import nn

import paramshard
from paramshard import views

_TIMEOUT = 60.0  # seconds until a version has been copied


def request(model: str, min_version: int = 0) -> list[tuple[str, torch.Tensor]]:
    """Returns named tensors that ask `load` for a version of a model, from `min_version` on.

    Weights are not among them: each process of the engine reads them from the daemon of its machine.
    """
    return [(model, torch.tensor(min_version))]


def load(model: nn.Module, named_tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Loads the newest version into an engine's model: SGLang's custom weight loader.

    Copies a version into host memory; until then the engine's weights are not touched. `model.load_weights` then takes
    it as a checkpoint. Parameters that have the same name and shape in both are compared afterwards, bit by bit. The
    engine's processes find the daemon by PARAMSHARD_SOCKET_DIR, or at its usual place.

    `model.paramshard_version` is the version that is loaded, "HISTORY:COMMIT"; None while it is not whole.

    Args:
        model: The engine's model.
        named_tensors: Those of `request`.

    Raises:
        InvalidArgumentError: Other tensors. Nothing was loaded.
        UnimplementedError: The engine has several processes, or a parameter of another type than float32, bfloat16 and
            float16. Nothing was loaded.
        DeadlineExceededError: There was no such version in time. Nothing was loaded.
        AbortedError: Steps ended every version before it was copied. Nothing was loaded.
        InternalError: The engine's model did not load a parameter, or loaded something else: weights are not whole.
    """
    name, min_version = _asked(list(named_tensors))
    parameters = dict(model.named_parameters())
    dtype = _dtype_of(parameters)
    values, version = _copy(_reader_of(name), min_version, dtype)
    model.paramshard_version = None
    loaded = model.load_weights(values.items())
    if loaded is not None and (missing := sorted(parameters.keys() - loaded)):
        raise paramshard.InternalError(f"load {name}: {missing[0]} of the engine was not loaded from version "
                                       f"{version}: start a new engine")
    for each, value in values.items():
        parameter = parameters.get(each)
        if parameter is not None and parameter.shape == value.shape and not torch.equal(
                _bits(parameter.detach().cpu()), _bits(value.to(parameter.dtype))):
            raise paramshard.InternalError(f"load {name}: {each} of the engine differs from version {version}: start a "
                                           "new engine")
    model.paramshard_version = version


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """A NaN equals itself, and zeros of two signs differ."""
    return tensor.contiguous().view(torch.int32 if tensor.dtype == torch.float32 else torch.int16)


def _asked(named_tensors: list[tuple[str, torch.Tensor]]) -> tuple[str, int]:
    if len(named_tensors) != 1 or named_tensors[0][1].dtype != torch.int64 or named_tensors[0][1].numel() != 1:
        raise paramshard.InvalidArgumentError(
            "load: want the tensors of paramshard.sglang.request(), got "
            f"{', '.join(name for name, _ in named_tensors[:3]) or 'none'}")
    if torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1:
        # Their processes would read different versions.
        raise paramshard.UnimplementedError(
            f"load: want an engine of one process, got {torch.distributed.get_world_size()}")
    name, version = named_tensors[0]
    return name, int(version)


def _dtype_of(parameters: dict[str, nn.Parameter]) -> torch.dtype:
    """Returns the type in which values are given to the engine, which rounds them to its own."""
    for name, parameter in parameters.items():
        if parameter.dtype not in (torch.float32, torch.bfloat16, torch.float16):
            raise paramshard.UnimplementedError(
                f"load: {name} of the engine: want float32, bfloat16 or float16, got {parameter.dtype}")
    return torch.bfloat16 if all(each.dtype == torch.bfloat16 for each in parameters.values()) else torch.float32


@functools.cache
def _reader_of(model: str) -> paramshard.Reader:
    return paramshard.Reader(model, name="sglang")


def _copy(reader: paramshard.Reader, min_version: int, dtype: torch.dtype) -> tuple[dict[str, torch.Tensor], str]:
    """Returns a version's values and its label."""
    try:
        with reader.acquire(timeout=_TIMEOUT) as snapshot:
            view = views.hf(snapshot.parameters(), str(dtype).removeprefix("torch."))
        values = view.allocate("torch")
        copied = reader.copy(paramshard.Plan(view, values), min_version=min_version, timeout=_TIMEOUT)
    except (paramshard.AbortedError, paramshard.DeadlineExceededError, paramshard.UnavailableError) as error:
        raise type(error)(f"load: {error}: nothing was loaded") from error
    return values, f"{copied.history}:{copied.version}"
