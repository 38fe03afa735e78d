#include "kernels/gpu/status.h"

#include "absl/strings/str_cat.h"
#include "kernels/gpu/faults.h"

namespace paramshard::gpu {
namespace {

// The runtime and the driver number these errors alike.
absl::StatusCode CodeOf(int error) {
  switch (error) {
    case cudaErrorMemoryAllocation:
      return absl::StatusCode::kResourceExhausted;
    case cudaErrorInsufficientDriver:
    case cudaErrorNoDevice:
    case cudaErrorInvalidDevice:
    case cudaErrorDevicesUnavailable:
    case cudaErrorCompatNotSupportedOnDevice:
    case cudaErrorSystemDriverMismatch:
      return absl::StatusCode::kFailedPrecondition;
    default:
      return absl::StatusCode::kInternal;
  }
}

static_assert(static_cast<int>(cudaErrorMemoryAllocation) == static_cast<int>(CUDA_ERROR_OUT_OF_MEMORY));
static_assert(static_cast<int>(cudaErrorNoDevice) == static_cast<int>(CUDA_ERROR_NO_DEVICE));
static_assert(static_cast<int>(cudaErrorInvalidDevice) == static_cast<int>(CUDA_ERROR_INVALID_DEVICE));

}  // namespace

absl::Status ToStatus(cudaError_t error, absl::string_view operation) {
  if (error == cudaSuccess) return absl::OkStatus();
  int device = 0;
  cudaGetDevice(&device);
  return ToStatus(error, operation, device);
}

absl::Status ToStatus(cudaError_t error, absl::string_view operation, int device) {
  if (error == cudaSuccess) return absl::OkStatus();
  cudaGetLastError();
  const std::string what = absl::StrCat(operation, ": ", cudaGetErrorString(error), " (", cudaGetErrorName(error), ")");
  return IsFault(error) ? ReportFault(device, what) : absl::Status(CodeOf(error), what);
}

absl::Status ToStatus(CUresult error, absl::string_view operation) {
  if (error == CUDA_SUCCESS) return absl::OkStatus();
  return ToStatus(static_cast<cudaError_t>(error), operation);
}

}  // namespace paramshard::gpu
