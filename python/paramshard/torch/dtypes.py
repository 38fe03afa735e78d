"""The dtypes of torch that the daemon supports."""

from __future__ import annotations

import torch

# The daemon's names of plain formats and of types, by the dtype of torch.
NAMES = {torch.float32: "FP32", torch.bfloat16: "BF16", torch.float16: "FP16"}
PARAMETER_DTYPES = tuple(NAMES)
GRADIENT_DTYPES = (torch.float32, torch.bfloat16)
DECODED_DTYPES = (torch.float32, torch.bfloat16)  # which the daemon writes; others are converted here


def listing(dtypes: tuple[torch.dtype, ...]) -> str:
    """Returns names for a message: "float32, bfloat16 or float16"."""
    *names, last = (str(dtype).removeprefix("torch.") for dtype in dtypes)
    return f"{', '.join(names)} or {last}"
