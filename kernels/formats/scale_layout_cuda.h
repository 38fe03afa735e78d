// Block scales as matrix products read them, arranged on a GPU: the bytes of ArrangeScales() (scale_layout.h).

#ifndef PARAMSHARD_KERNELS_FORMATS_SCALE_LAYOUT_CUDA_H_
#define PARAMSHARD_KERNELS_FORMATS_SCALE_LAYOUT_CUDA_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/formats/scale_layout.h"

namespace paramshard::gpu {

// Enqueues writing arrangement.bytes() bytes. Memory of the current device, of any alignment.
absl::Status ArrangeScales(const ScaleArrangement& arrangement, const uint8_t* compact, uint8_t* out,
                           cudaStream_t stream);

}  // namespace paramshard::gpu

#endif  // PARAMSHARD_KERNELS_FORMATS_SCALE_LAYOUT_CUDA_H_
