#include "server/models/creation_turns.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/model/model_spec_difference.h"
#include "common/model/names.h"
#include "server/base/steady_time.h"

namespace paramshard::server {
namespace {

// Interval at which a waiting call looks whether its caller is still there.
constexpr absl::Duration kLookAfter = absl::Milliseconds(200);

}  // namespace

absl::StatusOr<CreationTurns::Turn> CreationTurns::Take(const ModelSpec& spec, IsGone is_gone) {
  const uint64_t fingerprint = ModelSpecFingerprint(spec);
  absl::MutexLock lock(&mu_);
  const auto waiting = waiting_.try_emplace(fingerprint, 0).first;
  ++waiting->second;
  bool gone = is_gone();
  while (!gone && IsHeldUp(spec.name)) {
    changed_.WaitUntil(&mu_, SteadyDeadline(kLookAfter));
    gone = is_gone();
  }
  if (--waiting->second == 0) waiting_.erase(waiting);
  if (gone) {
    return absl::AbortedError(absl::StrCat("create model ", DisplayName(spec.name), ": the caller disconnected"));
  }
  creating_ = {.name = spec.name, .fingerprint = fingerprint};
  return Turn(this, std::nullopt);
}

bool CreationTurns::IsAwaited() const {
  absl::MutexLock lock(&mu_);
  return creating_.has_value() && waiting_.contains(creating_->fingerprint);
}

absl::StatusOr<CreationTurns::Turn> CreationTurns::TakeToFree(const std::string& name) {
  absl::MutexLock lock(&mu_);
  while (freed_.contains(name)) changed_.Wait(&mu_);
  // It may wait for other daemons, for as long as a restore may take.
  if (creating_.has_value() && creating_->name == name) {
    return absl::UnavailableError(
        absl::StrCat("delete model ", DisplayName(name), ": it is being created anew; try again when that is through"));
  }
  freed_.insert(name);
  return Turn(this, name);
}

void CreationTurns::GiveBack(const std::optional<std::string>& freed) {
  absl::MutexLock lock(&mu_);
  if (freed.has_value()) {
    freed_.erase(*freed);
  } else {
    creating_.reset();
  }
  changed_.SignalAll();
}

}  // namespace paramshard::server
