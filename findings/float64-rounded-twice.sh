#!/usr/bin/env bash
# torch 2.15.0 converts float64 to float16, bfloat16 and float8_e4m3fn through float32, and rounds twice: a value just
# above the middle of two neighbours becomes the lower one. NumPy 2.4.6 rounds to float16 once; ml_dtypes 0.6.0 rounds
# to bfloat16 twice, too.
source "$(dirname "$0")/environment.sh" torch==2.15.0 numpy==2.4.6 ml_dtypes==0.6.0
now=$("$python" - <<'END'
import ml_dtypes
import numpy as np
import torch

for bits, dtype in ((11, torch.float16), (8, torch.bfloat16), (4, torch.float8_e4m3fn)):
    print(torch.tensor(1 + 2.0**-bits + 2.0**-40, dtype=torch.float64).to(dtype).item())
print(float(np.float64(1 + 2.0**-11 + 2.0**-40).astype(np.float16)))
print(float(np.float64(1 + 2.0**-8 + 2.0**-40).astype(ml_dtypes.bfloat16)))
END
)
conclude "1.0
1.0
1.0
1.0009765625
1.0" "$now" "torch 2.15.0: float64 is rounded twice on its way to float16, bfloat16 and float8; NumPy rounds to float16 once"
