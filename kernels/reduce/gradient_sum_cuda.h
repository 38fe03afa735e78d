// Summing gradients on a GPU: the bytes of SumGradients() (gradient_sum.h), for many parameters at once; and the sums
// of squares of the results, the bits of SumOfSquares() (sum_of_squares.h), in the same pass.

#ifndef PARAMSHARD_KERNELS_REDUCE_GRADIENT_SUM_CUDA_H_
#define PARAMSHARD_KERNELS_REDUCE_GRADIENT_SUM_CUDA_H_

#include <cuda_runtime.h>

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/gpu/memory.h"
#include "kernels/gpu/pinned_memory.h"
#include "kernels/reduce/gradient_sum.h"
#include "kernels/reduce/sum_of_squares.h"

namespace paramshard::gpu {

inline constexpr int kMaxGradientSources = 16;

// One call of the host's SumGradients(). Sources are memory of the device or of its peers. All arrays are aligned for
// their elements.
struct GradientSumTask {
  const void* sources[kMaxGradientSources] = {};
  int source_count = 0;
  GradientType type = GradientType::kFP32;
  int64_t count = 0;
  bool overwrite = false;
  MutableGradient accumulator;
};

// Enqueues the sums on the current device: one launch for every 64 tasks with accumulators of one type. The tasks are
// copied; their accumulators do not overlap. INVALID_ARGUMENT unless every task has 1 to kMaxGradientSources sources.
absl::Status SumGradients(absl::Span<const GradientSumTask> tasks, cudaStream_t stream);

// Computes sums of gradients and, in the same pass, the sums of squares of their accumulators. Move-only; owns its
// partial sums on the device. Not thread-safe.
class SquareSummer {
 public:
  // Creates a summer for at most `tasks` tasks at a time, of `elements` elements in all. RESOURCE_EXHAUSTED.
  static absl::StatusOr<SquareSummer> Create(int device, int64_t tasks, int64_t elements);

  // Enqueues the sums as SumGradients() does, except that a task without sources leaves its accumulator as it is, and
  // then SumOfSquares() of each task's accumulator. INVALID_ARGUMENT for more than kMaxGradientSources sources, or more
  // tasks or elements than there is room for.
  absl::Status Enqueue(absl::Span<const GradientSumTask> tasks, cudaStream_t stream);

  // The sums of squares of the latest Enqueue(), in the tasks' order. Waits for the stream (see AwaitStream).
  absl::StatusOr<std::vector<SquareSum>> Await(cudaStream_t stream) const;

  // Both.
  absl::StatusOr<std::vector<SquareSum>> Run(absl::Span<const GradientSumTask> tasks, cudaStream_t stream);

 private:
  explicit SquareSummer(int device) : device_(device) {}

  // Constant after Create().
  int device_;
  int64_t most_tasks_ = 0;
  int64_t most_chunks_ = 0;
  DeviceMemory chunk_sums_;
  DeviceMemory chunk_counts_;
  DeviceMemory results_;
  PinnedArray<SquareSum> host_results_;

  int64_t enqueued_ = 0;  // tasks
};

}  // namespace paramshard::gpu

#endif  // PARAMSHARD_KERNELS_REDUCE_GRADIENT_SUM_CUDA_H_
