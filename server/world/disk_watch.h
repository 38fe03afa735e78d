// Warning about a disk that does not answer: its callers are blocked and cannot log it themselves.
#ifndef PARAMSHARD_SERVER_WORLD_DISK_WATCH_H_
#define PARAMSHARD_SERVER_WORLD_DISK_WATCH_H_

#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/base/steady_cond_var.h"
#include "server/base/steady_time.h"

namespace paramshard::server {

// Logs a warning when a call has lasted longer than the timeout, and again after each such time. Thread-safe.
class DiskWatch {
 public:
  // `what` names the folder and what waits for it. RESOURCE_EXHAUSTED no thread.
  static absl::StatusOr<std::unique_ptr<DiskWatch>> Start(std::string what, absl::Duration timeout = absl::Seconds(5));
  ~DiskWatch();

  // Scope of a call. At most one at a time.
  class Call {
   public:
    explicit Call(DiskWatch* watch) : watch_(*watch) { watch_.SetBegin(SteadyNow()); }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;
    ~Call() { watch_.SetBegin(std::nullopt); }

   private:
    DiskWatch& watch_;
  };

 private:
  DiskWatch(std::string what, absl::Duration timeout) : what_(std::move(what)), timeout_(timeout) {}
  void SetBegin(std::optional<SteadyTime> begin) {
    absl::MutexLock lock(&mu_);
    begin_ = begin;
  }
  void Run();

  const std::string what_;
  const absl::Duration timeout_;

  absl::Mutex mu_;
  SteadyCondVar changed_;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  std::optional<SteadyTime> begin_ ABSL_GUARDED_BY(mu_);  // of the call in progress
  std::thread thread_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_WORLD_DISK_WATCH_H_
