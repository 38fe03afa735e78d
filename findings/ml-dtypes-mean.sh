#!/usr/bin/env bash
# NumPy 2.4.6 with ml_dtypes 0.6.0: sum and mean add in the element type, one value after the other: the mean of 1,000
# bfloat16 threes is 1.02, and ten FP4 ones add up to 4. NumPy's float16 has the mean right. jax 0.10.2 sums bfloat16 in
# float32, but float8_e4m3fn stops at 256.
source "$(dirname "$0")/environment.sh" numpy==2.4.6 ml_dtypes==0.6.0 jax==0.10.2
now=$("$python" -W ignore - <<'END' 2>/dev/null
import jax.numpy as jnp
import ml_dtypes
import numpy as np

print(np.full(1000, 3, np.float16).mean(), np.full(1000, 3, ml_dtypes.bfloat16).mean())
print(np.ones(10, ml_dtypes.float4_e2m1fn).sum(), np.ones(1000, ml_dtypes.float8_e4m3fn).sum())
print(jnp.ones(1000, jnp.bfloat16).sum(), jnp.ones(1000, jnp.float8_e4m3fn).sum())
END
)
seen='3.0 1.02344
4 16
1000 256'
conclude "$seen" "$now" "ml_dtypes 0.6.0: numpy.mean of 1,000 bfloat16 threes is 1.02"
