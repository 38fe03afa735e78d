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
from paramshard.torch.torch_internals import copy_each, raw_stream
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
        for weight in weights:
            weight.row_wise.block, weight.transposed.block = self._row_wise_block, self._transposed_block
        self._plans: dict[Representations, _Plan] = {}
        self._slots: dict[int, list[torch.Tensor | None]] = {}  # gradients of all parameters, by the first one's address
        self._first_trained: str | None = None

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
        for block, parameters in ((self._dense_block, self._dense), (self._fp8_block, self._fp8)):
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

    def push(self, model: paramshard.Model, taken: Sequence[torch.Tensor | None]) -> None:
        """Pushes the gradients, one of each parameter; where it is None, the parameter is absent in this push."""
        stream = self._stream()
        gradients = model.gradients(self._unit, stream, zero=False)
        try:
            slots = self._slots_of(gradients)
            targets, values = [], []
            for parameter, slot, gradient in zip(self._parameters, slots, taken):
                if gradient is not None:
                    targets.append(slot)
                    values.append(gradient)
                elif parameter.trainable:
                    gradients.mark_absent(parameter.name)
            with torch.no_grad():
                copy_each(targets, values)
            gradients.push(stream)
        except BaseException:
            gradients.release()
            raise

    def _slots_of(self, gradients: paramshard.UnitGradients) -> list[torch.Tensor | None]:
        """Returns views of a slot for the trained parameters. Slots keep their addresses while the model is open."""
        if self._first_trained is None:
            self._first_trained = next(parameter.name for parameter in self._parameters if parameter.trainable)
        address = gradients.address(self._first_trained)
        if address not in self._slots:
            self._slots[address] = [
                torch.from_dlpack(gradients.typed(parameter.name)).view(parameter.placeholder.shape)
                if parameter.trainable else None for parameter in self._parameters]
        return self._slots[address]

    def forget_model(self) -> None:
        """Drops references to the memory of a model that was closed."""
        self._plans.clear()
        self._slots.clear()
        self._first_trained = None
