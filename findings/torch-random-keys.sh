#!/usr/bin/env bash
# torch 2.15.0: torch.func._random.uniform, drawn from a key, gives the upper bound that its text excludes: of bfloat16
# numbers in [1, 2) one in 256 is 2, where Tensor.uniform_ draws none. A batch of two keys for two rows is refused,
# though the text says that leading dimensions are broadcast: the keys need a dimension for each of the result's.
source "$(dirname "$0")/environment.sh" torch==2.15.0 numpy==2.4.6
now=$("$python" -W ignore - <<'END'
import torch
from torch.func import _random as random

key = random.key(0)
drawn = random.uniform(key, (100000,), low=1, high=2, dtype=torch.bfloat16)
torch.manual_seed(0)
old = torch.empty(100000, dtype=torch.bfloat16).uniform_(1, 2)
print(f"{(drawn == 2).float().mean():.2%} {(old == 2).float().mean():.2%}")
keys = random.split(key, 2)
print([random.normal(keys[:, None], (2, 8))[row].equal(random.normal(keys[row], (8,))) for row in range(2)])
try:
    random.normal(keys, (2, 8))
except RuntimeError as error:
    print(str(error).split(":")[0], "refused", list(keys.shape))
END
)
seen='0.39% 0.00%
[True, True]
_philox_normal_ refused [2, 2]'
conclude "$seen" "$now" "torch 2.15.0: of bfloat16 numbers in [1, 2) that a key gives one in 256 is 2"
