// Implementation of gpu_boxes.h in a build without CUDA.
#include "client/internal/gpu_boxes.h"

namespace paramshard::internal {

absl::Status CopyBoxesToGpu(int, absl::Span<const PlannedCopy>, GpuStream) {
  return absl::UnimplementedError("copies to a GPU: this client was built without CUDA");
}

}  // namespace paramshard::internal
