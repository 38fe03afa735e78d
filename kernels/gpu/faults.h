// GPUs that are broken for this process: after an illegal address, an ECC error or the loss of the device, CUDA answers
// every later call of the process on it with an error.
#ifndef PARAMSHARD_KERNELS_GPU_FAULTS_H_
#define PARAMSHARD_KERNELS_GPU_FAULTS_H_

#include <cuda_runtime.h>

#include <functional>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace paramshard::gpu {

// Returns true if CUDA answers every later call of the process with an error after this one.
bool IsFault(cudaError_t error);

// OK until the device is broken; then INTERNAL, which names the device, what broke it, and the process to restart.
// Thread-safe, like all of this file.
absl::Status FaultOf(int device);

// Marks the device as broken and returns FaultOf(device). The first report stays. ToStatus() calls it for errors that
// stay; waits call it when they time out.
absl::Status ReportFault(int device, absl::string_view what);

// Calls `on_fault` with FaultOf(device) when the device breaks, on the thread that finds it; at once if it is already
// broken. The destructor waits for a call in progress.
class FaultWatch {
 public:
  FaultWatch(int device, std::function<void(const absl::Status&)> on_fault);
  FaultWatch(const FaultWatch&) = delete;
  FaultWatch& operator=(const FaultWatch&) = delete;
  ~FaultWatch();

 private:
  friend absl::Status ReportFault(int device, absl::string_view what);

  const int device_;
  const std::function<void(const absl::Status&)> on_fault_;
};

}  // namespace paramshard::gpu

#endif  // PARAMSHARD_KERNELS_GPU_FAULTS_H_
