#!/usr/bin/env bash
# torch 2.15.0 exports float4_e2m1fn_x2 by DLPack as FP4 with two lanes, jax 0.10.2 its float4_e2m1fn with one. Neither
# takes what the other gives, and NumPy 2.4.6 takes none: FP4 tensors go between them as bytes alone.
source "$(dirname "$0")/environment.sh" torch==2.15.0 numpy==2.4.6 jax==0.10.2
now=$("$python" -W ignore - <<'END' 2>/dev/null
import jax
import numpy as np
import torch

ours = torch.tensor([0x21, 0x43], dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
theirs = jax.numpy.array([0.5, 1, 1.5, 2], dtype=jax.numpy.float4_e2m1fn)
for name, take, value in (("torch to torch", torch.from_dlpack, ours), ("torch to NumPy", np.from_dlpack, ours),
                          ("torch to jax", jax.dlpack.from_dlpack, ours), ("jax to torch", torch.from_dlpack, theirs)):
    try:
        print(f"{name}: {list(take(value).shape)}")
    except Exception as error:
        print(f"{name}: {error}")
END
)
conclude "torch to torch: [2]
torch to NumPy: Unsupported lanes in DLTensor dtype.
torch to jax: UNIMPLEMENTED: DLPack types with lanes != 1 not implemented, got 2
jax to torch: Unsupported kDLFloat4_e2m1fn lanes 1" "$now" \
  "torch 2.15.0 and jax 0.10.2: neither takes the other's FP4 by DLPack, which has two lanes here and one there"
