#!/usr/bin/env bash
# torch 2.15.0 and jax 0.10.2 on CPUs add the gradients of an embedding in its own type, one token after the other: a
# bfloat16 row that 4,000 tokens use gets a gradient of 256, not 4,000. torch's embedding_bag, index_add and index_put
# do likewise, and so does jax's segment_sum; torch's scatter_add has it right.
source "$(dirname "$0")/environment.sh" torch==2.15.0 jax==0.10.2 numpy==2.4.6
now=$(JAX_PLATFORMS=cpu "$python" -W ignore - <<'END' 2>/dev/null
import jax
import jax.numpy as jnp
import torch

row, ones = torch.zeros(4000, dtype=torch.int64), torch.ones(4000).bfloat16()
for call in (torch.nn.functional.embedding, lambda tokens, weight: torch.nn.functional.embedding_bag(
        tokens[None], weight, mode="sum")):
    weight = torch.ones(2, 8).bfloat16().requires_grad_()
    call(row, weight).sum().backward()
    print(weight.grad[0, 0].item())
zero = torch.zeros(1).bfloat16()
print(zero.index_add(0, row, ones).item(), zero.index_put((row,), ones, accumulate=True).item(),
      zero.scatter_add(0, row, ones).item())
row, ones = jnp.zeros(4000, jnp.int32), jnp.ones(4000, jnp.bfloat16)
print(jax.grad(lambda weight: weight[row].astype(jnp.float32).sum())(ones[:2])[0], jax.ops.segment_sum(ones, row, 1)[0])
END
)
seen='256.0
256.0
256.0 256.0 4000.0
256 256'
conclude "$seen" "$now" \
  "torch 2.15.0, jax 0.10.2: a bfloat16 embedding's row that 4,000 tokens use gets a gradient of 256"
