#!/usr/bin/env bash
# optax 0.2.8 on jax 0.10.2: contrib.scale_by_muon corrects momentum and gradient for bias before it mixes them for
# Nesterov, by powers of beta that differ by one, so that from its second step on it orthogonalizes another mixture than
# torch.optim.Muon and Keller Jordan's do: 0.077 parts of the gradient for each of momentum in step 2, not 0.053.
source "$(dirname "$0")/environment.sh" optax==0.2.8 jax==0.10.2 numpy==2.4.6
now=$(JAX_PLATFORMS=cpu "$python" -W ignore - <<'END'
import jax.numpy as jnp
import numpy as np
from optax.contrib import scale_by_muon
from optax.contrib._muon import MuonDimensionNumbers, orthogonalize_via_newton_schulz

first, second = (jnp.asarray(np.random.default_rng(seed).standard_normal((8, 8)), jnp.float32) for seed in (1, 2))
muon = scale_by_muon(beta=0.95)
state = muon.init(first)
_, state = muon.update(first, state)
update, state = muon.update(second, state)
coefficients = jnp.asarray((3.4445, -4.7750, 2.0315))
for name, part in (("torch", 0.05 / 0.95), ("optax", 0.05 / (1 - 0.95**2) / (0.95 / (1 - 0.95**3)))):
    mixture = orthogonalize_via_newton_schulz(state.mu + part * second, coefficients, 5, "frobenius", 1e-8,
                                              MuonDimensionNumbers())
    print(name, round(part, 3), bool(jnp.abs(mixture - update).max() < 1e-4))
END
)
seen='torch 0.053 False
optax 0.077 True'
conclude "$seen" "$now" "optax 0.2.8: Muon's second step mixes 0.077 of the gradient to the momentum, torch's 0.053"
