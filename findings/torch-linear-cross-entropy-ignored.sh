#!/usr/bin/env bash
# torch 2.15.0: linear_cross_entropy of a batch with no target but ignore_index has the mean NaN. Without options its
# gradients are 0, as cross_entropy's are; with LinearCrossEntropyOptions(), which computes in chunks, they are NaN, and
# one such batch spoils the weights. With reduction="sum" both are 0.
source "$(dirname "$0")/environment.sh" torch==2.15.0 numpy==2.4.6
now=$("$python" -W ignore - <<'END'
import torch
from torch.nn import LinearCrossEntropyOptions
from torch.nn.functional import cross_entropy, linear_cross_entropy

inputs, ignored = torch.ones(8, 4), torch.full((8,), -100)
for reduction in ("mean", "sum"):
    for name, call in (("cross_entropy", lambda weight: cross_entropy(inputs @ weight.T, ignored, reduction=reduction)),
                       ("reference", lambda weight: linear_cross_entropy(inputs, weight, ignored, reduction=reduction)),
                       ("chunks", lambda weight: linear_cross_entropy(inputs, weight, ignored, reduction=reduction,
                                                                      options=LinearCrossEntropyOptions()))):
        weight = torch.ones(5, 4, requires_grad=True)
        loss = call(weight)
        loss.backward()
        print(reduction, name, loss.item(), weight.grad.sum().item())
END
)
seen='mean cross_entropy nan 0.0
mean reference nan 0.0
mean chunks nan nan
sum cross_entropy 0.0 0.0
sum reference 0.0 0.0
sum chunks 0.0 0.0'
conclude "$seen" "$now" "torch 2.15.0: linear_cross_entropy in chunks makes gradients NaN where all targets are ignored"
