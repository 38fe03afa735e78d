#!/usr/bin/env bash
# tinygrad 0.14.0 simplifies x / x to 1, and x - x and x * 0 to 0, for every x: 0 / 0 and NaN / NaN are 1, and infinity
# less itself is 0. isnan, which compares x with itself, is right. It is done before code is generated, and so on every
# device: here on that of plain Python.
source "$(dirname "$0")/environment.sh" tinygrad==0.14.0 numpy==2.4.6
now=$(DEV=PYTHON "$python" - <<'END'
from tinygrad import Tensor

x = Tensor([0.0, float("inf"), float("nan"), 2.0]).realize()
for name, result in (("x / x", x / x), ("x - x", x - x), ("x * 0", x * 0), ("isnan", x.isnan())):
    print(name, result.tolist())
END
)
seen='x / x [1.0, 1.0, 1.0, 1.0]
x - x [0.0, 0.0, 0.0, 0.0]
x * 0 [0.0, 0.0, 0.0, 0.0]
isnan [False, False, True, False]'
conclude "$seen" "$now" "tinygrad 0.14.0: 0 / 0 and NaN / NaN are 1, and infinity - infinity and NaN * 0 are 0"
