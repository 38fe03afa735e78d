#!/usr/bin/env bash
# jax 0.10.2 on CPUs: a conversion to bfloat16 keeps a subnormal number, and so does a copy; a product flushes it to
# zero, in float32 and bfloat16, jitted or not. float16 products keep theirs. NumPy 2.4.6 keeps all.
source "$(dirname "$0")/environment.sh" numpy==2.4.6 ml_dtypes==0.6.0 jax==0.10.2
now=$("$python" -W ignore - <<'END' 2>/dev/null
import jax
import jax.numpy as jnp
import numpy as np

print(float(jnp.float32(1e-39).astype(jnp.bfloat16)) > 0)
for dtype, value in ((jnp.float32, 1.2e-38), (jnp.bfloat16, 1.2e-38), (jnp.float16, 6.2e-5)):
    half = jnp.asarray(0.5, dtype)
    number = jnp.asarray(value, dtype)
    print(np.dtype(dtype).name, float(number * half) > 0, float(jax.jit(lambda x: x * half)(number)) > 0,
          float(np.asarray(number) * np.asarray(half)) > 0)
END
)
seen='True
float32 False False True
bfloat16 False False True
float16 True True True'
conclude "$seen" "$now" "jax 0.10.2 on CPUs: products of float32 and bfloat16 flush subnormal results to zero"
