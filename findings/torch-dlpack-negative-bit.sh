#!/usr/bin/env bash
# torch 2.15.0: a tensor whose negative bit is set (the imaginary part of a conjugate) is exported by __dlpack__ without
# the negation: numpy.from_dlpack, and torch.from_dlpack itself, give +2 for -2. Tensor.numpy() refuses such a tensor.
source "$(dirname "$0")/environment.sh" torch==2.15.0 numpy==2.4.6
now=$("$python" - <<'END'
import numpy as np
import torch

values = torch.tensor([1 + 2j]).conj().imag
print(values.tolist(), np.from_dlpack(values).tolist(), torch.from_dlpack(values).tolist())
try:
    print(values.numpy())
except RuntimeError as error:
    print(error)
END
)
conclude "[-2.0] [2.0] [2.0]
Can't call numpy() on Tensor that has negative bit set. Use tensor.resolve_neg().numpy() instead." "$now" \
  "torch 2.15.0: __dlpack__ exports a tensor with the negative bit without its negation"
