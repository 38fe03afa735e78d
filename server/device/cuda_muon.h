// Muon's steps of a shard on a GPU, for the device's arithmetic.
#ifndef PARAMSHARD_SERVER_DEVICE_CUDA_MUON_H_
#define PARAMSHARD_SERVER_DEVICE_CUDA_MUON_H_

#include <cuda_runtime.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/gpu/memory.h"
#include "kernels/optim/muon_kernels.h"
#include "kernels/optim/muon_memory.h"
#include "kernels/optim/orthogonalizer.h"
#include "kernels/optim/state_bands.h"
#include "kernels/optim/step_progress.h"
#include "server/device/compute_device.h"

namespace paramshard::server {

// Makes the orthogonalized updates, which are the gradients of the masters' fused step, and steps the momentum: band by
// band, each before the fused step of the band on the same stream. The updates of a group of neighbouring extents are
// made together, so that their products fill the GPU; groups that have no band in common share the memory of their
// updates. Not thread-safe.
class CudaMuon {
 public:
  // Takes all memory that its steps need. Null if Muon steps no extent. `tensors` outlive it, `stream` too. UNIMPLEMENTED
  // for moments that are neither FP32 nor BF16; FAILED_PRECONDITION where cuBLASLt multiplies
  // and is not found; RESOURCE_EXHAUSTED.
  static absl::StatusOr<std::unique_ptr<CudaMuon>> Create(int device, cudaStream_t stream,
                                                          absl::Span<const ExtentTensors> tensors,
                                                          absl::Span<const BandStart> bands);

  // Returns the size_bytes() that Create() leads to.
  static int64_t BytesFor(int device, absl::Span<const MuonExtent> extents, absl::Span<const BandStart> bands);
  int64_t size_bytes() const { return memory_.size_bytes() + orthogonalizer_->scratch_bytes(); }

  // Returns an extent as the fused step sees it: without momentum, with its update as the gradient. Others stay.
  ExtentTensors ForFusedStep(const ExtentTensors& extent, size_t index) const;

  // Begins a step whose state lies `position` bytes behind the tensors' addresses, and moves by `distance`.
  void BeginStep(absl::Span<const std::optional<OptimizerStep>> steps, int64_t position, int64_t distance,
                 const StepProgress& progress);
  // Enqueues what the n-th band of the step needs; without bands, the first is all extents.
  absl::Status EnqueueBand(int n);

  // See ShardArithmetic::products().
  std::string products() const { return orthogonalizer_->description(); }

 private:
  // Neighbours among the extents that Muon steps.
  using Group = std::vector<size_t>;

  CudaMuon(cudaStream_t stream, absl::Span<const ExtentTensors> tensors, absl::Span<const BandStart> bands)
      : stream_(stream),
        tensors_(tensors),
        bands_(bands.begin(), bands.end()),
        plan_(GpuMuonMemory(MuonExtentsOf(tensors), bands)) {}

  const std::vector<Group>& groups() const { return plan_.updates.groups; }
  bool HasRows(const Group& group, int band) const;
  int band_count() const { return static_cast<int>(bands_.size()); }
  ExtentRows RowsIn(int band, size_t extent) const;
  uint16_t* UpdateOf(size_t extent) const;
  MutableMoment MomentumAt(size_t extent, int64_t row, int64_t position) const;
  // Adds the step of the extent's momentum in the n-th band in order; with `makes_updates`, all of its update too.
  void AddParts(size_t extent, int n, bool makes_updates, std::vector<gpu::MuonElements>& parts) const;
  absl::Status Orthogonalize(const Group& group) const;
  absl::Status CopyMomentum(size_t extent, const ExtentRows& rows) const;

  // Constant after Create().
  const cudaStream_t stream_;
  const absl::Span<const ExtentTensors> tensors_;
  const std::vector<BandStart> bands_;
  const MuonMemory plan_;
  gpu::DeviceMemory memory_;
  std::unique_ptr<Orthogonalizer> orthogonalizer_;

  // The step in progress.
  std::vector<std::optional<OptimizerStep>> steps_;
  std::vector<bool> has_updates_;  // by group
  int64_t position_ = 0;
  int64_t distance_ = 0;
  StepProgress progress_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_DEVICE_CUDA_MUON_H_
