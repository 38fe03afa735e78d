#!/usr/bin/env bash
# ONNX Runtime 1.32.0 on CPUs: Sigmoid of float32 is 0 for -18 and everything below, not 1.5e-8 and less, so that its
# logarithm is -infinity where float32 could hold it down to -87. float64 has it right, and so has ONNX's own evaluator
# (1.23.2) in float32.
source "$(dirname "$0")/environment.sh" onnxruntime==1.32.0 onnx==1.23.2 numpy==2.4.6
now=$("$python" -W ignore - 2>/dev/null <<'END'
import numpy
import onnxruntime
from onnx import checker, helper
from onnx.reference import ReferenceEvaluator

for dtype in (numpy.float32, numpy.float64):
    kind = helper.np_dtype_to_tensor_dtype(numpy.dtype(dtype))
    nodes = [helper.make_node("Sigmoid", ["x"], ["y"]), helper.make_node("Log", ["y"], ["z"])]
    graph = helper.make_graph(nodes, "sigmoid", [helper.make_tensor_value_info("x", kind, [None])],
                              [helper.make_tensor_value_info(name, kind, [None]) for name in "yz"])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    checker.check_model(model)
    x = {"x": numpy.array([-10, -18, -20], dtype)}
    for name, run in (("evaluator", ReferenceEvaluator(model).run),
                      ("runtime", onnxruntime.InferenceSession(model.SerializeToString()).run)):
        y, z = run(None, x)
        print(dtype.__name__, name, *(f"{value:.1e}" for value in y), z.round(1).tolist())
END
)
seen='float32 evaluator 4.5e-05 1.5e-08 2.1e-09 [-10.0, -18.0, -20.0]
float32 runtime 4.5e-05 0.0e+00 0.0e+00 [-10.0, -inf, -inf]
float64 evaluator 4.5e-05 1.5e-08 2.1e-09 [-10.0, -18.0, -20.0]
float64 runtime 4.5e-05 1.5e-08 2.1e-09 [-10.0, -18.0, -20.0]'
conclude "$seen" "$now" "onnxruntime 1.32.0: Sigmoid of float32 is 0 from -18 down, and its logarithm -infinity"
