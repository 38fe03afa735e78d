#!/usr/bin/env bash
# optax 0.2.8 on jax 0.10.2: contrib.scale_by_muon with seven triples of coefficients and ns_steps=5 raises "Not enough
# coeffs to perform 5 steps", though its documentation says that ns_steps is ignored then. Three triples make three steps.
source "$(dirname "$0")/environment.sh" optax==0.2.8 jax==0.10.2 numpy==2.4.6
now=$(JAX_PLATFORMS=cpu "$python" -W ignore - <<'END'
import jax.numpy as jnp
from optax.contrib import scale_by_muon

for triples in (3, 5, 7):
    try:
        state = scale_by_muon(ns_coeffs=((3.4445, -4.7750, 2.0315),) * triples, ns_steps=5).init(jnp.eye(4))
        print(triples, "steps", state.ns_coeffs.shape[0])
    except ValueError as error:
        print(triples, error)
END
)
seen='3 steps 3
5 steps 5
7 Not enough coeffs to perform 5 steps'
conclude "$seen" "$now" "optax 0.2.8: seven triples of Muon's coefficients with ns_steps=5 are 'not enough' for 5 steps"
