"""Copies values and gradients of a unit from the daemon's memory to torch's and back.

A unit has dozens of small tensors, and the host must stay ahead of the GPU: each gather or push is one call for all of
them, by plans that are made when the model is open.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch

import paramshard
from paramshard.torch.memory_block import MemoryBlock
from paramshard.torch.torch_internals import copy_each, raw_stream

if TYPE_CHECKING:
    from paramshard.torch.unit import UnitParameter

# Formats whose planes are multiplied without decoding.
FP8_FORMATS = ("FP8_BLOCK_128X128", "FP8_TENSOR_CURRENT", "FP8_TENSOR_DELAYED")
_DECODED = {torch.float32: "FP32", torch.bfloat16: "BF16"}


class Need(NamedTuple):
    """Requested representations of a unit's values."""

    transposed: bool  # also FP8 weights as the gradient of the input reads them
    decoded: bool  # also values of FP8 weights, for code that reads the parameter itself


class _Plan(NamedTuple):
    """Plan of a gather."""

    blocks: list[MemoryBlock]  # written by the reader, in its order
    halves: list[UnitParameter]  # decoded to float32 blocks of their own, after `blocks`
    reader: paramshard.UnitReader


class UnitTransfer:
    """Carries values and gradients of one unit, and owns the memory of its parameters.

    On `cuda` devices everything is enqueued on the stream that the pass computes on, and the host goes on.
    """

    def __init__(self, unit: str, parameters: Sequence[UnitParameter], device: torch.device):
        """Moves the parameters into memory that they share."""
        self._unit = unit
        self._parameters = parameters
        self._device = device
        self._multiplied = [parameter for parameter in parameters if parameter.fp8_weight is not None]
        self._dense = [parameter for parameter in parameters if parameter.fp8_weight is None]
        weights = [parameter.fp8_weight for parameter in self._multiplied]
        self._of_dense = MemoryBlock([parameter.unsharded for parameter in self._dense], device)
        self._of_multiplied = MemoryBlock([parameter.unsharded for parameter in self._multiplied], device)
        self._row_wise = MemoryBlock([weight.row_wise.data for weight in weights], device)
        self._transposed = MemoryBlock([weight.transposed.data for weight in weights], device)
        self._blocks = [block for block in (self._of_dense, self._of_multiplied, self._row_wise, self._transposed)
                        if block.offsets]
        for weight in weights:
            weight.row_wise.block, weight.transposed.block = self._row_wise, self._transposed
        self._plans: dict[Need, _Plan] = {}
        self._slots: dict[int, dict[str, torch.Tensor]] = {}  # gradients by parameter, by the first one's address

    # --- Values ---

    def fetch(self, model: paramshard.Model, need: Need) -> None:
        """Gathers the unit, and writes its values into memory that lasts until release().

        The slot is given back afterwards: a forward that is repeated before its backward needs one slot only. Every
        pass reads the plane of the forward, because a recomputation must see the same values.
        """
        plan = self._plans.get(need)
        if plan is None:
            plan = self._plans[need] = self._plan(model, need)
        blocks = [block.allocate() for block in plan.blocks]
        decoded = [torch.empty_like(parameter.unsharded, dtype=torch.float32) for parameter in plan.halves]
        plan.reader.read(blocks + [values.data_ptr() for values in decoded], self._stream())
        for parameter, values in zip(plan.halves, decoded):
            parameter.write(values)

    def _plan(self, model: paramshard.Model, need: Need) -> _Plan:
        blocks: list[MemoryBlock] = []
        decoded, operands, halves = [], [], []
        for of, parameters in ((self._of_dense, self._dense),
                               (self._of_multiplied, self._multiplied if need.decoded else [])):
            for parameter, offset in zip(parameters, of.offsets):
                if parameter.unsharded.dtype in _DECODED:
                    decoded.append((parameter.name, _DECODED[parameter.unsharded.dtype], len(blocks), offset))
                else:
                    halves.append(parameter)
            if parameters:
                blocks.append(of)
        for of, transposed in ((self._row_wise, False), (self._transposed, True)):
            if not self._multiplied or transposed and not need.transposed:
                continue
            for parameter, offset in zip(self._multiplied, of.offsets):
                weight = parameter.fp8_weight
                scales = (weight.transposed if transposed else weight.row_wise).of_blocks
                operands.append((parameter.name, transposed, len(blocks), offset, scales.data_ptr(), scales.stride(0)))
            blocks.append(of)
        decoded += [(parameter.name, "FP32", len(blocks) + index, 0) for index, parameter in enumerate(halves)]
        return _Plan(blocks, halves, model.reader(self._unit, decoded, operands))

    def release(self) -> None:
        for block, parameters in ((self._of_dense, self._dense), (self._of_multiplied, self._multiplied)):
            if block.is_taken:
                block.take_other_memory([parameter.unsharded for parameter in parameters])
                for parameter in parameters:
                    parameter.settle()
        for block in self._blocks:
            block.release()

    def _stream(self) -> int | None:
        return None if self._device.type == "cpu" else raw_stream(self._device)

    @property
    def storages(self) -> tuple[int, int]:
        """Storages of the parameters, by the ids of place_of."""
        return self._of_dense.storage, self._of_multiplied.storage

    # --- Gradients ---

    def send(self, model: paramshard.Model) -> None:
        """Pushes the gradients that exist; the others are absent in this push."""
        stream = self._stream()
        with model.gradients(self._unit, stream, zero=False) as gradients, torch.no_grad():
            slots = self._slots_of(gradients)
            targets, values = [], []
            for parameter in self._parameters:
                gradient = parameter.take_gradient()
                if gradient is not None:
                    targets.append(slots[parameter.name])
                    values.append(gradient)
                elif parameter.trainable:
                    gradients.mark_absent(parameter.name)
            copy_each(targets, values)
            gradients.push(stream)

    def _slots_of(self, gradients: paramshard.UnitGradients) -> dict[str, torch.Tensor]:
        """Returns views of a slot for the trained parameters. Slots keep their addresses while the model is open."""
        trained = [parameter for parameter in self._parameters if parameter.trainable]
        address = gradients.address(trained[0].name)
        if address not in self._slots:
            self._slots[address] = {
                parameter.name: torch.from_dlpack(gradients.typed(parameter.name)).view(parameter.placeholder.shape)
                for parameter in trained}
        return self._slots[address]

    def forget(self) -> None:
        """Drops references to the model's memory, because the model is closed."""
        self._plans.clear()
        self._slots.clear()
