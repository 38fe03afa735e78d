// The fused optimizer step on a GPU: the bytes of FusedAdam() (adam.h), for many extents in one pass.

#ifndef PARAMSHARD_KERNELS_OPTIM_ADAM_CUDA_H_
#define PARAMSHARD_KERNELS_OPTIM_ADAM_CUDA_H_

#include <cuda_runtime.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/formats/codec.h"
#include "kernels/formats/format.h"
#include "kernels/optim/adam.h"
#include "kernels/optim/state_bands.h"

namespace paramshard::gpu {

// One extent, with what stays the same from step to step. Pointers to memory of the device, as FusedAdam() takes them:
// state and gradient aligned for their elements, planes of any alignment; but the weights of a master with a remainder
// are aligned to 2 bytes. The up to 15 bytes before an array, as far as they share 16 aligned ones with it, are read.
//
// Fastest where all arrays are aligned to 16 bytes and `columns` is a multiple of 16. Other numbers of columns are
// nearly as fast with moments of equal type, FP32 or BF16; else elements are accessed one by one, as they are where
// arrays differ in their alignment to four elements.
struct AdamExtent {
  ConstGradient gradient;
  AdamState state;
  int64_t rows = 0;
  int64_t columns = 0;
  Encoding encoding;
  MutablePlane row_wise;
  MutablePlane column_wise;
};

// The steps of a fixed list of extents. Move-only; owns its tables on the device, not the extents' memory, which must
// outlive it. Not thread-safe. A stream must be done with one call before the next call on another stream, and before
// any that enqueues work of other arguments: the tables are the plan's.
//
//   ASSIGN_OR_RETURN(FusedAdamPlan plan, FusedAdamPlan::Create(device, extents));
//   RETURN_IF_ERROR(plan.Step(steps, scalings, stream));
//   ASSIGN_OR_RETURN(std::vector<float> amaxes, plan.Amaxes(stream));
//   // The largest over all ranks become scalings; then:
//   RETURN_IF_ERROR(plan.EncodeAfterAmax(stepped, scalings, stream));
//
// A step is one launch for each kind of extents that the plan has: by the types of their moments and gradients, by how
// they can be accessed, and by FP8_BLOCK_128X128 or MXFP8, which other formats join. A model has one or two.
//
// `scalings` has an entry per extent, or is empty where no extent NeedsAmax().
class FusedAdamPlan {
 public:
  // INVALID_ARGUMENT of CheckEncodable() and CheckBands(), and for a remainder without BF16 weights, which are no plane
  // where there are bands; RESOURCE_EXHAUSTED. `bands` are for StepBand(). With them what is stored of extents that
  // follow each other follows each other in memory, and less than kMoveUnit bytes between two are nobody's.
  static absl::StatusOr<FusedAdamPlan> Create(int device, absl::Span<const AdamExtent> extents,
                                              std::vector<BandStart> bands = {});

  FusedAdamPlan(FusedAdamPlan&& other) noexcept;
  FusedAdamPlan& operator=(FusedAdamPlan&& other) noexcept;
  ~FusedAdamPlan();

  // Enqueues one optimizer step on every extent whose entry in `steps` has a value; of the others no byte changes.
  // Encodes those that do not EncodesAfterAmax(), FP8_TENSOR_DELAYED with its scaling's `scale`. INVALID_ARGUMENT for
  // missing scalings, here and below.
  absl::Status Step(absl::Span<const std::optional<AdamStep>> steps, absl::Span<const TensorScaling> scalings,
                    cudaStream_t stream);

  // Says where the state lies: so many bytes behind the extents' addresses, a multiple of kMoveUnit, in every array.
  // Masters with remainders have weights of their own then.
  void SetPosition(int64_t bytes);

  // The same step band by band, which leaves the state `distance` bytes further on (a multiple of kMoveUnit):
  // BeginStep(), and then, when the stream is there, each band once, in the order and the lanes of state_bands.h, or
  // what is left of them after a step that was cut off. What takes no step moves along: a copy for each array and band
  // where extents that take none are neighbours. SetPosition() follows. Bands that no step has begun, or out of order,
  // are our bug.
  absl::Status BeginStep(absl::Span<const std::optional<AdamStep>> steps, absl::Span<const TensorScaling> scalings,
                         int64_t distance, cudaStream_t stream);
  absl::Status StepBand(int band, cudaStream_t stream);
  int band_count() const;

  // Enqueues encoding the planes of every extent from its master. Weights that are
  // planes stay.
  absl::Status Encode(absl::Span<const TensorScaling> scalings, cudaStream_t stream);

  // The same for those extents that are active and EncodesAfterAmax().
  absl::Status EncodeAfterAmax(const std::vector<bool>& active, absl::Span<const TensorScaling> scalings,
                               cudaStream_t stream);

  // Enqueues finding the amax of the master of every extent that NeedsAmax().
  absl::Status MeasureAmaxes(cudaStream_t stream);

  // What the latest Step() or MeasureAmaxes() found, an entry per extent: 0 where not NeedsAmax(), and where not
  // stepped. Waits for the stream (see AwaitStream).
  absl::StatusOr<std::vector<float>> Amaxes(cudaStream_t stream);

 private:
  class Impl;

  explicit FusedAdamPlan(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace paramshard::gpu

#endif  // PARAMSHARD_KERNELS_OPTIM_ADAM_CUDA_H_
