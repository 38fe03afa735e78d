"""Quantizes rows and columns of a matrix to 8 bits in one kernel, on a GPU.

Apart from fp8.py because Triton is there only where torch computes on GPUs.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_LARGEST = tl.constexpr(448.0)  # of E4M3
_INFINITE_BITS = tl.constexpr(0x7F800000)  # of float32; NaNs have larger bits, finite numbers smaller ones
_SMALLEST_AMAX = tl.constexpr(448.0 * 2.0**-126)  # its scale is the smallest normal number, and has an inverse


@triton.jit
def _load(x, x_stride, row, column, rows):
    values = tl.load(x + row[:, None] * x_stride + column[None, :], mask=(row < rows)[:, None], other=0.0)
    return values.to(tl.float32)


@triton.jit
def _scale_of(values, AXIS: tl.constexpr):
    # Magnitudes are compared as integers, which order NaN above infinity: tl.max of numbers would pass it over.
    bits = tl.max(values.to(tl.int32, bitcast=True) & 0x7FFFFFFF, AXIS)
    amax = tl.maximum(bits.to(tl.float32, bitcast=True), _SMALLEST_AMAX)
    return tl.where(bits < _INFINITE_BITS, amax * (1.0 / _LARGEST), float("nan"))


@triton.jit
def _inverse(scale):
    # Rounded as IEEE 754 says, so that a host gives the same bytes.
    return tl.div_rn(tl.full(scale.shape, 1.0, tl.float32), scale)


@triton.jit
def _quantize_rows(x, x_stride, row, column, rows, columns, data, scales):
    values = _load(x, x_stride, row, column, rows)
    scale = _scale_of(values, 1)
    quantized = (values * _inverse(scale)[:, None]).to(tl.float8e4nv)
    tl.store(data + row[:, None] * columns + column[None, :], quantized)
    tl.store(scales + row, scale)


@triton.jit
def _quantize_columns(x, x_stride, row, column, rows, padded_rows, data_t, scales_t):
    values = _load(x, x_stride, row, column, rows)
    scale = _scale_of(values, 0)
    quantized = (values * _inverse(scale)[None, :]).to(tl.float8e4nv)
    tl.store(data_t + column[:, None] * padded_rows + row[None, :], tl.trans(quantized))
    tl.store(scales_t + column, scale)


# Triton would else compile a variant for one row, in which all other rows are known to be zero. ptxas 12.8 has stored
# whatever stood in a register for some of these zeros.
@triton.jit(do_not_specialize=["rows"])
def _quantize(x, x_stride, rows, columns, padded_rows, data, scales, data_t, scales_t,
              BOTH: tl.constexpr, BLOCK: tl.constexpr, CHUNK: tl.constexpr):
    """Quantizes one square of x, in chunks of rows and then of columns, which are read from the cache.

    All of it at once would take so many registers that too few programs ran together to keep memory busy. Neighbours
    lie along rows, so that programs that run together read whole rows. Inside of the square 32 bits are enough for an
    index.
    """
    row_block = tl.program_id(1).to(tl.int64)
    column_block = tl.program_id(0).to(tl.int64)
    x += row_block * BLOCK * x_stride + column_block * BLOCK
    inside = tl.minimum(rows - row_block * BLOCK, BLOCK).to(tl.int32)
    data += row_block * BLOCK * columns + column_block * BLOCK
    scales += column_block * padded_rows + row_block * BLOCK
    for start in range(0, BLOCK, CHUNK):
        _quantize_rows(x, x_stride, start + tl.arange(0, CHUNK), tl.arange(0, BLOCK), inside, columns, data, scales)
    if BOTH:
        data_t += column_block * BLOCK * padded_rows + row_block * BLOCK
        scales_t += row_block * columns + column_block * BLOCK
        for start in range(0, BLOCK, CHUNK):
            _quantize_columns(x, x_stride, tl.arange(0, BLOCK), start + tl.arange(0, CHUNK), inside, padded_rows,
                              data_t, scales_t)


def quantize(x: torch.Tensor, data: torch.Tensor, scales: torch.Tensor, data_t: torch.Tensor, scales_t: torch.Tensor,
             *, both: bool, chunk: int = 32, warps: int = 4) -> None:
    """Writes the fields of `paramshard.torch.fp8.Quantized`; `both`: data_t and scales_t as well.

    x: [T, K], K a multiple of 128, elements of a row side by side. Enqueued on the current stream.
    """
    padded_rows, columns = data.shape
    if padded_rows == 0:
        return
    with torch.cuda.device_of(x):
        _quantize[(columns // 128, padded_rows // 128)](
            x, x.stride(0), x.shape[0], columns, padded_rows, data, scales, data_t, scales_t,
            BOTH=both, BLOCK=128, CHUNK=chunk, num_warps=warps)
