// Where steps meet copies of the state that they are about to replace.
#ifndef PARAMSHARD_SERVER_STORE_COPY_GATE_H_
#define PARAMSHARD_SERVER_STORE_COPY_GATE_H_

#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/base/clock.h"
#include "server/base/steady_cond_var.h"

namespace paramshard::server {

// Masters, moments and the scaling book stay as they are from the answer of a commit until the next one is applied. A
// copy begins in that time alone, and from then on a rank's next step waits until the rank's copy is through: but not
// for ever, and nobody is blamed for it. A copy that takes too long is given up, and its reader finds that out.
//
// Thread-safe. Ranks are the daemon's own, from 0. One copy at a time.
class CopyGate {
 public:
  // `clock` outlives the gate.
  CopyGate(int ranks, const Clock* clock);

  // For the epoch. From here to EndCommit the state and its numbers change, and no copy begins.
  void BeginCommit();
  // Before the rank steps: waits while it is copied, `most` at most, and then gives the copy up.
  void AwaitCopied(int rank, absl::Duration most);
  // The commit is answered, or never will be. Idempotent.
  void EndCommit();

  // Begins a copy of all ranks. False while a commit is under way. Requires that none is open.
  bool BeginCopy();
  // The rank's copy is through, whatever has become of it; or those of all ranks.
  void EndCopy(int rank);
  void EndCopies();
  bool is_copying() const;
  // Whether steps of all ranks wait for the present copy.
  bool is_awaited() const;
  // Whether a step did not wait for the present copy any longer.
  bool is_given_up() const;
  // How long a step has waited for the last copy: the longest of all ranks.
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
  SteadyCondVar changed_;
  bool committing_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<Rank> ranks_ ABSL_GUARDED_BY(mu_);
  bool given_up_ ABSL_GUARDED_BY(mu_) = false;
  absl::Duration stall_ ABSL_GUARDED_BY(mu_);
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_STORE_COPY_GATE_H_
