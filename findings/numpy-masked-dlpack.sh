#!/usr/bin/env bash
# NumPy 2.4.6: a masked array exports its data by __dlpack__ without a word of the mask, so that numpy.from_dlpack gives
# the values under the mask back as if they were valid. Buffers and __array__ do likewise.
source "$(dirname "$0")/environment.sh" numpy==2.4.6
now=$("$python" - <<'END'
import numpy as np

masked = np.ma.masked_array(np.array([1.0, -999.0, 3.0]), mask=[False, True, False])
print(masked.sum(), np.from_dlpack(masked).sum())
END
)
conclude "4.0 -995.0" "$now" "NumPy 2.4.6: numpy.ma exports by __dlpack__ without its mask"
