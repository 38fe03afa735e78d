#!/usr/bin/env bash
# torch 2.15.0 under autocast to bfloat16: linear_cross_entropy without options computes the logits in bfloat16, and the
# loss in float32. With LinearCrossEntropyOptions() autocast does not reach it: float32 inputs stay float32 throughout,
# and bfloat16 inputs with a float32 weight give a loss of bfloat16.
source "$(dirname "$0")/environment.sh" torch==2.15.0 numpy==2.4.6
now=$("$python" -W ignore - <<'END'
import torch
from torch.nn import LinearCrossEntropyOptions
from torch.nn.functional import cross_entropy, linear_cross_entropy

torch.manual_seed(0)
inputs, weight, targets = torch.randn(64, 16), torch.randn(50, 16), torch.arange(64) % 50
right = cross_entropy(inputs.double() @ weight.double().T, targets, reduction="none")
for options in (None, LinearCrossEntropyOptions()):
    with torch.autocast("cpu", torch.bfloat16):
        loss = linear_cross_entropy(inputs, weight, targets, reduction="none", options=options)
        mixed = linear_cross_entropy(inputs.bfloat16(), weight, targets, options=options)
    print("chunks" if options else "reference", loss.dtype, (loss - right).abs().max().item() < 1e-5, mixed.dtype)
END
)
seen='reference torch.float32 False torch.float32
chunks torch.float32 True torch.bfloat16'
conclude "$seen" "$now" "torch 2.15.0: linear_cross_entropy in chunks computes as without autocast"
