// CUDA operations of the client library. A build without CUDA links UNIMPLEMENTED ones.
#ifndef PARAMSHARD_CLIENT_INTERNAL_GPU_MEMORY_H_
#define PARAMSHARD_CLIENT_INTERNAL_GPU_MEMORY_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "client/internal/tensor_memory.h"

namespace paramshard::internal {

// See MapTensors. Registers the words with CUDA too.
absl::StatusOr<std::unique_ptr<TensorMemory>> MapGpuTensors(absl::string_view gpu_uuid, const TensorMemoryParts& parts);

// See MapPlanes.
absl::StatusOr<PlaneMemory> MapGpuPlanes(absl::string_view gpu_uuid, const wire::FileDescriptor& fd,
                                         int64_t size_bytes);

// Copies between memory of this process's GPU `gpu` and the host. Done on return. They wait for no other stream.
// DEADLINE_EXCEEDED after kStreamWorkTimeout: a copy to the GPU may then still be running, a copy to the host is not.
absl::Status CopyFromGpu(int gpu, absl::Span<const uint8_t> source, uint8_t* target);
absl::Status CopyToGpu(int gpu, absl::Span<const uint8_t> source, uint8_t* target);

}  // namespace paramshard::internal

#endif  // PARAMSHARD_CLIENT_INTERNAL_GPU_MEMORY_H_
