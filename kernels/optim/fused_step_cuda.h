// The fused optimizer step on a GPU: the bytes of FusedStep() (fused_step.h), for many extents in one pass.

#ifndef PARAMSHARD_KERNELS_OPTIM_FUSED_STEP_CUDA_H_
#define PARAMSHARD_KERNELS_OPTIM_FUSED_STEP_CUDA_H_

#include <cuda_runtime.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/formats/codec.h"
#include "kernels/formats/format_id.h"
#include "kernels/optim/fused_step.h"
#include "kernels/optim/state_bands.h"

namespace paramshard::gpu {

// The constant arguments of an extent's steps. Its state has the moments of its optimizer, which all of its steps are of.
// Pointers to device memory, as for FusedStep(): state and gradient are
// aligned for their elements, planes have any alignment, but the weights of a master with a remainder are aligned to 2
// bytes. Up to 15 bytes before an array are read if they share 16 aligned bytes with it.
//
// Fastest if all arrays are aligned to 16 bytes and `columns` is a multiple of 16. Other numbers of columns are nearly
// as fast with moments of equal type, FP32 or BF16. Otherwise, and if arrays differ in their alignment to four
// elements, elements are accessed one by one.
struct StepExtent {
  ConstGradient gradient;
  OptimizerState state;
  int64_t rows = 0;
  int64_t columns = 0;
  Encoding encoding;
  MutablePlane row_wise;
  MutablePlane column_wise;
};

// The steps of a fixed list of extents. Move-only; owns its tables on the device, not the extents' memory, which must
// outlive it. Not thread-safe. All calls share the plan's tables: a stream must have finished one call before the next
// call on another stream, and before a call with other arguments.
//
//   ASSIGN_OR_RETURN(FusedStepPlan plan, FusedStepPlan::Create(device, extents));
//   RETURN_IF_ERROR(plan.Step(steps, scalings, stream));
//   ASSIGN_OR_RETURN(std::vector<float> amaxes, plan.Amaxes(stream));
//   // The largest over all ranks become scalings; then:
//   RETURN_IF_ERROR(plan.EncodeAfterAmax(stepped, scalings, stream));
//
// A step is one launch for each kind of extents in the plan. Kinds differ in the number and types of moments and gradients, in
// access, and in FP8_BLOCK_128X128 or MXFP8, which other formats join. A model has one or two kinds.
//
// `scalings` has an entry per extent, or is empty if no extent NeedsAmax().
class FusedStepPlan {
 public:
  // `bands` are for StepBand(). With bands, extents that follow each other follow each other in memory in every array,
  // with less than kMoveUnit bytes of padding between two. INVALID_ARGUMENT of CheckEncodable() and CheckBands(), and
  // for a remainder without BF16 weights (with bands: weights apart from the plane); RESOURCE_EXHAUSTED.
  static absl::StatusOr<FusedStepPlan> Create(int device, absl::Span<const StepExtent> extents,
                                              std::vector<BandStart> bands = {});

  FusedStepPlan(FusedStepPlan&& other) noexcept;
  FusedStepPlan& operator=(FusedStepPlan&& other) noexcept;
  ~FusedStepPlan();

  // Enqueues one optimizer step on every extent whose entry in `steps` has a value; other extents keep every byte.
  // Encodes the extents that do not EncodesAfterAmax(), FP8_TENSOR_DELAYED with its scaling's `scale`. INVALID_ARGUMENT
  // for missing scalings, here and below.
  absl::Status Step(absl::Span<const std::optional<OptimizerStep>> steps, absl::Span<const TensorScaling> scalings,
                    cudaStream_t stream);

  // Sets the position of the state: `bytes` behind the extents' addresses in every array, a multiple of kMoveUnit.
  // Requires weights apart from the planes for masters with remainders.
  void SetPosition(int64_t bytes);

  // The same step band by band. It leaves the state `distance` bytes further on (a multiple of kMoveUnit). Call
  // BeginStep(); when the stream has reached it, call StepBand() once for each band in the order and the lanes of
  // state_bands.h, or for the bands that an interrupted step has left; then call SetPosition(). Extents that take no
  // step move along: one copy per array and band for neighbouring ones. Bands out of order or without BeginStep() are
  // our bug.
  absl::Status BeginStep(absl::Span<const std::optional<OptimizerStep>> steps, absl::Span<const TensorScaling> scalings,
                         int64_t distance, cudaStream_t stream);
  absl::Status StepBand(int band, cudaStream_t stream);
  int band_count() const;

  // Enqueues encoding the planes of every extent from its master. Weights that are planes stay.
  absl::Status Encode(absl::Span<const TensorScaling> scalings, cudaStream_t stream);

  // The same for extents that are active and EncodesAfterAmax().
  absl::Status EncodeAfterAmax(const std::vector<bool>& active, absl::Span<const TensorScaling> scalings,
                               cudaStream_t stream);

  // Enqueues finding the amax of the master of every extent that NeedsAmax().
  absl::Status MeasureAmaxes(cudaStream_t stream);

  // Returns the amaxes that the latest Step() or MeasureAmaxes() found, one per extent: 0 for extents that do not
  // NeedsAmax() or were not stepped. Waits for the stream (see AwaitStream).
  absl::StatusOr<std::vector<float>> Amaxes(cudaStream_t stream);

 private:
  class Impl;

  explicit FusedStepPlan(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace paramshard::gpu

#endif  // PARAMSHARD_KERNELS_OPTIM_FUSED_STEP_CUDA_H_
