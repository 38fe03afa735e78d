#!/usr/bin/env bash
# NumPy 2.4.6 with ml_dtypes 0.6.0: a sum of int4 stays int4, where a sum of int8 is int64: 100 ones give 4, and the
# mean of 100 sevens is 0. jax 0.10.2 (0.12.0.1 too) has the mean right; its sum and prod of int4 raise ValueError.
source "$(dirname "$0")/environment.sh" numpy==2.4.6 ml_dtypes==0.6.0 jax==0.10.2
now=$(JAX_PLATFORMS=cpu "$python" -W ignore - <<'END' 2>/dev/null
import jax.numpy as jnp
import ml_dtypes
import numpy as np

for dtype in (np.int8, ml_dtypes.int4):
    print(np.ones(100, dtype).sum(), np.full(100, 7, dtype).mean(), float(jnp.full(100, 7, dtype).mean()))
try:
    print(jnp.ones(100, jnp.int4).sum())
except ValueError as error:
    print(error)
END
)
seen="100 7.0 7.0
4 0 7.0
Invalid integer data type 'V'."
conclude "$seen" "$now" "ml_dtypes 0.6.0: NumPy's sum of 100 ones of int4 is 4, and the mean of 100 sevens 0"
