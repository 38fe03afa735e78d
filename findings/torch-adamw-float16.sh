#!/usr/bin/env bash
# torch 2.15.0 on CPUs: AdamW of a float16 parameter without fused=True loses its eps of 1e-8, and squares of small
# gradients, in float16: a gradient of 0 makes the parameter NaN, and one of 1e-4 -infinity, in the first step. With
# fused=True it computes in float32 and is right. bfloat16 and float32 are right in all three.
source "$(dirname "$0")/environment.sh" torch==2.15.0 numpy==2.4.6
now=$("$python" -W ignore - <<'END'
import torch

for name, options in (("single", {"foreach": False}), ("foreach", {"foreach": True}), ("fused", {"fused": True})):
    weights = []
    for dtype in (torch.float16, torch.bfloat16):
        for gradient in (0, 1e-4):
            weight = torch.nn.Parameter(torch.ones(1, dtype=dtype))
            weight.grad = torch.full((1,), gradient, dtype=dtype)
            torch.optim.AdamW([weight], lr=0.25, weight_decay=0, **options).step()
            weights.append(weight.item())
    print(name, *weights)
END
)
seen='single nan -inf 1.0 0.75
foreach nan -inf 1.0 0.75
fused 1.0 0.75 1.0 0.75'
conclude "$seen" "$now" "torch 2.15.0: AdamW makes a float16 parameter NaN by a gradient of 0, unless fused=True"
