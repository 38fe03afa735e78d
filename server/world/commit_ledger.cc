#include "server/world/commit_ledger.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/model/limits.h"

namespace paramshard::server {
namespace {

// Returns true if there is one sum for each of the ranks, in order.
bool Covers(const std::vector<RankSum>& sums, RankRange ranks) {
  if (sums.size() != static_cast<size_t>(ranks.end - ranks.begin)) return false;
  for (size_t i = 0; i < sums.size(); ++i) {
    if (sums[i].rank != ranks.begin + static_cast<int>(i)) return false;
  }
  return true;
}

// Client states may be left out.
bool AreClientStates(const std::vector<std::string>& states, RankRange ranks) {
  if (states.empty()) return true;
  return states.size() == static_cast<size_t>(ranks.end - ranks.begin) &&
         std::all_of(states.begin(), states.end(),
                     [](const std::string& state) { return state.size() <= kMaxClientStateBytes; });
}

}  // namespace

void CommitLedger::StartEpoch(int64_t commit_number, RankRange first_group, int voters) {
  last_commit_number_ = commit_number;
  first_group_ = first_group;
  voters_ = voters;
  DropVotes();
  client_states_.clear();
  for (; !records_.empty() && records_.back().commit_number > commit_number; records_.pop_back()) {
    replaced_epoch_ = std::max(replaced_epoch_, records_.back().epoch);
  }
}

std::optional<CommitDecision> CommitLedger::Find(int64_t epoch, int64_t commit_number) const {
  for (const Record& record : records_) {
    if (record.epoch == epoch && record.commit_number == commit_number) return record.decision;
  }
  return std::nullopt;
}

bool CommitLedger::IsOfAnother(const CommitQuery& query) const {
  return std::any_of(records_.begin(), records_.end(), [&](const Record& record) {
    return record.epoch == query.epoch && record.commit_number == query.commit_number && !query.history_id.empty() &&
           record.history_id != query.history_id;
  });
}

bool CommitLedger::HasForgotten(int64_t epoch, int64_t commit_number) const {
  if (epoch <= replaced_epoch_) return true;
  return commit_number <= last_commit_number_ &&
         std::none_of(records_.begin(), records_.end(),
                      [=](const Record& record) { return record.commit_number == commit_number; });
}

std::optional<std::vector<std::string>> CommitLedger::ClientStates(int64_t epoch, int64_t commit_number,
                                                                   int node) const {
  if (records_.empty() || records_.back().epoch != epoch || records_.back().commit_number != commit_number) {
    return std::nullopt;
  }
  const auto found = client_states_.find(node);
  return found == client_states_.end() ? std::nullopt : std::optional(found->second);
}

absl::Status CommitLedger::CheckCommitNumber(const Membership& members, int node, const CommitVote& vote) const {
  // All counted votes are on one commit.
  if (!votes_.empty() && votes_.begin()->second.commit_number != vote.commit_number) {
    const auto& [other, cast] = *votes_.begin();
    return absl::FailedPreconditionError(absl::StrCat("vote ", vote.model, ": ", NodeName(members, other),
                                                      " votes on commit ", cast.commit_number, ", ",
                                                      NodeName(members, node), " on commit ", vote.commit_number));
  }
  if (vote.commit_number != last_commit_number_ + 1) {
    return absl::FailedPreconditionError(absl::StrCat("vote ", vote.model, ": want commit ", last_commit_number_ + 1,
                                                      ", got a vote on commit ", vote.commit_number, " from ",
                                                      NodeName(members, node)));
  }
  return absl::OkStatus();
}

CommitLedger::Cast CommitLedger::Add(const Membership& members, int node, const CommitVote& vote) {
  CommitVote sorted = vote;
  std::sort(sorted.sums.begin(), sorted.sums.end(), [](const RankSum& a, const RankSum& b) { return a.rank < b.rank; });
  if (!Covers(sorted.sums, members.ranks(node))) {
    return {Cast::Result::kRefused,
            absl::InvalidArgumentError(absl::StrCat("vote ", vote.model, " commit ", vote.commit_number,
                                                    ": want one sum for each rank of ", NodeName(members, node),
                                                    ", got ", vote.sums.size()))};
  }
  if (!AreClientStates(sorted.client_states, members.ranks(node))) {
    return {
        Cast::Result::kRefused,
        absl::InvalidArgumentError(absl::StrCat(
            "vote ", vote.model, " commit ", vote.commit_number, ": want no client states of ", NodeName(members, node),
            ", or one for each rank of at most ", kMaxClientStateBytes, " bytes, got ", sorted.client_states.size()))};
  }
  if (const absl::Status next = CheckCommitNumber(members, node, vote); !next.ok()) {
    return {Cast::Result::kDisagrees, next};
  }
  if (HasVoted(node)) return {Cast::Result::kRepeated};  // a repeated vote says the same
  const bool differs = !votes_.empty() && !(commands() == vote.commands);
  votes_.emplace(node, std::move(sorted));
  differ_ = differ_ || differs;
  if (differs) return {Cast::Result::kDiffers};
  return !differ_ && votes_.size() == static_cast<size_t>(voters_) ? Decide() : Cast();
}

void CommitLedger::DropVotes() {
  votes_.clear();
  differ_ = false;
}

std::optional<int> CommitLedger::VoterBeside(int node) const {
  for (const auto& [voter, vote] : votes_) {
    if (voter != node) return voter;
  }
  return std::nullopt;
}

CommitDecision CommitLedger::Sum() const {
  CommitDecision decision;
  for (const auto& [node, vote] : votes_) {
    for (const RankSum& sum : vote.sums) {
      if (first_group_.Contains(sum.rank)) decision.square_sum += sum.square_sum;
      decision.non_finite_count += sum.non_finite_count;
    }
  }
  decision.apply = decision.non_finite_count == 0;
  return decision;
}

absl::Status CommitLedger::WriteDown(const CommitDecision& decision) const {
  for (const auto& [node, vote] : votes_) {
    if (vote.write_down == nullptr) continue;
    const absl::Status written = vote.write_down(decision);
    if (written.ok()) continue;
    return absl::InternalError(absl::StrCat("vote ", vote.model, " commit ", vote.commit_number,
                                            ": failed to write the decision: ", written.message()));
  }
  return absl::OkStatus();
}

CommitLedger::Cast CommitLedger::Decide() {
  const CommitVote& any = votes_.begin()->second;
  const Record record{any.epoch, any.commit_number, Sum(), any.history_id};
  if (const absl::Status written = WriteDown(record.decision); !written.ok()) {
    return {Cast::Result::kUnwritten, written};
  }
  last_commit_number_ = record.commit_number;
  records_.push_back(record);
  if (records_.size() > kKeptDecisions) records_.pop_front();
  client_states_.clear();
  for (auto& [node, vote] : votes_) {
    if (!vote.client_states.empty()) client_states_[node] = std::move(vote.client_states);
  }
  DropVotes();
  return {};
}

}  // namespace paramshard::server
