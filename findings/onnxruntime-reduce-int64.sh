#!/usr/bin/env bash
# ONNX Runtime 1.32.0 on CPUs computes ReduceSum, ReduceL1 and Pow of int64 in float64: the sum of 2^53 + 1 and 0 is
# 2^53, and 7^22 is 239 too large. Sums of int32 stop at 2^31 - 1, where Add wraps. CumSum, and ONNX's own evaluator
# (1.23.2), compute in the integers' type.
source "$(dirname "$0")/environment.sh" onnxruntime==1.32.0 onnx==1.23.2 numpy==2.4.6
now=$("$python" - 2>/dev/null <<'END'
import numpy
import onnxruntime
from onnx import checker, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

large = numpy.array([2**53 + 1, 0])
for operator, x, second in (("ReduceSum", large, None), ("ReduceL1", large, None), ("CumSum", large, 0),
                            ("Pow", numpy.array([7]), 22),
                            ("ReduceSum", numpy.array([2**31 - 1, 1], numpy.int32), None),
                            ("Add", numpy.array([2**31 - 1], numpy.int32), numpy.int32(1))):
    constants = [] if second is None else [numpy_helper.from_array(numpy.asarray(second), "second")]
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    graph = helper.make_graph([helper.make_node(operator, ["x", *(constant.name for constant in constants)], ["y"])],
                              "integers", [helper.make_tensor_value_info("x", kind, [None])],
                              [helper.make_tensor_value_info("y", kind, [None])], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    checker.check_model(model)
    runtime = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})[0]
    exact = ReferenceEvaluator(model).run(None, {"x": x})[0]
    print(operator, x.dtype, runtime.ravel().tolist(), exact.ravel().tolist())
END
)
seen='ReduceSum int64 [9007199254740992] [9007199254740993]
ReduceL1 int64 [9007199254740992] [9007199254740993]
CumSum int64 [9007199254740993, 9007199254740993] [9007199254740993, 9007199254740993]
Pow int64 [3909821048582988288] [3909821048582988049]
ReduceSum int32 [2147483647] [-2147483648]
Add int32 [-2147483648] [-2147483648]'
conclude "$seen" "$now" "onnxruntime 1.32.0 computes ReduceSum and Pow of int64 in float64: 2^53 + 1 and 0 give 2^53"
