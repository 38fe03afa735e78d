"""Work of a spare before it waits: the parts of a start that are alike in all trainings on a GPU."""

from __future__ import annotations

import ctypes
import importlib.util
from typing import Any

_NEEDED_BYTES = 2 << 30  # free on a GPU: a context with libraries and kernels takes about half of it


class DoesNotFit(Exception):
    """The GPU has too little memory for a spare."""


class _Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


def warm_up(index: int) -> int | None:
    """Makes a CUDA context, library handles, and the kernels of a transformer's step. Returns the bytes of the GPU
    that they take, about; None if the driver does not say.

    `index`: torch's number of the GPU. DoesNotFit names the bytes that are free.
    """
    import torch
    before = _free_bytes(torch, index)
    if before is not None and before < _NEEDED_BYTES:
        raise DoesNotFit(f"{before / 2**30:.1f} GiB are free, and a spare needs {_NEEDED_BYTES / 2**30:.0f}")
    try:
        torch.cuda.set_device(index)
        for dtype in (torch.float32, torch.bfloat16):
            _train(torch, torch.device("cuda", index), dtype)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    except torch.OutOfMemoryError as error:
        raise DoesNotFit(str(error)) from None
    if importlib.util.find_spec("triton") is not None:
        import paramshard.torch.fp8_kernel  # noqa: F401, for Triton's own start
    after = _free_bytes(torch, index)
    return None if before is None or after is None else max(0, before - after)


def _train(torch: Any, device: Any, dtype: Any) -> None:
    """Runs operations whose kernels and libraries most models need."""
    nn, functional = torch.nn, torch.nn.functional
    options = {"device": device, "dtype": dtype}
    tokens = torch.zeros(2, 128, dtype=torch.long, device=device)
    embedding, norm, linear = (nn.Embedding(128, 128, **options), nn.LayerNorm(128, **options),
                               nn.Linear(128, 128, **options))
    x = linear(norm(embedding(tokens)))
    heads = x.view(2, 128, 2, 64).transpose(1, 2)
    x = x + functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True).transpose(1, 2).reshape(x.shape)
    logits = functional.gelu(x) @ embedding.weight.T
    functional.cross_entropy(logits.float().flatten(0, 1), tokens.flatten()).backward()


def _free_bytes(torch: Any, index: int) -> int | None:
    """Asks NVML, which needs no context."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    uuid = str(torch.cuda.get_device_properties(index).uuid)
    handle, memory = ctypes.c_void_p(), _Memory()
    if nvml.nvmlInit_v2() != 0:
        return None
    found = any(nvml.nvmlDeviceGetHandleByUUID(f"{kind}-{uuid}".encode(), ctypes.byref(handle)) == 0
                for kind in ("GPU", "MIG"))
    known = found and nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) == 0
    nvml.nvmlShutdown()
    return memory.free if known else None
