// Gate at which steps wait for copies of the state that they are about to replace.
#ifndef PARAMSHARD_SERVER_STATE_COPY_GATE_H_
#define PARAMSHARD_SERVER_STATE_COPY_GATE_H_

#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/base/clock.h"
#include "server/base/steady_cond_var.h"

namespace paramshard::server {

// Masters, moments and the scaling book do not change from the answer of a commit until the next one is applied. A copy
// begins only in that time; from then on a rank's next step waits until the rank's copy is done, but not for ever, and
// no trainer is blamed for the wait. A copy that takes too long is given up, and its reader finds that out.
//
// Thread-safe. Ranks are the daemon's own, from 0. One copy at a time.
class CopyGate {
 public:
  // `clock` outlives the gate.
  CopyGate(int ranks, const Clock* clock);

  // Begins a commit of the epoch: until EndCommit the state and its numbers change, and no copy begins.
  void BeginCommit();
  // Waits before the rank steps until its copy is done, at most `most`, and then gives the copy up.
  void AwaitCopied(int rank, absl::Duration most);
  // Ends the commit, which is answered or never will be. Idempotent.
  void EndCommit();

  // Begins a copy of all ranks. Returns false while a commit is under way. Requires that no copy is open.
  bool BeginCopy();
  // Ends the rank's copy, done or failed; or the copies of all ranks.
  void EndCopy(int rank);
  void EndCopies();
  bool is_copying() const;
  // Waits until no copy is open, at most until the deadline. Returns true if none is.
  bool AwaitEnd(SteadyTime deadline) const;
  // Returns true if steps of all ranks wait for the present copy.
  bool is_awaited() const;
  // Returns true if a step has stopped waiting for the present copy.
  bool is_given_up() const;
  // Returns how long a step has waited for the last copy: the longest wait of all ranks.
  absl::Duration stall() const;

 private:
  struct Rank {
    bool is_copied = true;
    std::optional<SteadyTime> waiting_since = {};  // a step
  };
  void EndLocked(Rank& rank) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool IsCopyingLocked() const ABSL_SHARED_LOCKS_REQUIRED(mu_);

  const Clock* const clock_;
  mutable absl::Mutex mu_;
  mutable SteadyCondVar changed_;
  bool committing_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<Rank> ranks_ ABSL_GUARDED_BY(mu_);
  bool given_up_ ABSL_GUARDED_BY(mu_) = false;
  absl::Duration stall_ ABSL_GUARDED_BY(mu_);
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_STATE_COPY_GATE_H_
