// Words that record a stream's progress (step_progress.h).

#ifndef PARAMSHARD_KERNELS_OPTIM_BAND_MARKS_CUDA_H_
#define PARAMSHARD_KERNELS_OPTIM_BAND_MARKS_CUDA_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace paramshard::gpu {

// Writes words of 8 bytes, each in one store, in the order of a stream. Copyable; not thread-safe.
//
// Words are aligned addresses of the host, registered (HostRegistration) or allocated pinned. A word is written after
// all earlier work of the stream is in memory, and before any later work. It may still be in flight to the host then:
// it arrives even if the stream and its process end, and before anything that a host reads of the device's memory
// later.
class BandMarks {
 public:
  // Ways to write words: operations of the stream take no time of a multiprocessor, but not every device has operations
  // of 8 bytes.
  enum class Means : uint8_t { kStreamOperations, kKernels };

  // Chooses the best way that the device supports.
  static absl::StatusOr<BandMarks> Create(int device);
  explicit BandMarks(Means means) : means_(means) {}

  // Enqueues writing `word`; nothing if it is null.
  absl::Status Write(uint64_t* word, uint64_t value, cudaStream_t stream) const;

 private:
  Means means_;
};

}  // namespace paramshard::gpu

#endif  // PARAMSHARD_KERNELS_OPTIM_BAND_MARKS_CUDA_H_
