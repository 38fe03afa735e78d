#!/usr/bin/env bash
# ONNX Runtime 1.32.0 keeps, of two pairs of QuantizeLinear and DequantizeLinear that follow one another, the one of the
# narrower range alone: rounding to steps of 10 after rounding to steps of 1 is dropped, and 3.4 is 3, not 0. Without
# graph optimizations it computes both, as ONNX's own evaluator (1.23.2) does.
source "$(dirname "$0")/environment.sh" onnxruntime==1.32.0 onnx==1.23.2 numpy==2.4.6
now=$("$python" - 2>/dev/null <<'END'
import numpy
import onnxruntime
from onnx import TensorProto, checker, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

nodes = [helper.make_node("QuantizeLinear", ["x", "one", "zero"], ["a"]),
         helper.make_node("DequantizeLinear", ["a", "one", "zero"], ["b"]),
         helper.make_node("QuantizeLinear", ["b", "ten", "zero"], ["c"]),
         helper.make_node("DequantizeLinear", ["c", "ten", "zero"], ["y"])]
constants = {"one": numpy.float32(1), "ten": numpy.float32(10), "zero": numpy.int8(0)}
graph = helper.make_graph(nodes, "pairs", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None])],
                          [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None])],
                          [numpy_helper.from_array(numpy.asarray(value), name) for name, value in constants.items()])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
checker.check_model(model)
options = onnxruntime.SessionOptions()
options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
for name, run in (("evaluator", ReferenceEvaluator(model).run),
                  ("runtime", onnxruntime.InferenceSession(model.SerializeToString()).run),
                  ("without optimizations", onnxruntime.InferenceSession(model.SerializeToString(), options).run)):
    print(name, run(None, {"x": numpy.array([3.4, 17, 300], numpy.float32)})[0].tolist())
END
)
seen='evaluator [0.0, 20.0, 130.0]
runtime [3.0, 17.0, 127.0]
without optimizations [0.0, 20.0, 130.0]'
conclude "$seen" "$now" "onnxruntime 1.32.0 drops one of two quantizations: 3.4 in steps of 1, then of 10, is 3, not 0"
