// CUDA's errors as absl::Status.
#ifndef PARAMSHARD_KERNELS_GPU_STATUS_H_
#define PARAMSHARD_KERNELS_GPU_STATUS_H_

#include <cuda.h>
#include <cuda_runtime.h>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace paramshard::gpu {

// OK, or: RESOURCE_EXHAUSTED the device has no memory left; FAILED_PRECONDITION there is no driver, or one that is too
// old, or no such device; INTERNAL everything else. `operation` says what was tried. Clears an error that is not
// sticky; one that is breaks the device, the one that this thread's calls go to unless another is named: then and ever
// after FaultOf(device).
absl::Status ToStatus(cudaError_t error, absl::string_view operation);
absl::Status ToStatus(CUresult error, absl::string_view operation);
absl::Status ToStatus(cudaError_t error, absl::string_view operation, int device);

// Of the launch before it on this thread.
inline absl::Status LaunchStatus(absl::string_view kernel) { return ToStatus(cudaGetLastError(), kernel); }

}  // namespace paramshard::gpu

#endif  // PARAMSHARD_KERNELS_GPU_STATUS_H_
