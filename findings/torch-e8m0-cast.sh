#!/usr/bin/env bash
# torch 2.15.0 drops the sign when it converts to float8_e8m0fnu, which has none: -2 becomes 2, and 0 becomes 2^-127.
# ml_dtypes 0.6.0 makes NaN of both. Values of no power of two round alike.
source "$(dirname "$0")/environment.sh" torch==2.15.0 numpy==2.4.6 ml_dtypes==0.6.0
now=$("$python" - <<'END'
import ml_dtypes
import numpy as np
import torch

values = [-2.0, 0.0, 1.4999, 1.5, 3.0, 2.0**-128]
print(torch.tensor(values).to(torch.float8_e8m0fnu).view(torch.uint8).tolist())
print(np.array(values, np.float32).astype(ml_dtypes.float8_e8m0fnu).view(np.uint8).tolist())
END
)
conclude "[128, 0, 127, 128, 129, 0]
[255, 255, 127, 128, 129, 0]" "$now" \
  "torch 2.15.0: -2 converts to 2 in float8_e8m0fnu, and 0 to 2^-127; ml_dtypes 0.6.0 has NaN for both"
