#!/usr/bin/env bash
# mlx 0.32.4 reads a BF16 tensor of a GGUF file that gguf 0.19.0 wrote as float16: 100000 becomes infinity, and 1e-9
# zero. It leaves a tensor of MXFP4 out, without a word. mlx has both types, and reads BF16 of safetensors as bfloat16.
source "$(dirname "$0")/environment.sh" mlx[cpu]==0.32.4 gguf==0.19.0 numpy==2.4.6
now=$("$python" - "$folder/model.gguf" <<'END'
import sys

import mlx.core as mx
import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter, quants

values = np.zeros((1, 32), np.float32)
values[0, :3] = 1, 1e5, 1e-9
for kind in (GGMLQuantizationType.F32, GGMLQuantizationType.BF16, GGMLQuantizationType.MXFP4):
    writer = GGUFWriter(sys.argv[1], "llama")
    writer.add_tensor("weight", quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    loaded = mx.load(sys.argv[1])
    print(kind.name, [tensor.name for tensor in GGUFReader(sys.argv[1]).tensors],
          *(f"{value.dtype} {value[0, 1].item():g} {value[0, 2].item():g}" for value in loaded.values()))
END
)
seen="F32 ['weight'] mlx.core.float32 100000 1e-09
BF16 ['weight'] mlx.core.float16 inf 0
MXFP4 ['weight']"
conclude "$seen" "$now" "mlx 0.32.4 reads BF16 of GGUF as float16, 100000 as infinity, and leaves tensors of MXFP4 out"
