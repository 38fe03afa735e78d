// Write of a daemon's rows in a restore of several daemons.
#ifndef PARAMSHARD_SERVER_CHECKPOINTS_RESTORE_WRITE_H_
#define PARAMSHARD_SERVER_CHECKPOINTS_RESTORE_WRITE_H_

#include <functional>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "server/base/clock.h"
#include "server/base/steady_cond_var.h"
#include "server/base/steady_time.h"
#include "server/checkpoints/restorer.h"

namespace paramshard::server {

// Ends soon after the restore is over elsewhere, or after its deadline: rows that will not be used are not waited for.
//
// One thread runs it, once; any thread may call Stop().
class RestoreWrite {
 public:
  struct Options {
    SteadyTime deadline = kNever;
    const Clock* clock = &Clock::Steady();      // outlives the write
    std::function<void()> before_rows = [] {};  // tests hold the write back
  };

  explicit RestoreWrite(Options options) : options_(std::move(options)) {}

  // Writes. Calls `look` a few times a second from a thread of its own, if it can be started, and once at the end.
  // Errors of Restorer::Write; the reason of Stop if it was stopped; `late` if the deadline has passed.
  absl::Status Run(Restorer& restorer, absl::FunctionRef<void()> look, const absl::Status& late);
  // Returns, after the write, the reason why it would have been stopped by now, or OK. `late` as above.
  absl::Status CheckGoesOn(const absl::Status& late);
  // Stops the write because the rows will not be used; the first reason holds. May be called before the write.
  void Stop(const absl::Status& why);

 private:
  void Watch(absl::FunctionRef<void()> look, const absl::Status& late);
  void StopIfLate(const absl::Status& late);

  const Options options_;

  absl::Mutex mu_;
  SteadyCondVar changed_;
  Restorer* writing_ ABSL_GUARDED_BY(mu_) = nullptr;  // null while no write runs
  std::optional<absl::Status> why_ ABSL_GUARDED_BY(mu_);
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_CHECKPOINTS_RESTORE_WRITE_H_
