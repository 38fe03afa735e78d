#!/usr/bin/env bash
# torch 2.15.0 on CPUs: a tensor of float4_e2m1fn_x2 is printed as the numbers of its bytes (128. for two zeros), its ==
# compares bytes, so that -0 is not 0, and isnan answers; a conversion to float32, max, item and finfo's text are errors.
source "$(dirname "$0")/environment.sh" torch==2.15.0 numpy==2.4.6
now=$("$python" -W ignore - <<'END'
import torch

packed = torch.tensor([0x00, 0x80, 0x12], dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
print(packed)
print(packed == torch.zeros(3, dtype=torch.uint8).view(torch.float4_e2m1fn_x2), packed.isnan())
for read in (lambda: packed.float(), lambda: packed.max(), lambda: packed[0].item(),
             lambda: repr(torch.finfo(torch.float4_e2m1fn_x2))):
    try:
        print(read())
    except Exception as error:
        print(type(error).__name__)
END
)
seen='tensor([  0., 128.,  18.], dtype=torch.float4_e2m1fn_x2)
tensor([ True, False, False]) tensor([False, False, False])
NotImplementedError
NotImplementedError
NotImplementedError
TypeError'
conclude "$seen" "$now" "torch 2.15.0 prints the bytes of FP4 tensors as if they were values"
