"""How values and gradients get from the daemon's memory into torch's and back: by the host, or on a stream of a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch

import paramshard

if TYPE_CHECKING:
    from paramshard.torch.fp8 import Fp8Weight
    from paramshard.torch.unit import UnitParameter

# Those whose planes are multiplied as they lie.
FP8_FORMATS = ("FP8_BLOCK_128X128", "FP8_TENSOR_CURRENT", "FP8_TENSOR_DELAYED")
_PLAIN_FORMATS = ("FP32", "BF16", "FP16")
_DECODED = {torch.float32: "FP32", torch.bfloat16: "BF16"}


class Need(NamedTuple):
    """What of a unit's values is asked for."""

    transposed: bool  # of weights that are multiplied in 8 bits: as the gradient of the input reads them, too
    decoded: bool  # of the same weights: values, too, for whoever reads the parameter itself


class Carrier(Protocol):
    """What a unit's passes ask for."""

    def fetch(self, model: paramshard.Model, unit: str, parameters: Sequence[UnitParameter], need: Need) -> None:
        """Gathers the unit, and writes its values into memory that the parameters allocate.

        The slot is given back behind that: a forward that is repeated before its backward needs no more slots than one.
        Every pass reads the plane of the forward, for a recomputation must see the same values.
        """

    def send(self, model: paramshard.Model, unit: str, parameters: Sequence[UnitParameter]) -> None:
        """Pushes the gradients that there are; the others are absent in this push."""

    def forget(self) -> None:
        """The model is closed: nothing is to hold its memory any more."""


def _decoded(parameters: Sequence[UnitParameter], need: Need) -> list[UnitParameter]:
    return [parameter for parameter in parameters if parameter.fp8_weight is None or need.decoded]


def _multiplied(parameters: Sequence[UnitParameter]) -> list[UnitParameter]:
    return [parameter for parameter in parameters if parameter.fp8_weight is not None]


class HostCarrier:
    """For `cpu` devices."""

    def fetch(self, model: paramshard.Model, unit: str, parameters: Sequence[UnitParameter], need: Need) -> None:
        with model.gather(unit, "forward") as gathered:
            for parameter in _multiplied(parameters):
                self._copy_plane(gathered[parameter.name], parameter.fp8_weight, need)
            for parameter in _decoded(parameters, need):
                parameter.allocate()
                self._copy(gathered[parameter.name], parameter.unsharded.data)

    @staticmethod
    def _copy(matrix: paramshard.Matrix, values: torch.Tensor) -> None:
        values = values.view(matrix.rows, matrix.columns)
        if matrix.format in _PLAIN_FORMATS:
            values.copy_(torch.from_dlpack(matrix.typed_data))
        elif values.dtype == torch.float32:
            matrix.decode(out=values)  # not values.numpy(), which makes the memory one that cannot be given back
        else:
            values.copy_(torch.from_numpy(matrix.decode()))

    @staticmethod
    def _copy_plane(matrix: paramshard.Matrix, weight: Fp8Weight, need: Need) -> None:
        data, scales = torch.from_dlpack(matrix.typed_data), torch.from_dlpack(matrix.typed_scales)
        weight.row_wise.write(data, scales)
        if need.transposed:
            weight.transposed.write(data.t(), scales.t())

    def send(self, model: paramshard.Model, unit: str, parameters: Sequence[UnitParameter]) -> None:
        with model.gradients(unit) as gradients:
            for parameter in parameters:
                gradient = parameter.take_gradient()
                if gradient is not None:
                    slot = torch.from_dlpack(gradients.typed(parameter.name))
                    slot.copy_(gradient.reshape(slot.shape))
                elif parameter.trainable:
                    gradients.mark_absent(parameter.name)
            gradients.push()

    def forget(self) -> None:
        """Nothing is held."""


class GpuCarrier:
    """For `cuda` devices. Everything is enqueued on the stream that the pass computes on, and the host goes on.

    What a stream was given last is what the slot is given back behind, so a call that raises in the middle leaves the
    slot to its handle, which knows the stream. A unit is dozens of small tensors, and the host has to be ahead of the
    GPU: so all of them are handed over in one call.
    """

    def __init__(self, device: torch.device):
        self._device = device
        self._slots: dict[tuple[str, int], torch.Tensor] = {}  # of gradients, by parameter and address

    def fetch(self, model: paramshard.Model, unit: str, parameters: Sequence[UnitParameter], need: Need) -> None:
        stream = self._stream()
        gathered = model.gather(unit, "forward")
        try:
            gathered.wait(stream)
            self._copy_planes(gathered, _multiplied(parameters), need, stream)
            self._decode(gathered, _decoded(parameters, need), stream)
            gathered.release(stream)
        finally:
            gathered.release()

    def _stream(self) -> int:
        return torch.cuda.current_stream(self._device).cuda_stream

    @staticmethod
    def _decode(gathered: paramshard.GatheredUnit, parameters: list[UnitParameter], stream: int) -> None:
        outputs, copies = [], []
        for parameter in parameters:
            values = parameter.unsharded
            parameter.allocate()
            if values.dtype not in _DECODED:
                copies.append((values.data, torch.empty_like(values, dtype=torch.float32)))
                values = copies[-1][1]
            outputs.append((parameter.name, values.data_ptr(), _DECODED[values.dtype]))
        gathered.decode_to(outputs, stream)
        for values, decoded in copies:
            values.copy_(decoded)

    @staticmethod
    def _copy_planes(gathered: paramshard.GatheredUnit, parameters: list[UnitParameter], need: Need,
                     stream: int) -> None:
        if not parameters:
            return
        outputs = []
        for parameter in parameters:
            weight = parameter.fp8_weight
            scales, pitch = weight.scales_to_copy()
            outputs.append((parameter.name, weight.row_wise.allocate().data_ptr(),
                            weight.transposed.allocate().data_ptr() if need.transposed else 0, scales, pitch))
        gathered.copy_planes_to(outputs, stream)
        for parameter in parameters:
            parameter.fp8_weight.spread_scales(transposed=need.transposed)

    def send(self, model: paramshard.Model, unit: str, parameters: Sequence[UnitParameter]) -> None:
        stream = self._stream()
        with model.gradients(unit, stream, zero=False) as gradients:
            slots, values = [], []
            for parameter in parameters:
                gradient = parameter.take_gradient()
                if gradient is not None:
                    slots.append(self._slot(gradients, parameter.name))
                    values.append(gradient.reshape(slots[-1].shape))
                elif parameter.trainable:
                    gradients.mark_absent(parameter.name)
            torch._foreach_copy_(slots, values)
            gradients.push(stream)

    def _slot(self, gradients: paramshard.UnitGradients, name: str) -> torch.Tensor:
        key = name, gradients.address(name)
        if key not in self._slots:
            self._slots[key] = torch.from_dlpack(gradients.typed(name))
        return self._slots[key]

    def forget(self) -> None:
        self._slots.clear()


def carrier_of(device: torch.device) -> Carrier:
    return HostCarrier() if device.type == "cpu" else GpuCarrier(device)
