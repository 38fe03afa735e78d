// Timeout of a process's shutdown.
#ifndef PARAMSHARD_SERVER_PROCESS_EXIT_WATCHDOG_H_
#define PARAMSHARD_SERVER_PROCESS_EXIT_WATCHDOG_H_

#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/base/steady_cond_var.h"

namespace paramshard::server {

// gRPC's servers wait without a timeout for calls that have not ended, and after running out of memory gRPC may lose
// the end of a call. If the object still exists after `timeout`, it logs an error and ends the process with
// `exit_code`. If its thread fails to start, there is no timeout.
class ExitWatchdog {
 public:
  ExitWatchdog(absl::Duration timeout, int exit_code);
  ExitWatchdog(const ExitWatchdog&) = delete;
  ExitWatchdog& operator=(const ExitWatchdog&) = delete;
  ~ExitWatchdog();

 private:
  void Await(absl::Duration timeout, int exit_code);

  absl::Mutex mu_;
  SteadyCondVar changed_;
  bool has_ended_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_PROCESS_EXIT_WATCHDOG_H_
