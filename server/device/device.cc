#include "server/device/device.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace paramshard::server {

std::string Device::Name() const { return absl::StrCat(kind == DeviceKind::kCpu ? "cpu:" : "cuda:", index); }

absl::StatusOr<Device> ParseDevice(absl::string_view name) {
  absl::string_view number = name;
  Device device;
  if (absl::ConsumePrefix(&number, "cuda:")) {
    device.kind = DeviceKind::kCuda;
  } else if (!absl::ConsumePrefix(&number, "cpu:")) {
    number = {};
  }
  if (!absl::SimpleAtoi(number, &device.index) || device.index < 0) {
    return absl::InvalidArgumentError(absl::StrCat("device: want cpu:I or cuda:I with I >= 0, got ", name));
  }
  return device;
}

}  // namespace paramshard::server
