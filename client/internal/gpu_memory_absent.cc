// Implementation of gpu_memory.h in a build without CUDA.
#include "client/internal/gpu_memory.h"

namespace paramshard::internal {
namespace {

absl::Status Absent() {
  return absl::UnimplementedError("the daemon's memory is on a GPU; this client was built without CUDA");
}

}  // namespace

absl::StatusOr<std::unique_ptr<TensorMemory>> MapGpuTensors(absl::string_view, const TensorMemoryParts&) {
  return Absent();
}

absl::StatusOr<PlaneMemory> MapGpuPlanes(absl::string_view, const wire::FileDescriptor&, int64_t) { return Absent(); }

absl::Status CopyFromGpu(int, absl::Span<const uint8_t>, uint8_t*) { return Absent(); }
absl::Status CopyToGpu(int, absl::Span<const uint8_t>, uint8_t*) { return Absent(); }

}  // namespace paramshard::internal
