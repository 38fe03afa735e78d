#!/usr/bin/env bash
# torch 2.15.0 on CPUs: Adam of a bfloat16 parameter takes steps that grow, where a constant gradient should give steps
# of lr: 1.35 lr after 3,000 steps, since the second moment stops at 0.50. With fused=True, which computes in float32
# and stores in bfloat16, it stops at 0.25, and the steps are 1.92 lr. float32 is right.
source "$(dirname "$0")/environment.sh" torch==2.15.0 numpy==2.4.6
now=$("$python" -W ignore - <<'END'
import torch

for dtype in (torch.float32, torch.bfloat16):
    for name, options in (("single", {"foreach": False}), ("foreach", {"foreach": True}), ("fused", {"fused": True})):
        weight = torch.nn.Parameter(torch.zeros(1, dtype=dtype))
        adam = torch.optim.Adam([weight], lr=1.0, **options)
        for _ in range(3000):
            weight.data.zero_()
            weight.grad = torch.ones(1, dtype=dtype)
            adam.step()
        print(dtype, name, f"{-weight.item():.2f} {adam.state[weight]['exp_avg_sq'].item():.2f}")
END
)
seen='torch.float32 single 1.00 0.95
torch.float32 foreach 1.00 0.95
torch.float32 fused 1.00 0.95
torch.bfloat16 single 1.35 0.50
torch.bfloat16 foreach 1.35 0.50
torch.bfloat16 fused 1.92 0.25'
conclude "$seen" "$now" "torch 2.15.0: Adam's steps of a bfloat16 parameter grow to 1.35 lr, and fused to 1.92 lr"
