#!/usr/bin/env bash
# OpenVINO 2026.4.1 on CPUs computes int64 in 32 bits and float64 in float32, and gives the results out as int64 and
# float64: 2^40 equals 2^41, and joining [2^40] to itself gives zeros. int32 goes through float32 where it is divided or
# summed (2^24 and 1 are 2^24), and int8 saturates where int32 wraps. No warning tells.
source "$(dirname "$0")/environment.sh" openvino==2026.4.1 numpy==2.4.6
now=$("$python" -W ignore - <<'END'
import numpy as np
import openvino
from openvino import opset13 as ops


def compute(name, build, *inputs):
    inputs = [np.array(values, dtype) for values, dtype in inputs]
    parameters = [ops.parameter(list(value.shape), value.dtype) for value in inputs]
    result = openvino.compile_model(openvino.Model([build(*parameters)], parameters), "CPU")(inputs)[0]
    print(name, result.dtype, result.tolist())


compute("equal", ops.equal, ([2**40], np.int64), ([2**41], np.int64))
compute("concat", lambda x: ops.concat([x, x], 0), ([2**40], np.int64))
compute("add", ops.add, ([2**40], np.int64), ([1], np.int64))
compute("equal", ops.equal, ([1], np.float64), ([1 + 1e-12], np.float64))
compute("divide", ops.divide, ([2**30 + 1], np.int32), ([3], np.int32))
compute("sum", lambda x: ops.reduce_sum(x, np.int64(0)), ([2**24, 1], np.int32))
compute("add", ops.add, ([2**31 - 1], np.int32), ([1], np.int32))
compute("add", ops.add, ([100], np.int8), ([100], np.int8))
END
)
seen='equal bool [True]
concat int64 [0, 0]
add int64 [1]
equal bool [True]
divide int32 [357913952]
sum int32 16777216
add int32 [-2147483648]
add int8 [127]'
conclude "$seen" "$now" "OpenVINO 2026.4.1 on CPUs computes int64 in 32 bits: 2^40 equals 2^41, and 2^40 + 1 is 1"
