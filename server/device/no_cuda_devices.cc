// In place of cuda_devices.cc where the build has no CUDA.
#include "absl/strings/str_cat.h"
#include "server/device/cuda_devices.h"

namespace paramshard::server {

absl::StatusOr<std::vector<std::unique_ptr<ComputeDevice>>> OpenCudaDevices(absl::Span<const Device> devices) {
  return absl::UnimplementedError(absl::StrCat("device ", devices.front().Name(),
                                               ": this build was made without CUDA and serves cpu devices only"));
}

}  // namespace paramshard::server
