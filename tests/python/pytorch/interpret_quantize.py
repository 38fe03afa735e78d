"""Runs the kernel that quantizes in Triton's interpreter: `interpret_quantize.py INPUT OUTPUT`, files of torch.save.

A program of its own, for Triton reads TRITON_INTERPRET as it is imported, and torch.compile beside it wants none of it.
"""

import os
import sys
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import torch
from triton.runtime import interpreter

from paramshard.torch import fp8, fp8_kernel

_convert = interpreter._convert_float


def _convert_as_a_gpu(values: Any, source: Any, target: Any, rounding: Any) -> Any:
    """The interpreter's own conversion to 8 bits loses the carry of a mantissa, and makes numbers of NaN."""
    if target.name != "fp8e4nv":
        return _convert(values, source, target, rounding)
    floats = torch.from_numpy(np.ascontiguousarray(values).view(np.float32).copy())
    return floats.to(torch.float8_e4m3fn).view(torch.uint8).numpy().reshape(values.shape)


def main(inputs: str, outputs: str) -> None:
    interpreter._convert_float = _convert_as_a_gpu
    results = []
    for x in torch.load(inputs):
        both = []
        for each in (True, False):
            result = fp8.Quantized(*(torch.full_like(output, float("nan"))
                                     for output in torch.ops.paramshard.quantize_1x128(x, each)))
            fp8_kernel.quantize(x, *result, both=each)
            both.append(tuple(result))
        results.append(both)
    torch.save(results, outputs)


if __name__ == "__main__":
    main(*sys.argv[1:])
