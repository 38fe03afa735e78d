// Words in registered host memory, written and awaited by a stream without a kernel.
#ifndef PARAMSHARD_KERNELS_GPU_WORD_OPERATIONS_H_
#define PARAMSHARD_KERNELS_GPU_WORD_OPERATIONS_H_

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <vector>

#include "absl/status/status.h"

namespace paramshard::gpu {

// A list of writes and waits that a stream carries out in order. Reusable; not thread-safe.
//
// Words are addresses of the host, registered (HostRegistration) or allocated pinned. A write is seen after everything
// that the stream did before it, by the host and by every device. A wait ends when the word has reached the value:
// cyclically, as wire::Reached compares.
class WordOperations {
 public:
  void Write(void* word, uint32_t value);
  // A word of 8 bytes, in one store. Not every device has it (CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS).
  void Write64(void* word, uint64_t value);
  void Await(void* word, uint32_t value);
  void Clear() { operations_.clear(); }

  // Enqueues them and forgets them.
  absl::Status Enqueue(cudaStream_t stream);

 private:
  std::vector<CUstreamBatchMemOpParams> operations_;
};

}  // namespace paramshard::gpu

#endif  // PARAMSHARD_KERNELS_GPU_WORD_OPERATIONS_H_
