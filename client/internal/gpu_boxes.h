// Copies of boxes to memory of a GPU. A build without CUDA links functions that are UNIMPLEMENTED.
#ifndef PARAMSHARD_CLIENT_INTERNAL_GPU_BOXES_H_
#define PARAMSHARD_CLIENT_INTERNAL_GPU_BOXES_H_

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "client/internal/bound_plan.h"
#include "client/internal/tensor_memory.h"

namespace paramshard::internal {

// Copies boxes, from memory of any GPU or the host, to memory of this process's GPU `gpu`: decoded by one launch for up
// to 16 that are alike, bytes by one for all that are contiguous. It begins when the work so far of `after` is done
// (null: of the GPU's default stream), and is done on return. DEADLINE_EXCEEDED after kStreamWorkTimeout: it may then
// still be running.
absl::Status CopyBoxesToGpu(int gpu, absl::Span<const PlannedCopy> copies, GpuStream after);

// Waits for the work so far of a stream. Errors as above.
absl::Status AwaitGpuStream(int gpu, GpuStream stream);

}  // namespace paramshard::internal

#endif  // PARAMSHARD_CLIENT_INTERNAL_GPU_BOXES_H_
