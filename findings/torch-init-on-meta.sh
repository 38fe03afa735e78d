#!/usr/bin/env bash
# torch 2.15.0: nn.init.trunc_normal_, orthogonal_, sparse_ and dirac_ return at once for a tensor on `meta`, without any
# operator that a TorchDispatchMode sees. Whoever records initializers that way finds the one that ran before them.
# normal_, uniform_, kaiming_normal_, xavier_uniform_ and eye_ call their operators there.
source "$(dirname "$0")/environment.sh" torch==2.15.0 numpy==2.4.6
now=$("$python" - <<'END'
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode


class Operators(TorchDispatchMode):
    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += 1
        return function(*args, **(kwargs or {}))


seen = {True: [], False: []}
for name, options in {"normal_": {}, "uniform_": {}, "kaiming_normal_": {}, "xavier_uniform_": {}, "eye_": {},
                      "trunc_normal_": {}, "orthogonal_": {}, "sparse_": {"sparsity": 0.5}, "dirac_": {}}.items():
    weight = torch.empty((4, 4, 3) if name == "dirac_" else (4, 4), device="meta")
    with Operators() as operators:
        getattr(nn.init, name)(weight, **options)
    seen[operators.count > 0].append(name)
print("operators:", *seen[True])
print("none:", *seen[False])
END
)
conclude "operators: normal_ uniform_ kaiming_normal_ xavier_uniform_ eye_
none: trunc_normal_ orthogonal_ sparse_ dirac_" "$now" \
  "torch 2.15.0: trunc_normal_, orthogonal_, sparse_ and dirac_ of nn.init call no operator for a tensor on meta"
