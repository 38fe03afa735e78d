#include "server/checkpoints/save_agreement.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/status_macros.h"
#include "server/checkpoints/node_error.h"

namespace paramshard::server {

absl::Status SaveAgreement::CheckContinue() const {
  if (failed_) {
    absl::MutexLock lock(&mu_);
    return failure_;
  }
  return options_.clock->Now() < options_.deadline ? absl::OkStatus() : LateError("");
}

absl::Status SaveAgreement::LateError(absl::string_view what) const {
  if (options_.role == Role::kFollower) {
    return absl::DeadlineExceededError(
        absl::StrCat("save ", options_.model, ": timed out: node 0's deadline has passed"));
  }
  return absl::DeadlineExceededError(
      absl::StrCat("save ", options_.model, ": timed out after ", absl::FormatDuration(options_.timeout), what));
}

absl::Status SaveAgreement::Await(absl::FunctionRef<bool()> is_there) {
  while (true) {
    RETURN_IF_ERROR(CheckContinue());
    absl::MutexLock lock(&mu_);
    if (!failure_.ok()) continue;
    if (is_there()) return absl::OkStatus();
    changed_.WaitUntil(&mu_, After(SteadyNow(), Until(options_.deadline, options_.clock->Now())));
  }
}

absl::Status SaveAgreement::AgreeToWrite() {
  switch (options_.role) {
    case Role::kAlone:
      break;
    case Role::kLeader:
      return options_.cluster->Send(SaveMessage{.model = options_.model, .what = SavePermission{.id = id()}});
    case Role::kFollower:
      return Await([this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return is_permitted_; });
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<PartReport>> SaveAgreement::AwaitParts() {
  const int nodes = options_.role == Role::kAlone ? 1 : options_.cluster->nodes();
  const absl::Status there =
      Await([this, nodes]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return static_cast<int>(parts_.size()) == nodes - 1; });
  absl::MutexLock lock(&mu_);
  if (absl::IsDeadlineExceeded(there) && failure_.ok()) {
    std::vector<int> late;
    for (int node = 1; node < nodes; ++node) {
      if (!parts_.contains(node)) late.push_back(node);
    }
    if (!late.empty()) return LateError(absl::StrCat(": no part from node ", absl::StrJoin(late, ", node ")));
  }
  RETURN_IF_ERROR(there);
  std::vector<PartReport> reports;
  for (const auto& [node, part] : parts_) reports.push_back({.node = node, .hash = part.hash});
  return reports;
}

void SaveAgreement::OnPermission() {
  absl::MutexLock lock(&mu_);
  is_permitted_ = true;
  changed_.SignalAll();
}

void SaveAgreement::OnPart(const SavePart& part) {
  absl::MutexLock lock(&mu_);
  if (!parts_.emplace(part.node, part).second) return;
  if (!part.status.ok()) SetFailure(OfNode(part.node, part.status));
  changed_.SignalAll();
}

void SaveAgreement::Fail(const absl::Status& why) {
  absl::MutexLock lock(&mu_);
  SetFailure(why);
  changed_.SignalAll();
}

void SaveAgreement::SetFailure(const absl::Status& why) {
  if (!failure_.ok()) return;
  failure_ = why;
  failed_ = true;
}

}  // namespace paramshard::server
