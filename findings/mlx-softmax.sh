#!/usr/bin/env bash
# mlx 0.32.4 on CPUs: softmax adds up in the type of its logits unless precise=True is given: of 1,000 equal bfloat16
# logits its results have the sum 3.9, and of 32,000 float16 ones 15.6. logcumsumexp of bfloat16 stops at 4.2, and
# cumsum of ones at 256; logsumexp has the sums right.
source "$(dirname "$0")/environment.sh" mlx[cpu]==0.32.4 numpy==2.4.6
now=$("$python" - <<'END'
import mlx.core as mx

mx.set_default_device(mx.cpu)
for count in (256, 1000, 32000):
    for dtype in (mx.bfloat16, mx.float16):
        logits = mx.zeros((count,), dtype)
        total = lambda values: round(values.astype(mx.float32).sum().item(), 1)
        print(count, dtype, total(mx.softmax(logits)), total(mx.softmax(logits, precise=True)),
              round(mx.logsumexp(logits).item(), 1), round(mx.logcumsumexp(logits)[-1].item(), 1),
              mx.cumsum(mx.ones((count,), dtype))[-1].item())
END
)
seen='256 mlx.core.bfloat16 1.0 1.0 5.5 4.2 256.0
256 mlx.core.float16 1.0 1.0 5.5 5.5 256.0
1000 mlx.core.bfloat16 3.9 1.0 6.9 4.2 256.0
1000 mlx.core.float16 1.0 1.0 6.9 6.2 1000.0
32000 mlx.core.bfloat16 125.0 1.0 10.4 4.2 256.0
32000 mlx.core.float16 15.6 1.0 10.4 6.2 2048.0'
conclude "$seen" "$now" "mlx 0.32.4: the softmax of 1,000 equal bfloat16 logits adds up to 3.9 on CPUs"
