#!/usr/bin/env bash
# OpenVINO 2026.4.1 on CPUs: the exponential of NaN is infinity, its clamp to [-1, 1] is -1, its relu is 0, and its
# conversion to boolean false. maximum of NaN and 1 is 1, of 1 and NaN it is NaN. NumPy 2.4.6 gives NaN for all but the
# conversion, which is true, and so does ONNX Runtime.
source "$(dirname "$0")/environment.sh" openvino==2026.4.1 numpy==2.4.6
now=$("$python" -W ignore - <<'END'
import numpy as np
import openvino
from openvino import opset13 as ops

nan = np.array([float("nan")], np.float32)
one = np.ones(1, np.float32)
for name, build, numpy, inputs in (
        ("exp", ops.exp, np.exp, [nan]), ("clamp", lambda x: ops.clamp(x, -1, 1), lambda x: np.clip(x, -1, 1), [nan]),
        ("relu", ops.relu, lambda x: np.maximum(x, 0), [nan]),
        ("boolean", lambda x: ops.convert(x, "boolean"), lambda x: x.astype(bool), [nan]),
        ("maximum", ops.maximum, np.maximum, [nan, one]), ("maximum", ops.maximum, np.maximum, [one, nan])):
    x = [ops.parameter([1], np.float32) for _ in inputs]
    model = openvino.compile_model(openvino.Model([build(*x)], x), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    print(name, model(inputs)[0].item(), numpy(*inputs).item())
END
)
seen='exp inf nan
clamp -1.0 nan
relu 0.0 nan
boolean False True
maximum 1.0 nan
maximum nan nan'
conclude "$seen" "$now" "OpenVINO 2026.4.1: the exponential of NaN is infinity, its relu 0, and maximum(NaN, 1) is 1"
