// The fused optimizer step on a GPU: the bytes of FusedAdam() (adam.h), for many extents in one pass.

#ifndef PARAMSHARD_KERNELS_OPTIM_ADAM_CUDA_H_
#define PARAMSHARD_KERNELS_OPTIM_ADAM_CUDA_H_

#include <cuda_runtime.h>

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/formats/codec.h"
#include "kernels/formats/format.h"
#include "kernels/optim/adam.h"

namespace paramshard::gpu {

// One extent, with what stays the same from step to step. Pointers to memory of the device, as FusedAdam() takes them: state
// and gradient aligned for their elements, planes of any alignment. They are fastest where four elements of every array can
// be accessed at once: aligned to 16 bytes, and `columns` a multiple of 4.
struct AdamExtent {
  const float* gradient = nullptr;
  AdamState state;
  int64_t rows = 0;
  int64_t columns = 0;
  Encoding encoding;
  MutablePlane row_wise;
  MutablePlane column_wise;
};

// The steps of a fixed list of extents. Move-only; owns its tables on the device, not the extents' memory, which must
// outlive it. Not thread-safe.
//
// A step is one launch for each kind of extents that the plan has: by the types of their moments, by whether they can be
// accessed four elements at a time, and by FP8_BLOCK_128X128 or MXFP8, which extents without scales join. A model has one or
// two.
class FusedAdamPlan {
 public:
  // INVALID_ARGUMENT and UNIMPLEMENTED of CheckEncodable(); RESOURCE_EXHAUSTED.
  static absl::StatusOr<FusedAdamPlan> Create(int device, absl::Span<const AdamExtent> extents);

  FusedAdamPlan(FusedAdamPlan&& other) noexcept;
  FusedAdamPlan& operator=(FusedAdamPlan&& other) noexcept;
  ~FusedAdamPlan();

  // Enqueues one optimizer step on every extent whose entry in `steps` has a value; of the others no byte changes. The
  // stream must be done with it before the next call of Step() or Encode().
  absl::Status Step(absl::Span<const std::optional<AdamStep>> steps, cudaStream_t stream);

  // Enqueues encoding the planes of every extent from its master.
  absl::Status Encode(cudaStream_t stream);

 private:
  class Impl;

  explicit FusedAdamPlan(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace paramshard::gpu

#endif  // PARAMSHARD_KERNELS_OPTIM_ADAM_CUDA_H_
