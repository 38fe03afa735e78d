#!/usr/bin/env bash
# mlx 0.32.4 on CPUs adds float16 values up in float16, and float32 values one after the other: the mean of 1,000
# float16 hundreds is infinite, and the mean of 2^24 float32 tenths 0.115. The mean of 10,000 bfloat16 threes is 3.
# NumPy 2.4.6 has the means of float16 and float32 right.
source "$(dirname "$0")/environment.sh" mlx[cpu]==0.32.4 numpy==2.4.6
now=$("$python" - <<'END'
import mlx.core as mx
import numpy as np

mx.set_default_device(mx.cpu)
print("bfloat16", mx.full((10000,), 3, mx.bfloat16).mean().item())
for count, value, dtype in ((1000, 100, "float16"), (2**24, 0.1, "float32")):
    values = np.full(count, value, dtype)
    print(dtype, f"{mx.array(values).mean().item():.3f} {values.mean():.3f}")
END
)
seen='bfloat16 3.0
float16 inf 100.000
float32 0.115 0.100'
conclude "$seen" "$now" "mlx 0.32.4: the mean of 1,000 float16 hundreds is infinite, that of 2^24 float32 tenths 0.115"
