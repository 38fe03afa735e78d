// The order in which a GPU carries out the bands of a step (state_bands.h), and how far it is.

#ifndef PARAMSHARD_KERNELS_OPTIM_BANDED_STEP_CUDA_H_
#define PARAMSHARD_KERNELS_OPTIM_BANDED_STEP_CUDA_H_

#include <cuda_runtime.h>

#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/gpu/stream.h"
#include "kernels/optim/band_marks_cuda.h"
#include "kernels/optim/fused_step_cuda.h"
#include "kernels/optim/step_progress.h"

namespace paramshard::gpu {

// The second stream that bands need. Move-only. Not thread-safe.
class BandedStep {
 public:
  static absl::StatusOr<BandedStep> Create(int device);

  // Enqueues the bands of the step that `plan` has begun on the same stream, except for bands that `progress` says are
  // done, and the marks around each that `progress` asks for. `forward`: the step's distance is above 0. Work enqueued
  // on `stream` afterwards waits for all bands, even for bands enqueued before an error.
  //
  // All bands are enqueued at once. When the process is killed, the GPU continues for some 40 ms and then stops inside
  // of any two bands. The queue needs no bound: the input of these two bands is intact, and the streams themselves have
  // marked the bands that were done. The process that finishes the step has to wait until the GPU has stopped.
  //
  // `before_band(n)` enqueues on the same stream what the n-th band needs before it is stepped. With it, all bands go
  // through this stream.
  absl::Status Run(FusedStepPlan& plan, bool forward, const StepProgress& progress, cudaStream_t stream,
                   const std::function<absl::Status(int)>& before_band = nullptr);

 private:
  BandedStep(int device, const BandMarks& marks) : device_(device), marks_(marks) {}
  absl::Status RunBands(FusedStepPlan& plan, bool forward, const StepProgress& progress, cudaStream_t stream,
                        const std::function<absl::Status(int)>& before_band);
  absl::Status Join(cudaStream_t stream);
  // The end of the band that is the n-th in order.
  Event& EndOf(int n) { return ends_[n % ends_.size()]; }

  int device_;
  BandMarks marks_;
  Stream other_;
  // A band waits for the end of that three before it, which is in the other lane.
  std::vector<Event> ends_;
};

}  // namespace paramshard::gpu

#endif  // PARAMSHARD_KERNELS_OPTIM_BANDED_STEP_CUDA_H_
