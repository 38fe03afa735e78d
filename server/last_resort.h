// Ends a process whose orderly end takes too long.
#ifndef PARAMSHARD_SERVER_LAST_RESORT_H_
#define PARAMSHARD_SERVER_LAST_RESORT_H_

#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/base/steady_cond_var.h"

namespace paramshard::server {

// gRPC's servers wait without a bound for calls that have not ended, and where memory ran out gRPC may lose the end of
// one. An object that still lives after `patience` ends the process with `exit_code`, and says so in the log. Without a
// thread for it there is no such bound.
class LastResort {
 public:
  LastResort(absl::Duration patience, int exit_code);
  LastResort(const LastResort&) = delete;
  LastResort& operator=(const LastResort&) = delete;
  ~LastResort();

 private:
  void Await(absl::Duration patience, int exit_code);

  absl::Mutex mu_;
  SteadyCondVar changed_;
  bool has_ended_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_LAST_RESORT_H_
