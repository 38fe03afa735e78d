// The thread whose beats tell SteadyNow that the process runs.
#ifndef PARAMSHARD_SERVER_BASE_HEARTBEAT_H_
#define PARAMSHARD_SERVER_BASE_HEARTBEAT_H_

#include <functional>
#include <memory>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/base/steady_cond_var.h"

namespace paramshard::server {

// From the first beat on, SteadyNow leaves out the time that the process stood still, for the life of the process. One
// object exists as long as deadlines matter.
class Heartbeat {
 public:
  // Calls `on_stall` after each stall, with its length. RESOURCE_EXHAUSTED no thread.
  static absl::StatusOr<std::unique_ptr<Heartbeat>> Start(std::function<void(absl::Duration)> on_stall);
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;
  ~Heartbeat();

 private:
  explicit Heartbeat(std::function<void(absl::Duration)> on_stall) : on_stall_(std::move(on_stall)) {}
  void Run();

  const std::function<void(absl::Duration)> on_stall_;

  absl::Mutex mu_;
  SteadyCondVar changed_;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_BASE_HEARTBEAT_H_
