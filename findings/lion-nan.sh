#!/usr/bin/env bash
# torch 2.15.0: torch.sign of NaN is 0 (mlx 0.32.4's too). So one NaN gradient stops a weight of lion-pytorch 0.2.5 for
# ever: its momentum is NaN, its step 0, and neither weight nor loss shows it. jax's and NumPy's sign keep the NaN:
# optax 0.2.8's lion makes the weight NaN in the same step.
source "$(dirname "$0")/environment.sh" torch==2.15.0 lion-pytorch==0.2.5 jax==0.10.2 optax==0.2.8 numpy==2.4.6
now=$(JAX_PLATFORMS=cpu "$python" -W ignore - <<'END' 2>/dev/null
import jax.numpy as jnp
import numpy as np
import optax
import torch
from lion_pytorch import Lion

nan = float("nan")
print(torch.tensor(nan).sign().item(), np.sign(nan), jnp.sign(nan))
weight = torch.nn.Parameter(torch.ones(2))
lion = Lion([weight], lr=0.125)
theirs, optimizer = jnp.ones(2), optax.lion(0.125, weight_decay=0.0)
state = optimizer.init(theirs)
for gradient in ([nan, 1.0], [1.0, 1.0], [1.0, 1.0]):
    weight.grad = torch.tensor(gradient)
    lion.step()
    update, state = optimizer.update(jnp.array(gradient), state, theirs)
    theirs = optax.apply_updates(theirs, update)
    print(weight.tolist(), lion.state[weight]["exp_avg"].isnan().tolist(), theirs.tolist())
END
)
seen='0.0 nan nan
[1.0, 0.875] [True, False] [nan, 0.875]
[1.0, 0.75] [True, False] [nan, 0.75]
[1.0, 0.625] [True, False] [nan, 0.625]'
conclude "$seen" "$now" "torch 2.15.0: sign of NaN is 0, and one NaN gradient stops a weight of lion-pytorch for ever"
