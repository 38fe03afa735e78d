#!/usr/bin/env bash
# optax 0.2.8 on jax 0.10.2: contrib.prodigy and contrib.dadapt_adamw make all weights NaN, for ever, if the gradients
# of the first step are 0, as in a batch whose targets are all masked: they divide 0 by 0 in their estimate of the step
# size. dog, dowg and cocob go on, and so does prodigyopt 1.1.2 for torch 2.15.0.
source "$(dirname "$0")/environment.sh" optax==0.2.8 jax==0.10.2 torch==2.15.0 prodigyopt==1.1.2 numpy==2.4.6
now=$(JAX_PLATFORMS=cpu "$python" -W ignore - <<'END' 2>/dev/null
import jax.numpy as jnp
import optax
import torch
from prodigyopt import Prodigy

for name in ("prodigy", "dadapt_adamw", "dog", "dowg", "cocob"):
    optimizer = getattr(optax.contrib, name)()
    weight = jnp.ones(4)
    state = optimizer.init(weight)
    for gradient in (0.0, 1.0, 1.0):
        update, state = optimizer.update(jnp.full(4, gradient), state, weight)
        weight = optax.apply_updates(weight, update)
    print(name, bool(jnp.isnan(weight).all()))
weight = torch.nn.Parameter(torch.ones(4))
prodigy = Prodigy([weight])
for gradient in (0.0, 1.0, 1.0):
    weight.grad = torch.full((4,), gradient)
    prodigy.step()
print("prodigyopt", weight.isnan().any().item())
END
)
seen='prodigy True
dadapt_adamw True
dog False
dowg False
cocob False
prodigyopt False'
conclude "$seen" "$now" "optax 0.2.8: prodigy and dadapt_adamw make weights NaN if their first gradients are 0"
