#!/usr/bin/env bash
# NumPy 2.4.6 with ml_dtypes 0.6.0: a bfloat16 array times the Python float 2.5 is float32, times 2 it is bfloat16, and
# times an int32 array float64, where float16 stays float16 beside Python's numbers. So a bfloat16 optimizer's state
# becomes float32 by `m = 0.9 * m`, and stays bfloat16 by `m *= 0.9`. jax 0.10.2 keeps bfloat16 for all.
source "$(dirname "$0")/environment.sh" numpy==2.4.6 ml_dtypes==0.6.0 jax==0.10.2
now=$(JAX_PLATFORMS=cpu "$python" -W ignore - <<'END' 2>/dev/null
import jax.numpy as jnp
import ml_dtypes
import numpy as np

for library, dtype in ((np, np.float16), (np, ml_dtypes.bfloat16), (jnp, jnp.bfloat16)):
    ones = library.ones(2, dtype)
    print(*((ones * other).dtype for other in (2.5, 2, library.ones(2, np.int8), library.ones(2, np.int32))))
m = np.ones(2, ml_dtypes.bfloat16)
m *= 0.9
print(m.dtype)
END
)
seen='float16 float16 float16 float64
float32 bfloat16 bfloat16 float64
bfloat16 bfloat16 bfloat16 bfloat16
bfloat16'
conclude "$seen" "$now" "ml_dtypes 0.6.0: a bfloat16 array times 2.5 is float32 in NumPy, and times 2 bfloat16"
