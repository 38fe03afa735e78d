"""Memory of a training, by holder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch

import paramshard

_MIB = 2**20


@dataclass(frozen=True)
class MemoryReport:
    """Bytes on one rank's device. `str` of it is a table in MiB."""

    allocated: int | None  # by torch's tensors on its GPU; None on `cpu` devices, where torch does not count
    reserved: int | None  # by torch's allocator, including allocated bytes
    daemon: dict[str, int]  # for this model on this device, by class: master, planes, gradients, gradient_slots, ...
    shared: dict[str, int]  # for this model in host memory that all devices of the daemon share

    @staticmethod
    def of(device: torch.device, served: str, uses: Sequence[paramshard.MemoryUse]) -> MemoryReport:
        """`served`: the daemon's name of the device, and `uses` what it holds for the model."""
        on_gpu = device.type == "cuda"
        return MemoryReport(torch.cuda.memory_allocated(device) if on_gpu else None,
                            torch.cuda.memory_reserved(device) if on_gpu else None,
                            _by_class(uses, served), _by_class(uses, ""))

    def __str__(self) -> str:
        rows = [("torch", "allocated", self.allocated), ("torch", "reserved", self.reserved)]
        rows += [("daemon", name, size) for name, size in self.daemon.items()]
        rows += [("shared", name, size) for name, size in self.shared.items()]
        width = max(len(name) for _, name, _ in rows)
        return "\n".join(f"{holder:8}{name:{width}}{size / _MIB:12.1f} MiB" for holder, name, size in rows
                         if size is not None)


def _by_class(uses: Sequence[paramshard.MemoryUse], device: str) -> dict[str, int]:
    sizes: Counter[str] = Counter()
    for use in uses:
        if use.device == device:
            sizes[use.memory_class] += use.size_bytes
    return dict(sizes)
