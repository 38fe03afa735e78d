"""Wrappers of torch that share a module's parameters between ranks or devices, as the daemon does."""

from __future__ import annotations

_WRAPPERS = {"torch.nn.parallel.distributed": "DistributedDataParallel", "torch.distributed.fsdp": "FSDP",
             "torch.nn.parallel.data_parallel": "DataParallel", "torch.nn.parallel.replicate": "DataParallel"}


def wrapper_of(python_module: str) -> str | None:
    """Returns the wrapper that a Python module of torch belongs to, if any."""
    return next((wrapper for prefix, wrapper in _WRAPPERS.items()
                 if python_module == prefix or python_module.startswith(f"{prefix}.")), None)
