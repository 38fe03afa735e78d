#!/usr/bin/env bash
# jax 0.10.2 (0.12.0.1 too) on CPUs, jitted or not, divides a float32 array by a scalar by multiplying it by the rounded
# reciprocal: 183 / 61 is 2.9999998, and its floor 2. An array of divisors divides right; OpenVINO 2026.4.1 multiplies
# by reciprocals there, too. NumPy 2.4.6 divides.
source "$(dirname "$0")/environment.sh" numpy==2.4.6 ml_dtypes==0.6.0 jax==0.10.2 openvino==2026.4.1
now=$(JAX_PLATFORMS=cpu "$python" -W ignore - <<'END' 2>/dev/null
import jax
import jax.numpy as jnp
import numpy as np
import openvino
from openvino import opset13 as ops

x, divisors = np.arange(1, 2000, dtype=np.float32) * 61, np.full(1999, 61, np.float32)
a, b = ops.parameter([1999]), ops.parameter([1999])
divide = openvino.compile_model(openvino.Model([ops.divide(a, b)], [a, b]), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
for name, result in (("NumPy, scalar", x / np.float32(61)), ("jax, scalar", jnp.asarray(x) / 61),
                     ("jax, scalar, jitted", jax.jit(lambda x: x / 61)(x)),
                     ("jax, array", jnp.asarray(x) / divisors), ("OpenVINO, array", divide([x, divisors])[0])):
    print(f"{name}: {(np.floor(result) != x // 61).sum()} of 1999 wrong")
END
)
seen='NumPy, scalar: 0 of 1999 wrong
jax, scalar: 1865 of 1999 wrong
jax, scalar, jitted: 1865 of 1999 wrong
jax, array: 0 of 1999 wrong
OpenVINO, array: 1865 of 1999 wrong'
conclude "$seen" "$now" "jax 0.10.2 and OpenVINO 2026.4.1 divide by multiplying by a reciprocal: 183 / 61 is 2.9999998"
