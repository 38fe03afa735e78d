#!/usr/bin/env bash
# bitsandbytes 0.50.2 on CPUs: with compress_statistics=True, as in Linear4bit unless told otherwise, the scales of NF4
# blocks have one absolute error, of 0.7 % of the largest: a block of 0.001 among blocks of 1 comes back as 0.008, and
# one of 1e-5 as 0.007. Without it each block keeps its size.
source "$(dirname "$0")/environment.sh" torch==2.15.0 bitsandbytes==0.50.2 numpy==2.4.6
now=$("$python" -W ignore - <<'END' 2>/dev/null
import torch
from bitsandbytes import functional

for small in (0.1, 0.01, 0.001, 1e-5):
    weights = torch.ones(256, 64)
    weights[-1] = small
    for nested in (False, True):
        quantized = functional.quantize_4bit(weights, quant_type="nf4", blocksize=64, compress_statistics=nested)
        print(small, nested, f"{functional.dequantize_4bit(*quantized)[-1, 0].item():.3g}")
END
)
seen='0.1 False 0.1
0.1 True 0.106
0.01 False 0.01
0.01 True 0.0169
0.001 False 0.001
0.001 True 0.008
1e-05 False 1e-05
1e-05 True 0.00701'
conclude "$seen" "$now" "bitsandbytes 0.50.2: double quantization makes 0.008 of a block of 0.001 among blocks of 1"
