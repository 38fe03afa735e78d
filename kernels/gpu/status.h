// CUDA's errors as absl::Status.
#ifndef PARAMSHARD_KERNELS_GPU_STATUS_H_
#define PARAMSHARD_KERNELS_GPU_STATUS_H_

#include <cuda.h>
#include <cuda_runtime.h>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace paramshard::gpu {

// Converts an error of CUDA: RESOURCE_EXHAUSTED if the device is out of memory; FAILED_PRECONDITION if there is no
// driver, it is too old, or there is no such device; INTERNAL otherwise. `operation` names the call. Clears an error
// that is not sticky. A sticky error breaks `device` (default: this thread's current device): returns FaultOf(device),
// now and ever after.
absl::Status ToStatus(cudaError_t error, absl::string_view operation);
absl::Status ToStatus(CUresult error, absl::string_view operation);
absl::Status ToStatus(cudaError_t error, absl::string_view operation, int device);

// Returns the status of this thread's latest kernel launch.
inline absl::Status LaunchStatus(absl::string_view kernel) { return ToStatus(cudaGetLastError(), kernel); }

}  // namespace paramshard::gpu

#endif  // PARAMSHARD_KERNELS_GPU_STATUS_H_
