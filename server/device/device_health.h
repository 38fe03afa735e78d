// Health of a device.
#ifndef PARAMSHARD_SERVER_DEVICE_DEVICE_HEALTH_H_
#define PARAMSHARD_SERVER_DEVICE_DEVICE_HEALTH_H_

#include <functional>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace paramshard::server {

// A broken device stays broken: its content is lost, and only a new daemon can use it again. Thread-safe.
class DeviceHealth {
 public:
  // Returns OK until the device is broken; then the error that broke it.
  absl::Status status() const;

  // Marks the device as broken. The first error stays.
  void Break(const absl::Status& why);

  // Calls `listener` once with the error that broke the device: at once, or on the thread that finds it. Null removes
  // the listener, and waits for a call in progress. The listener must not call back, nor use the device.
  void SetListener(std::function<void(const absl::Status& why)> listener);

 private:
  mutable absl::Mutex mu_;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
  std::function<void(const absl::Status&)> listener_ ABSL_GUARDED_BY(mu_);
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_DEVICE_DEVICE_HEALTH_H_
