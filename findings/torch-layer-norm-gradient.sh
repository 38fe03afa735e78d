#!/usr/bin/env bash
# torch 2.15.0 on CPUs adds the gradients of layer_norm's weight and bias in bfloat16 where the input is bfloat16, even
# if weight and bias are float32: of 4,000 tokens with a gradient of 1 each, one thread makes 256 and two make 512.
# rms_norm, group_norm and the bias of linear give 4,000.
source "$(dirname "$0")/environment.sh" torch==2.15.0 numpy==2.4.6
now=$("$python" -W ignore - <<'END'
import torch
from torch.nn import functional

tokens = torch.tensor([1.0, -1, 1, -1]).repeat(4000, 1).bfloat16()
for threads in (1, 2):
    torch.set_num_threads(threads)
    for dtype in (torch.bfloat16, torch.float32):
        bias = torch.zeros(4, dtype=dtype, requires_grad=True)
        functional.layer_norm(tokens, (4,), torch.ones(4, dtype=dtype), bias).sum().backward()
        print("layer_norm", threads, bias.grad[0])
for name, call in (("group_norm", lambda bias: functional.group_norm(tokens, 1, torch.ones_like(bias), bias)),
                   ("rms_norm", lambda bias: functional.rms_norm(tokens, (4,)) + bias),
                   ("linear", lambda bias: functional.linear(tokens, torch.ones(4, 4).bfloat16(), bias))):
    bias = torch.zeros(4).bfloat16().requires_grad_()
    call(bias).sum().backward()
    print(name, bias.grad[0].item())
END
)
seen='layer_norm 1 tensor(256., dtype=torch.bfloat16)
layer_norm 1 tensor(256.)
layer_norm 2 tensor(512., dtype=torch.bfloat16)
layer_norm 2 tensor(512.)
group_norm 4000.0
rms_norm 4000.0
linear 4000.0'
conclude "$seen" "$now" \
  "torch 2.15.0: the gradient of layer_norm's bias over 4,000 bfloat16 tokens stops at 256 for each thread"
