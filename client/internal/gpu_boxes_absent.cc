// Implementation of gpu_boxes.h in a build without CUDA.
#include "client/internal/gpu_boxes.h"

namespace paramshard::internal {

namespace {

absl::Status Absent() { return absl::UnimplementedError("copies to a GPU: this client was built without CUDA"); }

}  // namespace

absl::Status CopyBoxesToGpu(int, absl::Span<const PlannedCopy>, GpuStream) { return Absent(); }
absl::Status AwaitGpuStream(int, GpuStream) { return Absent(); }

}  // namespace paramshard::internal
