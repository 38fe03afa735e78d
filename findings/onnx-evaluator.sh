#!/usr/bin/env bash
# onnx 1.23.2: its own evaluator computes LayerNormalization and RMSNormalization of float16 in float16, though their
# stash_type, float32 unless given, asks for float32: squares of 1,000 are infinite, and the result is zeros. ONNX
# Runtime 1.32.0 has it right. The evaluator's QuantizeLinear gives -128 for 3e9 and infinity, not 127.
source "$(dirname "$0")/environment.sh" onnxruntime==1.32.0 onnx==1.23.2 numpy==2.4.6
now=$("$python" -W ignore - 2>/dev/null <<'END'
import numpy
import onnxruntime
from onnx import checker, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

half = numpy.array([[1000, 2000, 3000, 4000]], numpy.float16)
large = numpy.array([1e9, 3e9, numpy.inf], numpy.float32)
for operator, x, y, constants in (("LayerNormalization", half, half.dtype, [numpy.ones(4, numpy.float16)]),
                                  ("RMSNormalization", half, half.dtype, [numpy.ones(4, numpy.float16)]),
                                  ("QuantizeLinear", large, numpy.dtype("int8"), [numpy.float32(1), numpy.int8(0)])):
    constants = [numpy_helper.from_array(numpy.asarray(value), f"c{i}") for i, value in enumerate(constants)]
    values = [helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(dtype), x.shape)
              for name, dtype in (("x", x.dtype), ("y", y))]
    node = helper.make_node(operator, ["x", *(constant.name for constant in constants)], ["y"])
    graph = helper.make_graph([node], "graph", values[:1], values[1:], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)
    checker.check_model(model)
    for run in (ReferenceEvaluator(model).run, onnxruntime.InferenceSession(model.SerializeToString()).run):
        print(operator, run(None, {"x": x})[0].astype(float).round(2).ravel().tolist())
END
)
seen='LayerNormalization [-0.0, -0.0, 0.0, 0.0]
LayerNormalization [-1.34, -0.45, 0.45, 1.34]
RMSNormalization [0.0, 0.0, 0.0, 0.0]
RMSNormalization [0.37, 0.73, 1.1, 1.46]
QuantizeLinear [127.0, -128.0, -128.0]
QuantizeLinear [127.0, 127.0, 127.0]'
conclude "$seen" "$now" "onnx 1.23.2: the evaluator's LayerNormalization of 1,000 to 4,000 in float16 is zeros"
