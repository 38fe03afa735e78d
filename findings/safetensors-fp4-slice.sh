#!/usr/bin/env bash
# safetensors 0.8.0 with torch 2.15.0: a tensor of float4_e2m1fn_x2 of shape [2, 8] is stored as F4 of shape [2, 16], and
# load_file gives [2, 8] back. get_slice gives the stored shape, and every slice of it fails, a whole row too: the bytes
# are taken for a tensor of the stored shape.
source "$(dirname "$0")/environment.sh" torch==2.15.0 numpy==2.4.6 safetensors==0.8.0
now=$("$python" -W ignore - "$folder/fp4.safetensors" <<'END'
import sys

import safetensors
import torch
from safetensors.torch import load_file, save_file

codes = torch.arange(16, dtype=torch.uint8).reshape(2, 8).view(torch.float4_e2m1fn_x2)
save_file({"codes": codes}, sys.argv[1])
print(list(load_file(sys.argv[1])["codes"].shape))
with safetensors.safe_open(sys.argv[1], "pt") as file:
    part = file.get_slice("codes")
    print(part.get_dtype(), part.get_shape())
    for rows, columns in ((slice(0, 1), slice(None)), (slice(None), slice(0, 4))):
        try:
            print(list(part[rows, columns].shape))
        except RuntimeError as error:
            print(error)
END
)
conclude "[2, 8]
F4 [2, 16]
shape '[2, 16]' is invalid for input of size 16
shape '[2, 16]' is invalid for input of size 16" "$now" \
  "safetensors 0.8.0: get_slice fails for FP4 tensors of torch 2.15.0, which load_file reads"
