#!/usr/bin/env bash
# torch 2.15.0 and jax 0.10.2 on CPUs: of 70,000 equal float16 logits logsumexp is infinite, and so is the cross
# entropy, 11.16 in truth: the sum of exponentials is kept in float16, which ends at 65,504. torch's softmax is right,
# and so is its logcumsumexp; jax's softmax is 0 everywhere. Of 60,000 logits all are right.
source "$(dirname "$0")/environment.sh" torch==2.15.0 jax==0.10.2 numpy==2.4.6
now=$(JAX_PLATFORMS=cpu "$python" -W ignore - <<'END' 2>/dev/null
import jax
import jax.numpy as jnp
import torch

for count in (60000, 70000):
    logits = torch.zeros(count).half()
    print(count, "torch", round(logits.logsumexp(0).item(), 2), round(-logits.log_softmax(0)[0].item(), 2),
          round(logits.logcumsumexp(0)[-1].item(), 2), bool(logits.softmax(0).any()))
    logits = jnp.zeros(count, jnp.float16)
    print(count, "jax", round(float(jax.nn.logsumexp(logits)), 2), round(-float(jax.nn.log_softmax(logits)[0]), 2),
          round(float(jax.lax.cumlogsumexp(logits)[-1]), 2), bool(jax.nn.softmax(logits).any()))
END
)
seen='60000 torch 11.0 11.0 11.0 True
60000 jax 11.0 11.0 11.01 True
70000 torch inf inf 11.16 True
70000 jax inf inf 11.16 False'
conclude "$seen" "$now" "torch 2.15.0, jax 0.10.2: logsumexp of 70,000 float16 logits is infinite, and jax's softmax 0"
