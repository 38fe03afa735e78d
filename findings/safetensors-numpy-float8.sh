#!/usr/bin/env bash
# safetensors 0.8.0, NumPy 2.4.6: one tensor of F8_E4M3 makes safetensors.numpy.load_file fail for the whole file, with
# an AttributeError of numpy. safe_open lists the tensor and its type, and reads the file's other tensors.
source "$(dirname "$0")/environment.sh" safetensors==0.8.0 numpy==2.4.6
now=$("$python" - "$folder/model.safetensors" <<'END'
import json, struct, sys
import numpy as np
import safetensors
from safetensors.numpy import load_file

header = json.dumps({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
                     "b": {"dtype": "F8_E4M3", "shape": [4], "data_offsets": [8, 12]}}).encode()
with open(sys.argv[1], "wb") as file:
    file.write(struct.pack("<Q", len(header)) + header + np.array([1, 2], np.float32).tobytes() + bytes([0x38] * 4))
with safetensors.safe_open(sys.argv[1], "np") as opened:
    print(sorted(opened.keys()), opened.get_slice("b").get_dtype(), opened.get_tensor("a").tolist())
try:
    print(load_file(sys.argv[1]))
except AttributeError as error:
    print(error)
END
)
conclude "['a', 'b'] F8_E4M3 [1.0, 2.0]
module 'numpy' has no attribute 'float8_e4m3fn'" "$now" \
  "safetensors 0.8.0: safetensors.numpy.load_file fails for a whole file with one F8_E4M3 tensor"
