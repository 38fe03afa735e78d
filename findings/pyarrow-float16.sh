#!/usr/bin/env bash
# pyarrow 26.0.1: a safe cast of integers to float32 refuses what float32 cannot hold; one to float16 does not: 2049 is
# 2048, and 100000 infinity. An error about 2.5 in float16 names 16640, its bits. As text float16 has float64's digits
# (0.0999755859375), where float32 has its own (0.1).
source "$(dirname "$0")/environment.sh" pyarrow==26.0.1 numpy==2.4.6
now=$("$python" - <<'END'
import pyarrow as pa

for values, target in (([2**24 + 1], pa.float32()), ([2049, 100000], pa.float16()), ([100000.0], pa.float16())):
    try:
        print(pa.array(values).cast(target).to_pylist())
    except pa.ArrowInvalid as error:
        print(error)
tenths = pa.array([0.1, 2.5], pa.float16())
print(tenths.cast(pa.string()).to_pylist(), pa.array([0.1, 2.5], pa.float32()).cast(pa.string()).to_pylist())
try:
    tenths[1:].cast(pa.int8())
except pa.ArrowInvalid as error:
    print(error)
END
)
seen="Integer value 16777217 not in range: -16777216 to 16777216
[2048.0, inf]
[inf]
['0.0999755859375', '2.5'] ['0.1', '2.5']
Float value 16640 was truncated converting to int8"
conclude "$seen" "$now" "pyarrow 26.0.1: a safe cast to float16 makes 2048 of 2049 and infinity of 100000"
