#!/usr/bin/env bash
# torchao 0.18.0: Float8WeightOnlyConfig makes NaN of a row of zeros, as in LoRA's second matrix before training: its
# scale is 0, and its values 0 / 0. A float16 row of 1e-6 becomes zeros. NVFP4 with a scale for the whole tensor gives
# NaN for zeros, too; Int8WeightOnlyConfig, and NVFP4 without that scale, keep them.
source "$(dirname "$0")/environment.sh" torch==2.15.0 torchao==0.18.0 numpy==2.4.6
now=$(TORCHDYNAMO_DISABLE=1 "$python" -W ignore - <<'END' 2>/dev/null
import torch
from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor, per_tensor_amax_to_scale
from torchao.quantization import Float8WeightOnlyConfig, Int8WeightOnlyConfig, quantize_

for config in (Float8WeightOnlyConfig, Int8WeightOnlyConfig):
    for dtype, row in ((torch.float32, 0), (torch.bfloat16, 0), (torch.float16, 1e-6)):
        layer = torch.nn.Sequential(torch.nn.Linear(64, 2, bias=False, dtype=dtype))
        layer[0].weight.data = torch.tensor([[1.0], [row]], dtype=dtype).repeat(1, 64)
        quantize_(layer, config())
        print(config.__name__, dtype, row, layer(torch.ones(1, 64, dtype=dtype))[0, 1].item())
zeros = torch.zeros(16, 16)
for options in ({}, {"per_tensor_scale": per_tensor_amax_to_scale(zeros.abs().max())}):
    print("NVFP4", *options, NVFP4Tensor.to_nvfp4(zeros, **options).dequantize(torch.float32)[0, 0].item())
END
)
seen='Float8WeightOnlyConfig torch.float32 0 nan
Float8WeightOnlyConfig torch.bfloat16 0 nan
Float8WeightOnlyConfig torch.float16 1e-06 0.0
Int8WeightOnlyConfig torch.float32 0 0.0
Int8WeightOnlyConfig torch.bfloat16 0 0.0
Int8WeightOnlyConfig torch.float16 1e-06 6.103515625e-05
NVFP4 0.0
NVFP4 per_tensor_scale nan'
conclude "$seen" "$now" "torchao 0.18.0: Float8WeightOnlyConfig makes NaN of a row of zeros"
