#!/usr/bin/env bash
# torch 2.11.0: torch.optim.Muon without Nesterov normalizes the momentum buffer of a BF16 parameter in place, and goes
# on from it: after one step the buffer is 0.05 g / ||0.05 g||, not 0.05 g. With Nesterov, or in FP32, it is right.
source "$(dirname "$0")/environment.sh" torch==2.11.0 numpy==2.4.6
now=$("$python" -W ignore - <<'END'
import torch

gradient = torch.eye(4) * 2
for nesterov in (True, False):
    for dtype in (torch.float32, torch.bfloat16):
        weight = torch.nn.Parameter(torch.zeros(4, 4, dtype=dtype))
        weight.grad = gradient.to(dtype)
        optimizer = torch.optim.Muon([weight], nesterov=nesterov)
        optimizer.step()
        print(nesterov, dtype, round(optimizer.state[weight]["momentum_buffer"][0, 0].item(), 2))
END
)
seen='True torch.float32 0.1
True torch.bfloat16 0.1
False torch.float32 0.1
False torch.bfloat16 0.5'
conclude "$seen" "$now" "torch 2.11.0: Muon without Nesterov normalizes the momentum of BF16 parameters in place"
