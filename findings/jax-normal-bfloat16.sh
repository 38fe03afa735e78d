#!/usr/bin/env bash
# jax 0.10.2 (0.12.0.1 too): jax.random.normal in bfloat16 makes 7 random bits into a number: a million draws have 128
# values, a mean of -0.012 and no value above 2.52; of lecun_normal's weights one in 128 is 0. bernoulli compares such a
# number with p: a bfloat16 p of 0.001 is 0.0077. mlx 0.32.4 draws in float32 and rounds.
source "$(dirname "$0")/environment.sh" numpy==2.4.6 ml_dtypes==0.6.0 jax==0.10.2 mlx[cpu]==0.32.4
now=$(JAX_PLATFORMS=cpu "$python" -W ignore - <<'END' 2>/dev/null
import jax
import jax.numpy as jnp
import mlx.core as mx
import numpy as np

key = jax.random.key(0)
mlx = mx.random.normal((10**6,), mx.bfloat16, key=mx.random.key(0)).astype(mx.float32)
for name, draws in (("jax float32", jax.random.normal(key, 10**6)), ("mlx bfloat16", mlx),
                    ("jax bfloat16", jax.random.normal(key, 10**6, jnp.bfloat16))):
    values = np.asarray(draws).astype(np.float64)
    print(name, f"largest {values.max():.1f}", f"mean {values.mean():.3f}", np.unique(values).size <= 128)
weights = jax.nn.initializers.lecun_normal()(key, (1000, 1000), jnp.bfloat16)
print(f"zeros {(weights == 0).mean():.4f}")
print(f"p 0.001 {jax.random.bernoulli(key, jnp.bfloat16(0.001), (10**6,)).mean():.4f}")
END
)
seen='jax float32 largest 4.5 mean 0.000 False
mlx bfloat16 largest 4.8 mean 0.000 False
jax bfloat16 largest 2.5 mean -0.012 True
zeros 0.0077
p 0.001 0.0077'
conclude "$seen" "$now" "jax 0.10.2: a million bfloat16 draws of jax.random.normal have 128 values, the largest 2.52"
