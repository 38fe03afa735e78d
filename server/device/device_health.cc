#include "server/device/device_health.h"

#include <utility>

namespace paramshard::server {

absl::Status DeviceHealth::status() const {
  absl::ReaderMutexLock lock(&mu_);
  return status_;
}

void DeviceHealth::Break(const absl::Status& why) {
  absl::MutexLock lock(&mu_);
  if (!status_.ok()) return;
  status_ = why;
  if (listener_) listener_(why);
}

void DeviceHealth::SetListener(std::function<void(const absl::Status& why)> listener) {
  absl::MutexLock lock(&mu_);
  listener_ = std::move(listener);
  if (listener_ && !status_.ok()) listener_(status_);
}

}  // namespace paramshard::server
