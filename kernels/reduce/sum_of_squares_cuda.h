// Sums of squares on a GPU: the bits of SumOfSquares() (sum_of_squares.h), for many arrays at once.

#ifndef PARAMSHARD_KERNELS_REDUCE_SUM_OF_SQUARES_CUDA_H_
#define PARAMSHARD_KERNELS_REDUCE_SUM_OF_SQUARES_CUDA_H_

#include <cuda_runtime.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/reduce/sum_of_squares.h"

namespace paramshard::gpu {

// `count` >= 0 floats in memory of the device.
struct SquareSumExtent {
  const float* values = nullptr;
  int64_t count = 0;
};

// The sums of a fixed list of arrays. Move-only; owns its tables and partial sums on the device, not the arrays, which
// must outlive it. Not thread-safe.
class SquareSumPlan {
 public:
  // RESOURCE_EXHAUSTED.
  static absl::StatusOr<SquareSumPlan> Create(int device, absl::Span<const SquareSumExtent> extents);

  SquareSumPlan(SquareSumPlan&& other) noexcept;
  SquareSumPlan& operator=(SquareSumPlan&& other) noexcept;
  ~SquareSumPlan();

  // Sums the arrays whose `active` is true, and waits for the stream. The others' results are {0, 0}.
  absl::StatusOr<std::vector<SquareSum>> Run(const std::vector<bool>& active, cudaStream_t stream);

 private:
  class Impl;

  explicit SquareSumPlan(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace paramshard::gpu

#endif  // PARAMSHARD_KERNELS_REDUCE_SUM_OF_SQUARES_CUDA_H_
