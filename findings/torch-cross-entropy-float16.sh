#!/usr/bin/env bash
# torch 2.15.0 on CPUs: cross_entropy of float16 logits adds the tokens' losses up in float16 before it divides: the
# mean of 50,000 losses of 1.39 is infinite, and of 20,000 with label_smoothing. From 65,520 tokens on their number is
# infinite, too: the loss is NaN, and all gradients are 0. mse_loss has the mean right.
source "$(dirname "$0")/environment.sh" torch==2.15.0 numpy==2.4.6
now=$("$python" -W ignore - <<'END'
import torch
from torch.nn import functional

torch.set_num_threads(1)
for tokens, smoothing in ((20000, 0), (20000, 0.1), (50000, 0), (65519, 0), (65520, 0)):
    logits = torch.zeros(tokens, 4).half().requires_grad_()
    loss = functional.cross_entropy(logits, torch.zeros(tokens, dtype=torch.int64), label_smoothing=smoothing)
    loss.backward()
    print(tokens, smoothing, round(loss.item(), 2), bool(logits.grad.any()))
print(functional.mse_loss(torch.ones(70000).half(), torch.zeros(70000).half()).item())
END
)
seen='20000 0 1.39 True
20000 0.1 inf True
50000 0 inf True
65519 0 inf True
65520 0 nan False
1.0'
conclude "$seen" "$now" "torch 2.15.0: the mean of 50,000 float16 cross entropies of 1.39 is infinite on CPUs"
