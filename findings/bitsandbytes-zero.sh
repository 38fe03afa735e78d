#!/usr/bin/env bash
# bitsandbytes 0.50.2 on CPUs: quantize_blockwise keeps no zero: beside a 1 a 0 comes back as 2.1e-5, though its code
# has an entry for 0. So Adam8bit moves weights whose gradients were always 0. The code ends at -0.993 and 1: the
# largest value loses 0.7 % if it is negative. A NaN comes back as the smallest value, -0.993.
source "$(dirname "$0")/environment.sh" torch==2.15.0 bitsandbytes==0.50.2 numpy==2.4.6
now=$("$python" -W ignore - <<'END' 2>/dev/null
import torch
from bitsandbytes import functional, optim

for value in (0.0, 1e-6, 0.001, -1.0, float("nan")):
    back = functional.dequantize_blockwise(*functional.quantize_blockwise(torch.tensor([value, 1.0] * 128)))
    print(value, f"{back[0].item():.3g}", back[1].item())
print(0 in functional.create_dynamic_map())
for adam in (optim.Adam, optim.Adam8bit):
    weight = torch.nn.Parameter(torch.ones(4096))
    gradient = torch.ones(4096)
    gradient[0] = 0
    optimizer = adam([weight], lr=0.01)
    for _ in range(20):
        weight.grad = gradient.clone()
        optimizer.step()
    print(adam.__name__, round(weight[0].item(), 4))
END
)
seen='0.0 2.12e-05 1.0
1e-06 2.12e-05 1.0
0.001 0.000944 1.0
-1.0 -0.993 1.0
nan -0.993 1.0
True
Adam 1.0
Adam8bit 0.9991'
conclude "$seen" "$now" \
  "bitsandbytes 0.50.2: zeros come back as 2.1e-5 on CPUs, and Adam8bit moves weights without gradients"
