#!/usr/bin/env bash
# cbor2 6.3.0 writes a memoryview as a list of numbers, not as bytes: 4,000 bytes take 8,003, and 1,000 float32 values,
# each written as float64, 9,003; they come back as a list. bytes and bytearray are bytes. msgpack 1.2.4 and msgspec
# 0.23.0 write the bytes of all.
source "$(dirname "$0")/environment.sh" cbor2==6.3.0 msgpack==1.2.4 msgspec==0.23.0 numpy==2.4.6
now=$("$python" - <<'END'
import cbor2
import msgpack
import msgspec
import numpy as np

weights = np.full(1000, 0.1, np.float32)
for name, encode in (("cbor2", cbor2.dumps), ("msgpack", msgpack.packb), ("msgspec", msgspec.msgpack.encode)):
    print(name, len(encode(weights.tobytes())), len(encode(memoryview(weights.tobytes()))), len(encode(weights.data)))
print(cbor2.loads(cbor2.dumps(memoryview(b"\x01\x02"))), cbor2.loads(cbor2.dumps(bytearray(b"\x01\x02"))))
END
)
seen="cbor2 4003 8003 9003
msgpack 4003 4003 4003
msgspec 4003 4003 4003
[1, 2] b'\\x01\\x02'"
conclude "$seen" "$now" "cbor2 6.3.0: a memoryview becomes a list of numbers, twice as large as its bytes"
