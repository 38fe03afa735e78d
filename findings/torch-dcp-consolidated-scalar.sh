#!/usr/bin/env bash
# torch 2.15.0: HuggingFaceStorageWriter with enable_consolidation=True writes 0 for a tensor without dimensions into the
# consolidated file. The shard that it is consolidated from has the value. Tensors with dimensions are right in both.
source "$(dirname "$0")/environment.sh" torch==2.15.0 numpy==2.4.6 safetensors==0.8.0
now=$("$python" -W ignore - "$folder/checkpoint" <<'END'
import sys

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file
from torch.distributed.checkpoint import HuggingFaceStorageWriter

state = {"step": torch.tensor(3.0), "weight": torch.tensor([1.0, 2.0])}
dcp.save(state, storage_writer=HuggingFaceStorageWriter(
    path=sys.argv[1], fqn_to_index_mapping=dict.fromkeys(state, 1), save_distributed=True, enable_consolidation=True))
for name in ("sharded/shard-00001-model-00001-of-00001.safetensors", "model-00001-of-00001.safetensors"):
    loaded = load_file(f"{sys.argv[1]}/{name}")
    print({key: loaded[key].tolist() for key in sorted(loaded)})
END
)
conclude "{'step': 3.0, 'weight': [1.0, 2.0]}
{'step': 0.0, 'weight': [1.0, 2.0]}" "$now" \
  "torch 2.15.0: the consolidated file of HuggingFaceStorageWriter has 0 for a tensor without dimensions"
