// Words by which a stream says how far it is (step_progress.h).

#ifndef PARAMSHARD_KERNELS_OPTIM_BAND_MARKS_CUDA_H_
#define PARAMSHARD_KERNELS_OPTIM_BAND_MARKS_CUDA_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace paramshard::gpu {

// Writes words of 8 bytes, each in one store, in the order of a stream. Copyable; not thread-safe.
//
// Words are addresses of the host, registered (HostRegistration) or allocated pinned, and aligned. A word is written
// when all that the stream did before is in memory, and before anything that it does afterwards. It may be on its way
// to the host's memory then: it arrives without the stream and without its process, and before what a host reads of the
// device's memory later.
class BandMarks {
 public:
  // How a device writes them: operations of the stream take no time of a multiprocessor, and not every device has those
  // of 8 bytes.
  enum class Means : uint8_t { kStreamOperations, kKernels };

  // With what the device has.
  static absl::StatusOr<BandMarks> Create(int device);
  explicit BandMarks(Means means) : means_(means) {}

  // Enqueues writing `word`; nothing if it is null.
  absl::Status Write(uint64_t* word, uint64_t value, cudaStream_t stream) const;

 private:
  Means means_;
};

}  // namespace paramshard::gpu

#endif  // PARAMSHARD_KERNELS_OPTIM_BAND_MARKS_CUDA_H_
