// GPUs of a daemon. Internal to the folder: compute_device.h is the interface.
#ifndef PARAMSHARD_SERVER_DEVICE_CUDA_DEVICES_H_
#define PARAMSHARD_SERVER_DEVICE_CUDA_DEVICES_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/device/compute_device.h"

namespace paramshard::server {

// Opens `devices`, which are all of kind kCuda. See OpenDevices.
absl::StatusOr<std::vector<std::unique_ptr<ComputeDevice>>> OpenCudaDevices(absl::Span<const Device> devices);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_DEVICE_CUDA_DEVICES_H_
