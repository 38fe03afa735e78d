#!/usr/bin/env bash
# mlx 0.32.4: random.randint scales a float32 number: of integers below 2^30 that it draws one in 140 is odd, and of
# integers below 2^26 one in 8. tinygrad 0.14.0 draws none but even ones from 2^24 on. NumPy 2.4.6 draws both alike.
source "$(dirname "$0")/environment.sh" mlx[cpu]==0.32.4 tinygrad==0.14.0 numpy==2.4.6
now=$(DEV=PYTHON "$python" -W ignore - <<'END'
import mlx.core as mx
import numpy as np
from tinygrad import Tensor

Tensor.manual_seed(0)
for bits in (20, 24, 26, 30):
    drawn = (np.random.default_rng(0).integers(2**bits, size=10000),
             mx.random.randint(0, 2**bits, (10000,), key=mx.random.key(0)),
             Tensor.randint(1000, low=0, high=2**bits).numpy())
    print(bits, *(f"{(np.asarray(values) % 2).mean():.2f}" for values in drawn))
END
)
seen='20 0.49 0.51 0.51
24 0.50 0.49 0.00
26 0.50 0.12 0.00
30 0.50 0.01 0.00'
conclude "$seen" "$now" "mlx 0.32.4: one in 140 of randint's integers below 2^30 is odd, and none of tinygrad's"
