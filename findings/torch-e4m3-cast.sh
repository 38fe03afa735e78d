#!/usr/bin/env bash
# torch 2.15.0 on CPUs: a conversion to float8_e4m3fn saturates: 1e9 and infinity become 448. In torch 2.11.0 everything
# above 464 became NaN, as it does in ml_dtypes 0.6.0. float8_e5m2 still gives infinity, and the FNUZ types NaN.
source "$(dirname "$0")/environment.sh" torch==2.15.0 numpy==2.4.6 ml_dtypes==0.6.0
now=$("$python" - <<'END'
import ml_dtypes
import numpy as np
import torch

values = [448.0, 464.0, 465.0, 1e9, float("inf"), float("nan")]
for dtype in (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz):
    print(torch.tensor(values).to(dtype).float().tolist())
print(np.array(values).astype(ml_dtypes.float8_e4m3fn).astype(float).tolist())
END
)
conclude "[448.0, 448.0, 448.0, 448.0, 448.0, nan]
[448.0, 448.0, 448.0, inf, inf, nan]
[nan, nan, nan, nan, nan, nan]
[448.0, 448.0, nan, nan, nan, nan]" "$now" \
  "torch 2.15.0: infinity converts to 448 in float8_e4m3fn, to infinity in e5m2, to NaN in e4m3fnuz"
