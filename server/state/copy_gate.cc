#include "server/state/copy_gate.h"

#include <algorithm>

#include "kernels/base/check.h"

namespace paramshard::server {

CopyGate::CopyGate(int ranks, const Clock* clock) : clock_(clock), ranks_(ranks) {}

void CopyGate::BeginCommit() {
  absl::MutexLock lock(&mu_);
  committing_ = true;
}

void CopyGate::EndCommit() {
  absl::MutexLock lock(&mu_);
  committing_ = false;
}

void CopyGate::AwaitCopied(int rank, absl::Duration most) {
  absl::MutexLock lock(&mu_);
  Rank& own = ranks_[rank];
  if (own.is_copied) return;
  own.waiting_since = clock_->Now();
  const SteadyTime deadline = After(*own.waiting_since, most);
  while (!own.is_copied && clock_->Now() < deadline) {
    changed_.WaitUntil(&mu_, After(SteadyNow(), Until(deadline, clock_->Now())));
  }
  if (own.is_copied) return;
  given_up_ = true;
  EndLocked(own);
}

bool CopyGate::BeginCopy() {
  absl::MutexLock lock(&mu_);
  PARAMSHARD_CHECK(!IsCopyingLocked());
  if (committing_) return false;
  given_up_ = false;
  stall_ = absl::ZeroDuration();
  for (Rank& rank : ranks_) rank.is_copied = false;
  return true;
}

void CopyGate::EndLocked(Rank& rank) {
  rank.is_copied = true;
  changed_.SignalAll();
  if (!rank.waiting_since.has_value()) return;
  stall_ = std::max(stall_, absl::FromChrono(clock_->Now() - *rank.waiting_since));
  rank.waiting_since.reset();
}

void CopyGate::EndCopy(int rank) {
  absl::MutexLock lock(&mu_);
  EndLocked(ranks_[rank]);
}

void CopyGate::EndCopies() {
  absl::MutexLock lock(&mu_);
  for (Rank& rank : ranks_) EndLocked(rank);
}

bool CopyGate::IsCopyingLocked() const {
  return std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return !rank.is_copied; });
}

bool CopyGate::is_copying() const {
  absl::MutexLock lock(&mu_);
  return IsCopyingLocked();
}

bool CopyGate::AwaitEnd(SteadyTime deadline) const {
  absl::MutexLock lock(&mu_);
  while (IsCopyingLocked() && !changed_.WaitUntil(&mu_, deadline)) {
  }
  return !IsCopyingLocked();
}

bool CopyGate::is_awaited() const {
  absl::MutexLock lock(&mu_);
  return std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.waiting_since.has_value(); });
}

bool CopyGate::is_given_up() const {
  absl::MutexLock lock(&mu_);
  return given_up_;
}

absl::Duration CopyGate::stall() const {
  absl::MutexLock lock(&mu_);
  return stall_;
}

}  // namespace paramshard::server
