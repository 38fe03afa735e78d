#!/usr/bin/env bash
# jax 0.10.2 (0.12.0.1 too): jax.random.categorical draws its Gumbel noise in the type of the logits. In bfloat16 the
# largest noise comes at one entry of 128, and the first of equal sums wins: 1,000 draws of 32,000 equally likely tokens
# are all among the first 1,000. mode="high" mends a part; float32 logits are right.
source "$(dirname "$0")/environment.sh" numpy==2.4.6 ml_dtypes==0.6.0 jax==0.10.2
now=$(JAX_PLATFORMS=cpu "$python" -W ignore - <<'END' 2>/dev/null
import jax
import jax.numpy as jnp

for dtype, options in ((jnp.float32, {}), (jnp.bfloat16, {}), (jnp.bfloat16, {"mode": "high"})):
    tokens = jax.random.categorical(jax.random.key(0), jnp.zeros(32000, dtype), shape=(1000,), **options)
    print(dtype.__name__, *options.values(), f"below 1,000: {(tokens < 1000).mean():.0%},",
          f"from 16,000 on: {(tokens >= 16000).mean():.0%}")
END
)
seen='float32 below 1,000: 3%, from 16,000 on: 48%
bfloat16 below 1,000: 100%, from 16,000 on: 0%
bfloat16 high below 1,000: 7%, from 16,000 on: 31%'
conclude "$seen" "$now" "jax 0.10.2: categorical of 32,000 equal bfloat16 logits draws the first 1,000 tokens alone"
