#!/usr/bin/env bash
# transformers 5.23.0 with torch 2.15.0, quant_method fp8 with dequantize: for a weight of 192 rows and scales of blocks of
# 128 x 128 it takes 192 / 2 = 96 for the height of a block, whatever weight_block_size says. Rows 96 to 127 get the
# second block's scale, without an error. Where rows are a multiple of 128 values are right.
source "$(dirname "$0")/environment.sh" torch==2.15.0 numpy==2.4.6 safetensors==0.8.0 transformers==5.23.0 \
  accelerate==1.15.0
now=$("$python" -W ignore - "$folder" <<'END' 2>/dev/null
import json
import sys

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

config = LlamaConfig(vocab_size=64, hidden_size=128, intermediate_size=192, num_hidden_layers=1,
                     num_attention_heads=2, num_key_value_heads=2)
state = LlamaForCausalLM(config).state_dict()
stored = {}
for name, value in state.items():
    if not name.endswith("_proj.weight"):
        stored[name] = value
        continue
    # Each block of 128 x 128 has one value: 1, or 0.01 in the second row of blocks.
    row_scales = torch.tensor([1.0, 0.01])[: -(-value.shape[0] // 128)]
    stored[name] = torch.ones_like(value).to(torch.float8_e4m3fn)
    stored[f"{name}_scale_inv"] = row_scales[:, None].expand(-1, -(-value.shape[1] // 128)).contiguous()
save_file(stored, f"{sys.argv[1]}/model.safetensors", metadata={"format": "pt"})
written = config.to_dict() | {"architectures": ["LlamaForCausalLM"], "quantization_config": {
    "quant_method": "fp8", "weight_block_size": [128, 128], "dequantize": True, "modules_to_not_convert": ["lm_head"]}}
with open(f"{sys.argv[1]}/config.json", "w") as file:
    json.dump(written, file)
loaded = LlamaForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32).state_dict()
for name in ("self_attn.q_proj", "mlp.gate_proj"):
    value = loaded[f"model.layers.0.{name}.weight"]
    print(name, *(f"{value[row, 0].item():.2f}" for row in (0, 95, 96, 127)))
END
)
conclude "self_attn.q_proj 1.00 1.00 1.00 1.00
mlp.gate_proj 1.00 1.00 0.01 0.01" "$now" \
  "transformers 5.23.0: FP8 weights of 192 rows are decoded with blocks of 96 rows, not 128"
