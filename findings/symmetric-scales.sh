#!/usr/bin/env bash
# torchao 0.18.0 and qwix 0.1.8 divide by half of the integers' range, 7.5 for int4 and 1.5 for int2, though the largest
# integers are 7 and 1: the largest weight loses 6.7 % in int4, and in int2 1 is 0.67 and -1 is -1.33. In int8 it loses
# 0.4 %. torchao has SYMMETRIC_NO_CLIPPING_ERR besides, which keeps it.
source "$(dirname "$0")/environment.sh" torch==2.15.0 torchao==0.18.0 jax==0.10.2 qwix==0.1.8 numpy==2.4.6
now=$(TORCHDYNAMO_DISABLE=1 JAX_PLATFORMS=cpu "$python" -W ignore - <<'END' 2>/dev/null
import jax.numpy as jnp
import qwix
import torch
from torchao.quantization import IntxWeightOnlyConfig, MappingType, PerGroup, quantize_

weights = torch.linspace(-1, 1, 64)
for bits in (2, 4, 8):
    ends = []
    for mapping in (MappingType.SYMMETRIC, MappingType.SYMMETRIC_NO_CLIPPING_ERR):
        layer = torch.nn.Sequential(torch.nn.Linear(64, 1, bias=False))
        layer[0].weight.data = weights[None].clone()
        quantize_(layer, IntxWeightOnlyConfig(getattr(torch, f"int{bits}"), PerGroup(64), mapping_type=mapping))
        ends += layer[0].weight.dequantize()[0, [0, -1]].tolist()
    theirs = qwix.dequantize(qwix.quantize(jnp.asarray(weights.numpy()), f"int{bits}"))
    print(f"int{bits}", *(round(end, 3) for end in ends + [float(theirs[0]), float(theirs[-1])]))
END
)
seen='int2 -1.333 0.667 -1.0 1.0 -1.333 0.667
int4 -0.933 0.933 -1.0 1.0 -0.933 0.933
int8 -0.996 0.996 -1.0 1.0 -0.996 0.996'
conclude "$seen" "$now" "torchao 0.18.0, qwix 0.1.8: the largest weight loses 6.7 % in symmetric int4"
