#include "server/device/device.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace paramshard::server {

std::string Device::Name() const { return absl::StrCat("cpu:", index); }

absl::StatusOr<Device> ParseDevice(absl::string_view name) {
  absl::string_view number = name;
  if (absl::ConsumePrefix(&number, "cuda:")) {
    return absl::UnimplementedError(absl::StrCat("device ", name, ": this build serves cpu devices only"));
  }
  Device device;
  if (!absl::ConsumePrefix(&number, "cpu:") || !absl::SimpleAtoi(number, &device.index) || device.index < 0) {
    return absl::InvalidArgumentError(absl::StrCat("device: cpu:I with I >= 0 expected, got ", name));
  }
  return device;
}

}  // namespace paramshard::server
