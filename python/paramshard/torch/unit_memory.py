"""Memory of a unit's parameters in torch, and the copies between it and the daemon's memory.

A unit has dozens of small tensors, and the host must stay ahead of the GPU: each gather or push is one call for all of
them, by plans that are made when the model is open.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

import paramshard
from paramshard.torch.dtypes import DECODED_DTYPES, NAMES
from paramshard.torch.memory_block import MemoryBlock
from paramshard.torch.torch_internals import raw_stream
from paramshard.torch.unit_parameter import UnitParameter


class Representations(NamedTuple):
    """Representations of a unit's values that a gather writes, beside row-wise FP8 weights and other parameters."""

    transposed: bool  # also FP8 weights as the gradient of the input reads them
    decoded: bool  # also values of FP8 weights, for code that reads the parameter itself


class _Plan(NamedTuple):
    """Destinations of a gather, and its reader."""

    blocks: list[MemoryBlock]  # written by the reader, in its order
    halves: list[UnitParameter]  # decoded to float32 blocks of their own, after `blocks`
    reader: paramshard.UnitReader


class UnitMemory:
    """Owns the memory of a unit's parameters while they are gathered; copies values into it, and gradients out of it.

    On `cuda` devices everything is enqueued on the stream that the pass computes on, and the host goes on.
    """

    def __init__(self, unit: str, parameters: Sequence[UnitParameter], device: torch.device):
        """Moves the parameters into memory that they share."""
        self._unit = unit
        self._parameters = parameters
        self._device = device
        self._fp8 = [parameter for parameter in parameters if parameter.fp8_weight is not None]
        self._dense = [parameter for parameter in parameters if parameter.fp8_weight is None]
        weights = [parameter.fp8_weight for parameter in self._fp8]
        self._dense_block = MemoryBlock([parameter.unsharded for parameter in self._dense], device)
        self._fp8_block = MemoryBlock([parameter.unsharded for parameter in self._fp8], device)
        self._row_wise_block = MemoryBlock([weight.row_wise.data for weight in weights], device)
        self._transposed_block = MemoryBlock([weight.transposed.data for weight in weights], device)
        blocks = (self._dense_block, self._fp8_block, self._row_wise_block, self._transposed_block)
        self._blocks = [block for block in blocks if block.offsets]
        self._of_parameters = [(block, of_block) for block, of_block in (
            (self._dense_block, self._dense), (self._fp8_block, self._fp8)) if of_block]
        for weight in weights:
            weight.row_wise.block, weight.transposed.block = self._row_wise_block, self._transposed_block
        self._plans: dict[Representations, _Plan] = {}
        self._pusher: paramshard.UnitPusher | None = None

    # --- Values ---

    def gather(self, model: paramshard.Model, wanted: Representations) -> None:
        """Gathers the unit, and writes its values into memory that lasts until release().

        The slot is given back afterwards: a forward that is repeated before its backward needs one slot only. Every
        pass reads the plane of the forward, because a recomputation must see the same values.
        """
        plan = self._plans.get(wanted)
        if plan is None:
            plan = self._plans[wanted] = self._make_plan(model, wanted)
        blocks = [block.allocate() for block in plan.blocks]
        if not plan.halves:
            plan.reader.read(blocks, self._stream())
            return
        decoded = [torch.empty_like(parameter.unsharded, dtype=torch.float32) for parameter in plan.halves]
        plan.reader.read(blocks + [values.data_ptr() for values in decoded], self._stream())
        for parameter, values in zip(plan.halves, decoded):
            parameter.write(values)

    def _make_plan(self, model: paramshard.Model, wanted: Representations) -> _Plan:
        blocks: list[MemoryBlock] = []
        decoded, operands, halves = [], [], []
        for block, parameters in ((self._dense_block, self._dense),
                                  (self._fp8_block, self._fp8 if wanted.decoded else [])):
            for parameter, offset in zip(parameters, block.offsets):
                if parameter.unsharded.dtype in DECODED_DTYPES:
                    decoded.append((parameter.name, NAMES[parameter.unsharded.dtype], len(blocks), offset))
                else:
                    halves.append(parameter)
            if parameters:
                blocks.append(block)
        for block, transposed in ((self._row_wise_block, False), (self._transposed_block, True)):
            if not self._fp8 or transposed and not wanted.transposed:
                continue
            for parameter, offset in zip(self._fp8, block.offsets):
                weight = parameter.fp8_weight
                scales = (weight.transposed if transposed else weight.row_wise).of_blocks
                operands.append((parameter.name, transposed, len(blocks), offset, scales.data_ptr(), scales.stride(0)))
            blocks.append(block)
        decoded += [(parameter.name, "FP32", len(blocks) + index, 0) for index, parameter in enumerate(halves)]
        return _Plan(blocks, halves, model.reader(self._unit, decoded, operands))

    def release(self) -> bool:
        """Frees the memory. Memory that an array of NumPy has stays with the array; returns True if there was any."""
        moved = False
        for block, parameters in self._of_parameters:
            if block.is_shared:
                block.move([parameter.unsharded for parameter in parameters])
                for parameter in parameters:
                    parameter.own_memory()
                moved = True
        for block in self._blocks:
            block.release()
        return moved

    def _stream(self) -> int | None:
        return None if self._device.type == "cpu" else raw_stream(self._device)

    @property
    def storages(self) -> tuple[int, int]:
        """Storages of the parameters, by the ids of storage_of."""
        return self._dense_block.storage, self._fp8_block.storage

    # --- Gradients ---

    def push(self, model: paramshard.Model, gradients: list[torch.Tensor | None]) -> None:
        """Pushes the gradients, one of each parameter; where it is None, the parameter is absent in this push."""
        if self._pusher is None:
            self._pusher = model.pusher(self._unit, [parameter.name for parameter in self._parameters], torch)
        stream = self._stream()
        if not self._pusher.push(gradients, stream):
            self._pusher.push([gradient if gradient is None else _plain(gradient) for gradient in gradients], stream)

    def forget_model(self) -> None:
        """Drops references to the memory of a model that was closed."""
        self._plans.clear()
        self._pusher = None


def _plain(gradient: torch.Tensor) -> torch.Tensor:
    """Returns a copy that its memory alone describes, in float32."""
    with torch.no_grad():
        return torch.empty(gradient.shape, dtype=torch.float32, device=gradient.device).copy_(gradient)
