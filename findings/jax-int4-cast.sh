#!/usr/bin/env bash
# jax 0.10.2 saturates when it converts floating point to int4 and int2 (100 becomes 7); NumPy 2.4.6 with the same types
# of ml_dtypes 0.6.0 keeps the low bits (100 becomes 4, and 8 becomes -8).
source "$(dirname "$0")/environment.sh" numpy==2.4.6 ml_dtypes==0.6.0 jax==0.10.2
now=$("$python" -W ignore - <<'END' 2>/dev/null
import jax.numpy as jnp
import ml_dtypes
import numpy as np

values = np.array([7.9, 8, 100, -9, 1000], np.float32)
for dtype in (ml_dtypes.int4, ml_dtypes.int2):
    print(jnp.asarray(values).astype(dtype).tolist(), values.astype(dtype).tolist())
END
)
seen='[7, 7, 7, -8, 7] [7, -8, 4, 7, -8]
[1, 1, 1, -2, 1] [-1, 0, 0, -1, 0]'
conclude "$seen" "$now" "jax 0.10.2 saturates in casts to int4; the same cast of its array type in NumPy wraps"
