// Summing gradients on a GPU: the bytes of SumGradients() (gradient_sum.h), for many parameters at once.

#ifndef PARAMSHARD_KERNELS_REDUCE_GRADIENT_SUM_CUDA_H_
#define PARAMSHARD_KERNELS_REDUCE_GRADIENT_SUM_CUDA_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/reduce/gradient_sum.h"

namespace paramshard::gpu {

inline constexpr int kMaxGradientSources = 16;

// One call of the host's SumGradients(). Sources are memory of the device or of its peers, aligned for their elements.
struct GradientSumTask {
  const void* sources[kMaxGradientSources] = {};
  int source_count = 0;
  GradientType type = GradientType::kFP32;
  int64_t count = 0;
  bool overwrite = false;
  float* accumulator = nullptr;
};

// Enqueues the sums on the current device: one launch for every 64 tasks. The tasks are copied; their accumulators do
// not overlap. INVALID_ARGUMENT unless every task has 1 to kMaxGradientSources sources.
absl::Status SumGradients(absl::Span<const GradientSumTask> tasks, cudaStream_t stream);

}  // namespace paramshard::gpu

#endif  // PARAMSHARD_KERNELS_REDUCE_GRADIENT_SUM_CUDA_H_
