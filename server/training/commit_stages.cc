#include "server/training/commit_stages.h"

#include <algorithm>

namespace paramshard::server {

bool CommitStages::AreAllAt(Stage stage) const {
  return std::all_of(stages_.begin(), stages_.end(), [stage](Stage own) { return own == stage; });
}

std::optional<PushStep> CommitStages::Next(int rank, bool may_sum, bool stopped) const {
  const Stage stage = stages_[rank];
  if (vote_ == VoteState::kApplies) {
    if (stage == Stage::kSummed) return PushStep::kApply;
    if (amaxes_ == AmaxState::kNeeded && AreAllAt(Stage::kApplied)) return PushStep::kShareAmaxes;
    if (amaxes_ == AmaxState::kShared && stage == Stage::kApplied) return PushStep::kEncode;
    return std::nullopt;
  }
  if (stopped || vote_ != VoteState::kNone) return std::nullopt;
  if (stage == Stage::kPending) return may_sum ? std::optional(PushStep::kSum) : std::nullopt;
  return AreAllAt(Stage::kSummed) ? std::optional(PushStep::kVote) : std::nullopt;
}

void CommitStages::Begin(int rank, PushStep step) {
  if (step == PushStep::kSum) stages_[rank] = Stage::kSumming;
  if (step == PushStep::kVote) vote_ = VoteState::kVoting;
  if (step == PushStep::kApply) stages_[rank] = Stage::kApplying;
  if (step == PushStep::kShareAmaxes) amaxes_ = AmaxState::kSharing;
  if (step == PushStep::kEncode) stages_[rank] = Stage::kEncoding;
}

void CommitStages::FinishVote(VoteVerdict verdict) {
  vote_ = verdict == VoteVerdict::kGivenUp ? VoteState::kGivenUp : VoteState::kApplies;
  amaxes_ = verdict == VoteVerdict::kEncodes ? AmaxState::kNeeded : AmaxState::kUnneeded;
}

bool CommitStages::FinishApply(int rank) {
  if (amaxes_ == AmaxState::kUnneeded) return true;
  stages_[rank] = Stage::kApplied;
  return false;
}

bool CommitStages::Finish(int rank) {
  stages_[rank] = Stage::kDone;
  if (!AreAllAt(Stage::kDone)) return false;
  vote_ = VoteState::kNone;
  amaxes_ = AmaxState::kUnneeded;
  std::fill(stages_.begin(), stages_.end(), Stage::kPending);
  return true;
}

int CommitStages::OnlyPending() const {
  const auto summed = std::count(stages_.begin(), stages_.end(), Stage::kSummed);
  if (summed != static_cast<int64_t>(stages_.size()) - 1) return -1;
  const auto pending = std::find(stages_.begin(), stages_.end(), Stage::kPending);
  return pending == stages_.end() ? -1 : static_cast<int>(pending - stages_.begin());
}

}  // namespace paramshard::server
