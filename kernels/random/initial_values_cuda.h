// Initial values on a GPU: the bytes of FillInitialValues() (initial_values.h).

#ifndef PARAMSHARD_KERNELS_RANDOM_INITIAL_VALUES_CUDA_H_
#define PARAMSHARD_KERNELS_RANDOM_INITIAL_VALUES_CUDA_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/random/initial_values.h"

namespace paramshard::gpu {

// Enqueues writing elements [first_element, first_element + count) of parameter `parameter_index` to `out`, memory of
// the current device. INVALID_ARGUMENT as CheckInitialValue().
absl::Status FillInitialValues(const InitialValue& value, uint64_t seed, int64_t parameter_index, int64_t first_element,
                               int64_t count, float* out, cudaStream_t stream);

}  // namespace paramshard::gpu

#endif  // PARAMSHARD_KERNELS_RANDOM_INITIAL_VALUES_CUDA_H_
