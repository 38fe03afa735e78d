#!/usr/bin/env bash
# NumPy 2.4.6 with ml_dtypes 0.6.0: numpy.save writes float8_e5m2, alone of these types, as '<f1', which numpy.load
# refuses; the others come back as bytes (V1, V2). equinox 0.13.8 saves leaves by numpy.save: it reads bfloat16 back,
# but neither float8 nor int4, which it wrote without a word.
source "$(dirname "$0")/environment.sh" numpy==2.4.6 ml_dtypes==0.6.0 jax==0.10.2 equinox==0.13.8
now=$(JAX_PLATFORMS=cpu "$python" -W ignore - <<'END' 2>/dev/null
import io

import equinox
import jax.numpy as jnp
import numpy as np

for dtype in (jnp.bfloat16, jnp.float8_e4m3fn, jnp.float8_e5m2, jnp.int4):
    file = io.BytesIO()
    equinox.tree_serialise_leaves(file, [jnp.ones(2, dtype)])
    for load in (np.load, lambda file: equinox.tree_deserialise_leaves(file, [jnp.zeros(2, dtype)])[0]):
        file.seek(0)
        try:
            print(dtype.__name__, load(file).dtype)
        except Exception as error:
            print(dtype.__name__, type(error).__name__)
END
)
seen='bfloat16 |V2
bfloat16 bfloat16
float8_e4m3fn |V1
float8_e4m3fn RuntimeError
float8_e5m2 ValueError
float8_e5m2 TreePathError
int4 |V1
int4 RuntimeError'
conclude "$seen" "$now" "NumPy 2.4.6 cannot load a float8_e5m2 array that it saved, nor equinox 0.13.8 any float8 leaf"
