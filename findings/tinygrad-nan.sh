#!/usr/bin/env bash
# tinygrad 0.14.0: sort of [3, NaN, 1, NaN, 2] is [2, 3, 3, 3, 3]: NaNs and 1 are gone, and 3 comes four times. argmax
# of [NaN, 1, 2] is 3, which is no index. max finds a NaN that comes first alone, and relu of NaN is 0. Run on its
# device of plain Python; compiled for a CPU it does the same.
source "$(dirname "$0")/environment.sh" tinygrad==0.14.0 numpy==2.4.6
now=$(DEV=PYTHON "$python" - <<'END'
from tinygrad import Tensor

nan = float("nan")
for values in ([3.0, nan, 1.0, nan, 2.0], [nan, 1.0, 2.0]):
    x = Tensor(values).realize()
    print(x.sort()[0].tolist(), x.argmax().item(), x.max().item(), x.relu().tolist())
END
)
seen='[2.0, 3.0, 3.0, 3.0, 3.0] 0 3.0 [3.0, 0.0, 1.0, 0.0, 2.0]
[nan, nan, nan] 3 nan [0.0, 1.0, 2.0]'
conclude "$seen" "$now" "tinygrad 0.14.0: sort of [3, NaN, 1, NaN, 2] is [2, 3, 3, 3, 3]; argmax of [NaN, 1, 2] is 3"
