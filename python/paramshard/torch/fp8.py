"""Linear layers that multiply in 8 bits: planes of weights as they were gathered, and activations quantized here.

Three products of y = x W^T, with x [T, K], W [N, K] and the gradient dy [T, N] of y:

    y  = x W^T     x in blocks of 1 x 128 along K, W row-wise in blocks of 128 x 128
    dx = dy W      dy in blocks of 1 x 128 along N, W transposed, in the same blocks
    dW = dy^T x    dy and x in blocks of 128 along T, transposed; or in the type of the weight

A GPU of compute capability 9.0 multiplies row-major by column-major alone, so every operand lies with the dimension
that is summed innermost. On a CPU the same operations decode what they are given and multiply in float32.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from paramshard.torch.memory_block import MemoryBlock

BLOCK = 128
ELEMENT = torch.float8_e4m3fn  # of activations and gradients: blocks of 128 have no need of E5M2's range
_LARGEST = 448.0  # of E4M3
_SMALLEST_AMAX = _LARGEST * 2.0**-126  # its scale is the smallest normal float32, and has an inverse

WeightGradient = Literal["bf16", "fp8"]

# Custom operations of torch: torch.compile keeps them whole and merges equal ones, so that layers with one input, such
# as queries, keys and values, share its quantization.
_library = torch.library.Library("paramshard", "FRAGMENT")


def _define(name: str, arguments: str, result: str, *, gpu: Callable, host: Callable, fake: Callable) -> None:
    _library.define(f"{name}({arguments}) -> {result}", tags=(torch.Tag.pt2_compliant_tag,))
    _library.impl(name, gpu, "CUDA")
    _library.impl(name, host, "CPU")
    torch.library.register_fake(f"paramshard::{name}", fake, lib=_library)


# --- Quantization ---

class Quantized(NamedTuple):
    """A matrix x [T, K] in E4M3. P is T rounded up to a multiple of 128; rows from T on are zero.

    An element is data * scale. A block with an element that is not finite has the scale NaN, so that every product
    with it is NaN, and a step with such a gradient is seen and skipped. A block of zeros has a scale that is not zero.
    """

    data: torch.Tensor  # [P, K]
    scales: torch.Tensor  # float32 [K / 128, P]: of 128 elements of a row
    data_t: torch.Tensor  # [K, P], or empty
    scales_t: torch.Tensor  # float32 [P / 128, K]: of 128 elements of a column; or empty


def quantize_1x128(x: torch.Tensor, both: bool = True) -> Quantized:
    """Quantizes rows of x [T, K] in blocks of 128 and, with `both`, its columns as well, reading x once.

    x: bfloat16, float16 or float32; K is a multiple of 128. Enqueued on the current stream. Not differentiable.
    """
    return Quantized(*torch.ops.paramshard.quantize_1x128(x, both))


def _empty_quantized(x: torch.Tensor, both: bool) -> tuple[torch.Tensor, ...]:
    rows, columns = x.shape
    _check_multiple("quantize_1x128", "columns", columns)
    padded = (rows + BLOCK - 1) // BLOCK * BLOCK
    height, width = (padded, columns) if both else (0, 0)
    return (x.new_empty((padded, columns), dtype=ELEMENT),
            x.new_empty((columns // BLOCK, padded), dtype=torch.float32),
            x.new_empty((width, height), dtype=ELEMENT),
            x.new_empty((height // BLOCK, width), dtype=torch.float32))


def _quantize_on_gpu(x: torch.Tensor, both: bool) -> tuple[torch.Tensor, ...]:
    from paramshard.torch import fp8_kernel

    if x.stride(1) != 1:
        x = x.contiguous()
    outputs = _empty_quantized(x, both)
    fp8_kernel.quantize(x, *outputs, both=both)
    return outputs


def _quantize_on_host(x: torch.Tensor, both: bool) -> tuple[torch.Tensor, ...]:
    outputs = _empty_quantized(x, both)
    padded = F.pad(x.float(), (0, 0, 0, outputs[0].shape[0] - x.shape[0]))
    for values, data, scales in ((padded, *outputs[:2]), (padded.t(), *outputs[2:]))[:1 + both]:
        blocks = values.unflatten(1, (-1, BLOCK))
        amax = blocks.abs().amax(2)
        scale = torch.where(amax.isfinite(), amax.clamp_min(_SMALLEST_AMAX) * (1 / _LARGEST), torch.nan)
        data.copy_((blocks * (1 / scale)[..., None]).flatten(1))
        scales.copy_(scale.t())
    return outputs


_define("quantize_1x128", "Tensor x, bool both", "(Tensor, Tensor, Tensor, Tensor)", gpu=_quantize_on_gpu,
        host=_quantize_on_host, fake=_empty_quantized)


def _check_multiple(operation: str, what: str, extent: int) -> None:
    if extent % BLOCK:
        raise ValueError(f"{operation}: want {what} in multiples of {BLOCK}, got {extent}")


# --- Products ---
#
# Both operations compute a b^T of a [P, C] and b [R, C], of which the first `rows` rows are wanted: [rows, R] of
# `dtype`. scale_a is float32 [C / 128, P]. scale_b is [R / 128, C / 128] where b has blocks of 128 x 128, with rows
# padded to a multiple of 4, and [C / 128, R] where b has blocks of 1 x 128. torch takes transposed views of them.

def _scaled_mm(a: torch.Tensor, scale_a: torch.Tensor, b: torch.Tensor, scale_b: torch.Tensor, rows: int,
               dtype: torch.dtype, *, recipe_b: str) -> torch.Tensor:
    _check_memory(b)
    product = F.scaled_mm(a, b.t(), scale_a.t(), F.ScalingType.BlockWise1x128, scale_b.t(),
                          getattr(F.ScalingType, recipe_b), output_dtype=dtype)
    if product.shape[0] == rows:
        return product
    # Not a slice: autograd refuses to change a view in place that comes out of a function, and callers may do that.
    return product.new_empty(0).set_(product.untyped_storage(), 0, (rows, product.shape[1]), product.stride())


def _decoded_product_128x128(a: torch.Tensor, scale_a: torch.Tensor, b: torch.Tensor, scale_b: torch.Tensor,
                             rows: int, dtype: torch.dtype) -> torch.Tensor:
    _check_memory(b)
    of_rows = scale_b[:, :b.shape[1] // BLOCK].repeat_interleave(BLOCK, 0)
    return (_decode(a, scale_a.t())[:rows] @ _decode(b, of_rows).t()).to(dtype)


def _decoded_product_1x128(a: torch.Tensor, scale_a: torch.Tensor, b: torch.Tensor, scale_b: torch.Tensor, rows: int,
                           dtype: torch.dtype) -> torch.Tensor:
    return (_decode(a, scale_a.t())[:rows] @ _decode(b, scale_b.t()).t()).to(dtype)


def _decode(data: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Decodes data [R, C], with scales [R, C / 128] of its rows' blocks, to float32."""
    return (data.float().unflatten(1, (-1, BLOCK)) * scales[..., None]).flatten(1)


def _empty_product(a: torch.Tensor, scale_a: torch.Tensor, b: torch.Tensor, scale_b: torch.Tensor, rows: int,
                   dtype: torch.dtype) -> torch.Tensor:
    return a.new_empty((rows, b.shape[0]), dtype=dtype)


def _check_memory(plane: torch.Tensor) -> None:
    if plane.numel() and not plane.untyped_storage().nbytes():
        raise RuntimeError(
            f"product with a weight {list(plane.shape)} of 8 bits: the weight is not gathered: compute inside of its "
            "unit's forward or backward")


_PRODUCT = "Tensor a, Tensor scale_a, Tensor b, Tensor scale_b, SymInt rows, ScalarType dtype"
_define("product_1x128_128x128", _PRODUCT, "Tensor", host=_decoded_product_128x128, fake=_empty_product,
        gpu=functools.partial(_scaled_mm, recipe_b="BlockWise128x128"))
_define("product_1x128_1x128", _PRODUCT, "Tensor", host=_decoded_product_1x128, fake=_empty_product,
        gpu=functools.partial(_scaled_mm, recipe_b="BlockWise1x128"))


# --- Weights ---

class Fp8Operand:
    """One operand of products: data [R, C] of 8 bits, and scales of its blocks of 128 x 128.

    Its tensors stay the same objects, which compiled graphs hold; the memory of the data comes and goes, for a whole
    unit together. Writes into them do not count as changes: see Fp8Weight.renew().
    """

    def __init__(self, rows: int, columns: int, device: torch.device, dtype: torch.dtype):
        _check_multiple("a weight of 8 bits", "rows", rows)
        _check_multiple("a weight of 8 bits", "columns", columns)
        self.data = torch.empty((rows, columns), dtype=dtype, device=device)  # [R, C]
        # Products read rows of scales in groups of 4, of which the last is filled up with zeros.
        self.scales = torch.zeros((rows // BLOCK, -(-columns // (4 * BLOCK)) * 4), dtype=torch.float32, device=device)
        self.of_blocks = self.scales.data[:, :columns // BLOCK]  # the same memory, [R / 128, C / 128], to be written
        self.block = MemoryBlock([self.data], device)

    def write(self, data: torch.Tensor, scales: torch.Tensor) -> None:
        """data: [R, C] of one byte an element; scales: float32 [R / 128, C / 128], or one for all. Any strides."""
        self.block.allocate()
        self.data.data.view(torch.uint8).copy_(data.view(torch.uint8))
        self.of_blocks.copy_(scales if scales.numel() > 1 else scales.reshape(1, 1))


class Fp8Weight:
    """Operands of products in 8 bits with a weight W [N, K] in FP8_BLOCK_128X128 or an FP8_TENSOR format.

    The forward, and one that is repeated for a checkpoint, reads `row_wise`; the gradient of the input reads
    `transposed`. The gather of the plane writes them, on the stream that computes:

        weight.row_wise.write(plane, scales)
        weight.transposed.write(plane.t(), scales.t())

    or allocates their blocks, and has data and `of_blocks` written. Nothing else may keep their data.
    """

    def __init__(self, shape: tuple[int, int], *, device: torch.device, dtype: torch.dtype = ELEMENT):
        rows, columns = shape
        self.row_wise = Fp8Operand(rows, columns, device, dtype)  # W [N, K]
        self.transposed = Fp8Operand(columns, rows, device, dtype)  # W^T [K, N]
        self.values = torch.empty(0, device=device)  # empty: its version counts the values that W has had
        self.parameter: nn.Parameter | None = None  # W, as autograd knows it; None: the module's weight

    def renew(self) -> None:
        """Marks the values as about to change: the backward of an earlier forward raises from now on."""
        torch.autograd.graph.increment_version([self.values, self.row_wise.data, self.row_wise.scales,
                                                self.transposed.data, self.transposed.scales])

    def release(self) -> None:
        self.row_wise.block.release()
        self.transposed.block.release()


# --- Linear ---

def fp8_linear(x: torch.Tensor, weight: nn.Parameter, fp8_weight: Fp8Weight, bias: torch.Tensor | None = None,
               wgrad: WeightGradient = "bf16") -> torch.Tensor:
    """Returns x W^T + bias, [..., N] in the type of `weight`, for x [..., K] of any floating-point type.

    `weight` [N, K] is never read and may have no memory: it takes the gradient, if it requires one. `fp8_weight` has
    W, and has to have it again in the backward; nothing of it is saved. `wgrad`: how the gradient of the weight is
    computed; "bf16", in the type of the weight, saves x in it, and "fp8" saves x in 8 bits.
    """
    if x.shape[-1] != weight.shape[1]:
        raise ValueError(f"linear {list(weight.shape)}: want an input of {weight.shape[1]} columns, got "
                         f"{list(x.shape)}")
    if wgrad not in ("bf16", "fp8"):
        raise ValueError(f'linear: want wgrad="bf16" or "fp8", got {wgrad!r}')
    wanted = wgrad if weight.requires_grad and torch.is_grad_enabled() else None
    y = _Linear.apply(x.reshape(-1, x.shape[-1]), weight, fp8_weight, wanted)
    y = y.view(*x.shape[:-1], weight.shape[0])
    return y if bias is None else y + bias


class _Linear(torch.autograd.Function):

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: nn.Parameter, fp8_weight: Fp8Weight,
                wgrad: WeightGradient | None) -> torch.Tensor:
        quantized = quantize_1x128(x, wgrad == "fp8")
        ctx.fp8_weight, ctx.wgrad = fp8_weight, wgrad
        ctx.rows, ctx.x_dtype, ctx.dtype = x.shape[0], x.dtype, weight.dtype
        if wgrad == "fp8":
            kept = (quantized.data_t, quantized.scales_t)
        else:
            kept = () if wgrad is None else (x.to(weight.dtype),)
        # `values` has no elements. By its version autograd detects that W has changed since the forward.
        ctx.save_for_backward(fp8_weight.values, *kept)
        w = fp8_weight.row_wise
        return torch.ops.paramshard.product_1x128_128x128(
            quantized.data, quantized.scales, w.data, w.scales, x.shape[0], weight.dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        _, *kept = ctx.saved_tensors
        needs_dx, needs_dw = ctx.needs_input_grad[:2]
        dx = dw = None
        if needs_dx or ctx.wgrad == "fp8":
            quantized = quantize_1x128(dy, ctx.wgrad == "fp8")
        if needs_dx:
            w = ctx.fp8_weight.transposed
            dx = torch.ops.paramshard.product_1x128_128x128(
                quantized.data, quantized.scales, w.data, w.scales, ctx.rows, ctx.x_dtype)
        if needs_dw and ctx.wgrad == "fp8":
            data_t, scales_t = kept
            dw = torch.ops.paramshard.product_1x128_1x128(
                quantized.data_t, quantized.scales_t, data_t, scales_t, dy.shape[1], ctx.dtype)
        elif needs_dw:
            dw = dy.t() @ kept[0]
        return dx, dw, None, None


# --- Modules ---

class Fp8Linear(nn.Linear):
    """An nn.Linear that computes in 8 bits. Its weight is a parameter that may have no memory."""

    fp8_weight: Fp8Weight
    wgrad: WeightGradient

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.weight if self.fp8_weight.parameter is None else self.fp8_weight.parameter
        return fp8_linear(x, weight, self.fp8_weight, self.bias, self.wgrad)


def can_compute_in_fp8(module: nn.Module) -> bool:
    """Returns True for an nn.Linear, without a subclass or its own forward, whose weight consists of whole blocks."""
    return (type(module) is nn.Linear and "forward" not in vars(module)
            and module.in_features % BLOCK == 0 and module.out_features % BLOCK == 0)


def compute_in_fp8(linear: nn.Linear, fp8_weight: Fp8Weight, wgrad: WeightGradient = "bf16") -> None:
    """Makes the module compute by fp8_linear(); it stays the same object, and an nn.Linear."""
    if not can_compute_in_fp8(linear):
        raise ValueError(f"compute in 8 bits: want an nn.Linear with features in multiples of {BLOCK}, got {linear}")
    linear.__class__ = Fp8Linear
    linear.fp8_weight = fp8_weight
    linear.wgrad = wgrad


def why_not_fp8(device: torch.device) -> str | None:
    """Returns "WANTED, got FOUND" if the device cannot compute in 8 bits, else None."""
    if device.type == "cpu":
        return None
    capability = torch.cuda.get_device_capability(device)
    if capability != (9, 0):
        return f"a GPU of compute capability 9.0, which scales by blocks of 128, got {capability[0]}.{capability[1]}"
    if not hasattr(F, "scaled_mm"):
        return f"torch 2.11 with torch.nn.functional.scaled_mm, got {torch.__version__}"
    try:
        import triton  # noqa: F401
    except ImportError:
        return "Triton, which is installed with torch and its dependencies, got none"
    return None
