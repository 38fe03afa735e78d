"""How values and gradients get from the daemon's memory into torch's and back: by the host, or on a stream of a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch

import paramshard

if TYPE_CHECKING:
    from paramshard.torch.fp8 import Fp8Operand
    from paramshard.torch.unit import UnitParameter

# Those whose planes are multiplied as they lie.
FP8_FORMATS = ("FP8_BLOCK_128X128", "FP8_TENSOR_CURRENT", "FP8_TENSOR_DELAYED")
_PLAIN_FORMATS = ("FP32", "BF16", "FP16")
_DECODED = {torch.float32: "FP32", torch.bfloat16: "BF16"}


class Need(NamedTuple):
    """What of a unit's values is asked for."""

    is_new: bool  # they have changed since the last time
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


class HostCarrier:
    """For `cpu` devices."""

    def fetch(self, model: paramshard.Model, unit: str, parameters: Sequence[UnitParameter], need: Need) -> None:
        with model.gather(unit, "forward") as gathered:
            for parameter in parameters:
                matrix = gathered[parameter.name]
                if parameter.fp8_weight is not None:
                    data, scales = _planes(matrix, parameter, need)
                    if need.transposed:
                        parameter.fp8_weight.transposed.write(data.t(), scales.t())
                if parameter.fp8_weight is None or need.decoded:
                    _copy(matrix, parameter.allocate(is_new=need.is_new))

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


def _planes(matrix: paramshard.Matrix, parameter: UnitParameter, need: Need) -> tuple[torch.Tensor, torch.Tensor]:
    """Copies elements and scales as they are for products in 8 bits. Returns where they lie in the slot."""
    if matrix.format not in FP8_FORMATS:
        raise paramshard.FailedPreconditionError(
            f"gather {parameter.name}: a plane in one of {', '.join(FP8_FORMATS)} expected, to multiply in 8 bits, got "
            f"{matrix.format}")
    if need.is_new:
        parameter.fp8_weight.renew()
    data, scales = torch.from_dlpack(matrix.typed_data), torch.from_dlpack(matrix.typed_scales)
    parameter.fp8_weight.row_wise.write(data, scales)
    return data, scales


def _copy(matrix: paramshard.Matrix, values: torch.Tensor) -> None:
    values = values.view(matrix.rows, matrix.columns)
    if matrix.format in _PLAIN_FORMATS:
        values.copy_(torch.from_dlpack(matrix.typed_data))
    elif values.dtype == torch.float32:
        matrix.decode(out=values)  # not values.numpy(), which makes the memory one that cannot be given back
    else:
        values.copy_(torch.from_numpy(matrix.decode()))


class GpuCarrier:
    """For `cuda` devices. Everything is enqueued on the stream that the pass computes on, and the host goes on.

    What a stream was given last is what the slot is given back behind, so a call that raises in the middle leaves the
    slot to its handle, which knows the stream.
    """

    def __init__(self, device: torch.device):
        self._device = device

    def fetch(self, model: paramshard.Model, unit: str, parameters: Sequence[UnitParameter], need: Need) -> None:
        stream = self._stream()
        gathered = model.gather(unit, "forward")
        try:
            gathered.wait(stream)
            for parameter in parameters:
                matrix = gathered[parameter.name]
                if parameter.fp8_weight is not None:
                    _, scales = _planes(matrix, parameter, need)
                    if need.transposed:
                        _transpose(matrix, scales, parameter.fp8_weight.transposed, stream)
                if parameter.fp8_weight is None or need.decoded:
                    _decode(matrix, parameter.allocate(is_new=need.is_new), stream)
            gathered.release(stream)
        finally:
            gathered.release()

    def send(self, model: paramshard.Model, unit: str, parameters: Sequence[UnitParameter]) -> None:
        stream = self._stream()
        with model.gradients(unit, stream, zero=False) as gradients:
            slots, values = [], []
            for parameter in parameters:
                gradient = parameter.take_gradient()
                if gradient is not None:
                    slots.append(torch.from_dlpack(gradients.typed(parameter.name)))
                    values.append(gradient.reshape(slots[-1].shape))
                elif parameter.trainable:
                    gradients.mark_absent(parameter.name)
            torch._foreach_copy_(slots, values)
            gradients.push(stream)

    def _stream(self) -> int:
        return torch.cuda.current_stream(self._device).cuda_stream


def _decode(matrix: paramshard.Matrix, values: torch.Tensor, stream: int) -> None:
    if values.dtype in _DECODED:
        matrix.decode_to(values.data_ptr(), _DECODED[values.dtype], stream)
        return
    decoded = torch.empty(values.shape, dtype=torch.float32, device=values.device)
    matrix.decode_to(decoded.data_ptr(), "FP32", stream)
    values.copy_(decoded)


def _transpose(matrix: paramshard.Matrix, scales: torch.Tensor, operand: Fp8Operand, stream: int) -> None:
    matrix.transpose_to(operand.allocate().data_ptr(), stream)
    operand.write_scales(scales.t())


def carrier_of(device: torch.device) -> Carrier:
    return HostCarrier() if device.type == "cpu" else GpuCarrier(device)
