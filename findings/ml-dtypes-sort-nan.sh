#!/usr/bin/env bash
# NumPy 2.4.6 with ml_dtypes 0.6.0: numpy.sort leaves bfloat16 and float8 values unsorted around a NaN, and numpy.unique
# returns each NaN. With float32 NaNs come last, once; max and argmax find the NaN in both.
source "$(dirname "$0")/environment.sh" numpy==2.4.6 ml_dtypes==0.6.0
now=$("$python" - <<'END'
import ml_dtypes
import numpy as np

values = [3, np.nan, 1, np.nan, 2]
for dtype in (np.float32, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn):
    array = np.array(values, dtype)
    print(np.sort(array).tolist(), np.unique(array).tolist(), array.argmax())
END
)
seen='[1.0, 2.0, 3.0, nan, nan] [1.0, 2.0, 3.0, nan] 1
[3.0, nan, 1.0, nan, 2.0] [3.0, nan, 1.0, nan, 2.0] 1
[3.0, nan, 1.0, nan, 2.0] [3.0, nan, 1.0, nan, 2.0] 1'
conclude "$seen" "$now" "ml_dtypes 0.6.0: numpy.sort does not sort bfloat16 and float8 arrays that hold a NaN"
