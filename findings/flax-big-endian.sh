#!/usr/bin/env bash
# flax 0.12.8: serialization.to_bytes and msgpack_serialize store the bytes of a big-endian NumPy array with the name of
# its type alone: it comes back as little-endian with other values, without an error: 1.0 as 4.6e-41. Files of HDF5,
# FITS and IDX give such arrays. safetensors 0.8.0 keeps the values.
source "$(dirname "$0")/environment.sh" flax==0.12.8 jax==0.10.2 optax==0.2.8 numpy==2.4.6 safetensors==0.8.0
now=$(JAX_PLATFORMS=cpu "$python" -W ignore - <<'END' 2>/dev/null
import numpy as np
import safetensors.numpy
from flax import serialization

state = {"w": np.array([1.0, 2.0], ">f4"), "n": np.array([1], ">i2")}
for name, back in (("flax", serialization.from_bytes(state, serialization.to_bytes(state))),
                   ("safetensors", safetensors.numpy.load(safetensors.numpy.save(state)))):
    print(name, back["w"].dtype, back["w"].tolist(), back["n"].tolist())
END
)
seen='flax float32 [4.600602988224807e-41, 8.96831017167883e-44] [256]
safetensors float32 [1.0, 2.0] [1]'
conclude "$seen" "$now" "flax 0.12.8: a big-endian array comes back from msgpack with swapped bytes: 1.0 as 4.6e-41"
