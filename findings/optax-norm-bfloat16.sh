#!/usr/bin/env bash
# optax 0.2.8 on jax 0.10.2: global_norm adds the leaves' squares in the gradients' type. The norm of 1,000 bfloat16
# leaves of one 1 each is 16, not 31.6 (one leaf of 1,000 ones: 31.6), so that clipping by it leaves twice the norm that
# it was given. In float16 the norm of [300, 300] is infinite, and clip_by_global_norm makes the gradient 0.
source "$(dirname "$0")/environment.sh" optax==0.2.8 jax==0.10.2 numpy==2.4.6
now=$(JAX_PLATFORMS=cpu "$python" -W ignore - <<'END' 2>/dev/null
import jax.numpy as jnp
import numpy as np
import optax

clip = optax.clip_by_global_norm(1.0)
leaves = [jnp.ones(1, jnp.bfloat16)] * 1000
clipped, _ = clip.update(leaves, clip.init(leaves))
print(float(optax.global_norm(leaves)), float(optax.global_norm(jnp.ones(1000, jnp.bfloat16))))
print(f"{np.linalg.norm([leaf.astype(float) for leaf in clipped]):.2f}")
half = [jnp.array([300, 300], jnp.float16)]
print(float(optax.global_norm(half)), clip.update(half, clip.init(half))[0][0].tolist())
END
)
seen='16.0 31.625
1.98
inf [0.0, 0.0]'
conclude "$seen" "$now" "optax 0.2.8: global_norm of 1,000 bfloat16 leaves of one 1 each is 16, not 31.6"
