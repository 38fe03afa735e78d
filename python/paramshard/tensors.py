"""Argument types of imports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass
class ImportTensor:
    """A tensor, or consecutive rows of it, seen as a matrix [product of all dimensions but the last, last].

    `values` is an array in host memory, of NumPy or with __dlpack__. `kind`: master, exp_avg or
    exp_avg_sq, of float32, bfloat16 or float16; or a stored kind of `Client.export_tensors`.
    """

    parameter: str
    values: Any
    kind: str = "master"
    first_row: int = 0
    step: int | None = None  # steps taken, for the bias correction
    type: str | None = None  # of bit patterns: BF16, FP16, FP8_E4M3 or INT16; None: the type of the array
