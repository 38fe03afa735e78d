"""Quantizes rows and columns of a matrix to 8 bits in one pass over it, on a GPU.

Apart from fp8.py because Triton is there only where torch computes on GPUs.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_LARGEST = tl.constexpr(448.0)  # of E4M3
_INFINITE_BITS = tl.constexpr(0x7F800000)  # of float32; those of NaN are above it, those of finite numbers below
_SMALLEST_AMAX = tl.constexpr(448.0 * 2.0**-126)  # its scale is the smallest normal number, and has an inverse


@triton.jit
def _scale_of(largest_bits):
    amax = tl.maximum(largest_bits.to(tl.float32, bitcast=True), _SMALLEST_AMAX)
    return tl.where(largest_bits < _INFINITE_BITS, amax * (1.0 / _LARGEST), float("nan"))


@triton.jit
def _inverse(scale):
    # Rounded as IEEE 754 says, so that a host gives the same bytes.
    return tl.div_rn(tl.full(scale.shape, 1.0, tl.float32), scale)


@triton.jit
def _quantize(x, x_stride, rows, columns, padded_rows, data, scales, data_t, scales_t,
              BOTH: tl.constexpr, BLOCK: tl.constexpr):
    """One block of x. Neighbours lie along rows, so that programs that run together read whole rows."""
    column_block = tl.program_id(0)
    row_block = tl.program_id(1)
    row = row_block.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    column = column_block.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x + row[:, None] * x_stride + column[None, :], mask=(row < rows)[:, None], other=0.0)
    values = values.to(tl.float32)
    # Magnitudes are compared as integers, which order NaN above infinity: tl.max would pass it over.
    bits = values.to(tl.int32, bitcast=True) & 0x7FFFFFFF

    scale = _scale_of(tl.max(bits, 1))
    quantized = (values * _inverse(scale)[:, None]).to(tl.float8e4nv)
    tl.store(data + row[:, None] * columns + column[None, :], quantized)
    tl.store(scales + column_block.to(tl.int64) * padded_rows + row, scale)
    if BOTH:
        scale_t = _scale_of(tl.max(bits, 0))
        quantized_t = (values * _inverse(scale_t)[None, :]).to(tl.float8e4nv)
        tl.store(data_t + column[:, None] * padded_rows + row[None, :], tl.trans(quantized_t))
        tl.store(scales_t + row_block.to(tl.int64) * columns + column, scale_t)


def quantize(x: torch.Tensor, data: torch.Tensor, scales: torch.Tensor, data_t: torch.Tensor, scales_t: torch.Tensor,
             *, both: bool, warps: int = 8) -> None:
    """Writes what `paramshard.torch.fp8.Quantized` describes; `both`: data_t and scales_t as well.

    x: [T, K], K a multiple of 128, elements of a row side by side. Enqueued on the present stream.
    """
    padded_rows, columns = data.shape
    if padded_rows == 0:
        return
    with torch.cuda.device_of(x):
        _quantize[(columns // 128, padded_rows // 128)](
            x, x.stride(0), x.shape[0], columns, padded_rows, data, scales, data_t, scales_t,
            BOTH=both, BLOCK=128, num_warps=warps)
