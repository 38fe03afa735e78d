#!/usr/bin/env bash
# ONNX Runtime 1.32.0 on CPUs: Unique drops the NaN of [3, 2, NaN, 1], and of [NaN, 1, 2] all that is no NaN. ReduceMax
# and ArgMax do not see a NaN that is not the first value. ONNX's own evaluator (1.23.2) and NumPy find each NaN, and
# Max, Relu and Clip keep it in ONNX Runtime, too.
source "$(dirname "$0")/environment.sh" onnxruntime==1.32.0 onnx==1.23.2 numpy==2.4.6
now=$("$python" - 2>/dev/null <<'END'
import numpy
import onnxruntime
from onnx import TensorProto, checker, helper
from onnx.reference import ReferenceEvaluator

nan = float("nan")
for operator, kind in (("Unique", TensorProto.FLOAT), ("ReduceMax", TensorProto.FLOAT), ("ArgMax", TensorProto.INT64)):
    graph = helper.make_graph([helper.make_node(operator, ["x"], ["y"])], "numbers",
                              [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None])],
                              [helper.make_tensor_value_info("y", kind, [None])])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    checker.check_model(model)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for values in ([3, 2, nan, 1], [nan, 1, 2]):
        x = {"x": numpy.array(values, numpy.float32)}
        print(operator, values, session.run(None, x)[0].tolist(), ReferenceEvaluator(model).run(None, x)[0].tolist())
END
)
seen='Unique [3, 2, nan, 1] [1.0, 2.0, 3.0] [1.0, 2.0, 3.0, nan]
Unique [nan, 1, 2] [nan] [1.0, 2.0, nan]
ReduceMax [3, 2, nan, 1] [3.0] [nan]
ReduceMax [nan, 1, 2] [nan] [nan]
ArgMax [3, 2, nan, 1] [0] [2]
ArgMax [nan, 1, 2] [0] [0]'
conclude "$seen" "$now" "onnxruntime 1.32.0: Unique of [NaN, 1, 2] is [NaN], and ReduceMax of [3, 2, NaN, 1] is 3"
