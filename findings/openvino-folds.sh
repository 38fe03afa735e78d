#!/usr/bin/env bash
# OpenVINO 2026.4.1 on CPUs, told to compute in float32, folds constants that follow one another: (x + 1e8) - 1e8 is x,
# and (1e20 * 1e30) * 1e-30 is 1e20. It drops a conversion to float16 and back, so that 100000 and 1.0001 stay as they
# are, and keeps one to bfloat16. ONNX Runtime does neither.
source "$(dirname "$0")/environment.sh" openvino==2026.4.1 numpy==2.4.6
now=$("$python" -W ignore - <<'END'
import numpy as np
import openvino
from openvino import opset13 as ops

number = np.float32
for name, build, values in (
        ("add", lambda x: ops.add(ops.add(x, number(1e8)), number(-1e8)), [1]),
        ("multiply", lambda x: ops.multiply(ops.multiply(x, number(1e30)), number(1e-30)), [1e20]),
        ("float16", lambda x: ops.convert(ops.convert(x, "f16"), "f32"), [1e5, 1.0001]),
        ("bfloat16", lambda x: ops.convert(ops.convert(x, "bf16"), "f32"), [1e5, 1.0001])):
    x = ops.parameter([len(values)], np.float32)
    model = openvino.compile_model(openvino.Model([build(x)], [x]), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    print(name, *(f"{value:g}" for value in model(np.array(values, np.float32))[0].tolist()))
END
)
seen='add 1
multiply 1e+20
float16 100000 1.0001
bfloat16 99840 1'
conclude "$seen" "$now" "OpenVINO 2026.4.1: (x + 1e8) - 1e8 is x, and a conversion to float16 and back does nothing"
