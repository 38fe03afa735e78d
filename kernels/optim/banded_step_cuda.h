// The order in which a GPU carries out the bands of a step (state_bands.h), and how far it is.

#ifndef PARAMSHARD_KERNELS_OPTIM_BANDED_STEP_CUDA_H_
#define PARAMSHARD_KERNELS_OPTIM_BANDED_STEP_CUDA_H_

#include <cuda_runtime.h>

#include <array>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/gpu/stream.h"
#include "kernels/optim/adam_cuda.h"
#include "kernels/optim/state_bands.h"

namespace paramshard::gpu {

// What a step writes down for whoever goes on after it was cut off. A lane's word is `begin` + n when n of its bands
// are done, and their bytes are in memory before the word is.
struct BandMarks {
  struct Lane {
    uint32_t* word = nullptr;  // in registered host memory (word_operations.h); null: nothing is written
    uint32_t begin = 0;
  };
  std::array<Lane, kBandLanes> lanes = {};
};

// The second stream that bands need. Move-only. Not thread-safe.
class BandedStep {
 public:
  static absl::StatusOr<BandedStep> Create(int device);

  // Enqueues the bands of the step that `plan` has begun on the same stream, less the first `done` of each lane.
  // `forward`: the step's distance is above 0. What is enqueued on `stream` afterwards waits for all bands, those too
  // that were enqueued before an error.
  absl::Status Run(FusedAdamPlan& plan, bool forward, const std::array<int, kBandLanes>& done, const BandMarks& marks,
                   cudaStream_t stream);

 private:
  explicit BandedStep(int device) : device_(device) {}
  absl::Status RunBands(FusedAdamPlan& plan, bool forward, const std::array<int, kBandLanes>& done,
                        const BandMarks& marks, cudaStream_t stream);
  absl::Status Join(cudaStream_t stream);
  absl::Status RunBand(FusedAdamPlan& plan, int band, const BandMarks::Lane& lane, uint32_t done, cudaStream_t stream);
  // The end of the band that is the n-th in order.
  Event& EndOf(int n) { return ends_[n % ends_.size()]; }

  int device_;
  Stream other_;
  // A band waits for the end of that three before it, which is in the other lane.
  std::vector<Event> ends_;
};

}  // namespace paramshard::gpu

#endif  // PARAMSHARD_KERNELS_OPTIM_BANDED_STEP_CUDA_H_
