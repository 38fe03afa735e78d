#!/usr/bin/env bash
# gguf 0.19.0: quantizing a block of 32 values with one NaN to MXFP4 gives 32 zeros, without a warning; Q4_0 and Q8_0
# give 32 NaNs. Values in the middle of two neighbours go to the smaller one (3.5 becomes 3), not to the even one, as
# casts of ml_dtypes 0.6.0 do.
source "$(dirname "$0")/environment.sh" gguf==0.19.0 numpy==2.4.6 ml_dtypes==0.6.0
now=$("$python" -W ignore - <<'END'
import ml_dtypes
import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf import quants

values = np.ones((1, 32), np.float32)
values[0, 3] = np.nan
for kind in (Type.MXFP4, Type.Q4_0, Type.Q8_0):
    print(kind.name, np.unique(quants.dequantize(quants.quantize(values, kind), kind)))
middles = np.zeros((1, 32), np.float32)
middles[0, :5] = [6, 5, 3.5, 2.5, 0.75]
print(quants.dequantize(quants.quantize(middles, Type.MXFP4), Type.MXFP4)[0, :5])
print(middles[0, :5].astype(ml_dtypes.float4_e2m1fn))
END
)
seen='MXFP4 [0.]
Q4_0 [nan]
Q8_0 [nan]
[6.  4.  3.  2.  0.5]
[6 4 4 2 1]'
conclude "$seen" "$now" "gguf 0.19.0: one NaN makes a block of MXFP4 all zeros, and middles are rounded towards zero"
