// Names of devices.
#ifndef PARAMSHARD_SERVER_DEVICE_DEVICE_H_
#define PARAMSHARD_SERVER_DEVICE_DEVICE_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace paramshard::server {

enum class DeviceKind : uint8_t { kCpu, kCuda };

// `cpu:I`, a shard in host memory, or `cuda:I`, a shard on the I-th GPU that the process sees. Each device of a daemon
// is one rank.
struct Device {
  DeviceKind kind = DeviceKind::kCpu;
  int index = 0;

  bool operator==(const Device&) const = default;
  std::string Name() const;
};

// Parses a name. INVALID_ARGUMENT for any other text.
absl::StatusOr<Device> ParseDevice(absl::string_view name);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_DEVICE_DEVICE_H_
