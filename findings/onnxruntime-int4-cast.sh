#!/usr/bin/env bash
# ONNX Runtime 1.32.0 rounds where it casts float32 to INT4 or INT2, half away from zero, and truncates where it casts to
# INT8. ONNX's own evaluator (1.23.2) truncates for all three: 1.75 is 1 as INT8, and 2 as INT4 in ONNX Runtime alone.
source "$(dirname "$0")/environment.sh" onnxruntime==1.32.0 onnx==1.23.2 numpy==2.4.6
now=$("$python" - 2>/dev/null <<'END'
import numpy
import onnx
import onnxruntime
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

values = numpy.array([0.5, 0.75, 1.75, 2.5, -0.5, -1.75, -2.5], numpy.float32)
for name in ("INT8", "INT4", "INT2"):
    nodes = [helper.make_node("Cast", ["x"], ["small"], to=getattr(TensorProto, name)),
             helper.make_node("Cast", ["small"], ["y"], to=TensorProto.FLOAT)]
    graph = helper.make_graph(nodes, "casts", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None])],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None])])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)], ir_version=11)
    onnx.checker.check_model(model)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for what, run in (("evaluator", ReferenceEvaluator(model).run), ("runtime", session.run)):
        print(name, what, run(None, {"x": values})[0].astype(int).tolist())
END
)
seen='INT8 evaluator [0, 0, 1, 2, 0, -1, -2]
INT8 runtime [0, 0, 1, 2, 0, -1, -2]
INT4 evaluator [0, 0, 1, 2, 0, -1, -2]
INT4 runtime [1, 1, 2, 3, -1, -2, -3]
INT2 evaluator [0, 0, 1, -2, 0, -1, -2]
INT2 runtime [1, 1, -2, -1, -1, -2, 1]'
conclude "$seen" "$now" "onnxruntime 1.32.0: a cast of 1.75 to INT4 is 2, to INT8 it is 1; ONNX's evaluator has 1 for both"
