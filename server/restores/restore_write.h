// The write of a daemon's rows in a restore of several daemons.
#ifndef PARAMSHARD_SERVER_RESTORES_RESTORE_WRITE_H_
#define PARAMSHARD_SERVER_RESTORES_RESTORE_WRITE_H_

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
#include "server/restores/restorer.h"

namespace paramshard::server {

// Ends soon when the restore is over elsewhere, or when its time is: nobody waits for rows that nobody will use.
//
// One thread runs it, once; Stop() is for any.
class RestoreWrite {
 public:
  struct Options {
    SteadyTime deadline = kNever;
    const Clock* clock = &Clock::Steady();      // outlives the write
    std::function<void()> before_rows = [] {};  // tests hold the write back
  };

  explicit RestoreWrite(Options options) : options_(std::move(options)) {}

  // Calls `look` a few times a second from a thread of its own, as long as that can be started, and once at the end.
  // Errors of Restorer::Write, but the reason where it was stopped; `late` when the deadline has passed.
  absl::Status Run(Restorer& restorer, absl::FunctionRef<void()> look, const absl::Status& late);
  // Behind the write: why it would have been stopped by now, or OK. `late` as above.
  absl::Status CheckGoesOn(const absl::Status& late);
  // Why nobody will use the rows; the first reason holds. Before the write, too.
  void Stop(const absl::Status& why);

 private:
  void Watch(absl::FunctionRef<void()> look, const absl::Status& late);
  void StopIfLate(const absl::Status& late);

  const Options options_;

  absl::Mutex mu_;
  SteadyCondVar changed_;
  Restorer* writing_ ABSL_GUARDED_BY(mu_) = nullptr;  // null while nobody writes
  std::optional<absl::Status> why_ ABSL_GUARDED_BY(mu_);
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_RESTORES_RESTORE_WRITE_H_
