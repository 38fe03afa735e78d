#include "server/world/commit_votes.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"

namespace paramshard::server {
namespace {

using Answer = CommitVotes::Answer;

absl::Status ForgottenError(const CommitQuery& query) {
  return absl::DataLossError(
      absl::StrCat("vote ", query.model, " commit ", query.commit_number,
                   ": forgotten: node 0 has decided later commits or goes on from another state, and ",
                   "remembers the last ", kKeptDecisions, " decisions"));
}

// Answers for an epoch that this coordinator has not started. An earlier coordinator with the same history wrote each
// decision before it told any node, so the commit after the last written one is undecided.
Answer AnswerFromBefore(const std::vector<ClosedEpoch>& closed, const CommitQuery& query) {
  const auto before = std::find_if(closed.begin(), closed.end(),
                                   [&](const ClosedEpoch& epoch) { return epoch.history_id == query.history_id; });
  if (before == closed.end()) return InDoubtError(query);
  const std::optional<ClosedEpoch::Decided>& last = before->last_decision;
  if (last.has_value() && last->epoch == query.epoch && last->commit_number == query.commit_number) {
    return last->decision;
  }
  const bool is_known = before->may_be_old ? query.epoch == before->epoch : query.epoch >= before->epoch;
  if (!is_known || query.commit_number != before->commit_number + 1) return InDoubtError(query);
  return UndecidedError(query, absl::UnavailableError("node 0 was restarted"));
}

}  // namespace

absl::Status InDoubtError(const CommitQuery& query) {
  return absl::DataLossError(absl::StrCat("vote ", query.model, " commit ", query.commit_number, ": epoch ",
                                          query.epoch,
                                          " is unknown to node 0, which was restarted or has deleted the model"));
}

absl::Status UndecidedError(const CommitQuery& query, const absl::Status& why) {
  return absl::AbortedError(absl::StrCat("vote ", query.model, " commit ", query.commit_number, ": epoch ", query.epoch,
                                         " ended before the decision: ", why.message()));
}

absl::Status TakesNoPartError(int node, absl::string_view model, int64_t epoch) {
  return absl::FailedPreconditionError(
      absl::StrCat("epoch ", epoch, " of ", model, ": node ", node, " takes no part: attach its trainers again"));
}

absl::Status EpochOverError(absl::string_view model, int64_t epoch) {
  return absl::AbortedError(absl::StrCat("epoch ", epoch, " of ", model, ": over"));
}

void CommitVotes::StartEpoch(const ModelReport& state) {
  // The ranks of the first replica that takes part, or all ranks.
  const int begin = world_.members.ranks(model_.active[0]).begin;
  ledger_.StartEpoch(state.commit_number, {begin, begin + state.shard_size}, static_cast<int>(model_.active.size()));
  commands_ = CommandLedger();
}

void CommitVotes::EndEpoch(const absl::Status& why, bool by_votes) {
  last_end_ = {model_.last_epoch, why, by_votes};
  ledger_.EndEpoch();
  AnswerVoters(ledger_.last_commit_number() + 1);
}

std::optional<Answer> CommitVotes::Find(int node, const CommitQuery& query) const {
  std::optional<Answer> answer = FindDecision(query);
  if (answer.has_value() && answer->ok()) AddPrevious(node, query, **answer);
  return answer;
}

std::optional<Answer> CommitVotes::FindDecision(const CommitQuery& query) const {
  if (ledger_.IsOfAnother(query)) return InDoubtError(query);
  if (std::optional<CommitDecision> decision = ledger_.Find(query.epoch, query.commit_number)) {
    const auto save = world_.saves.find(query.model);
    const bool comes_first = save != world_.saves.end() && save->second.step + 1 == query.commit_number;
    if (comes_first) decision->save = save->second;
    return *std::move(decision);
  }
  if (query.epoch <= model_.epoch_floor || query.epoch > model_.last_epoch) {
    return AnswerFromBefore(model_.before, query);
  }
  if (model_.running && model_.last_epoch == query.epoch) {
    // Nothing is decided any more. The node gets this answer instead of staying in doubt.
    if (world_.stopped) return UndecidedError(query, WorldContext::StoppedError());
    return std::nullopt;
  }
  if (ledger_.HasForgotten(query.epoch, query.commit_number)) return ForgottenError(query);
  if (last_end_.epoch != query.epoch) return EpochOverError(query.model, query.epoch);
  return last_end_.by_votes ? last_end_.why : UndecidedError(query, last_end_.why);
}

void CommitVotes::AddPrevious(int node, const CommitQuery& query, CommitDecision& decision) const {
  if (!model_.IsActive(node)) return;
  decision.previous_client_states =
      ledger_.ClientStates(query.epoch, query.commit_number, PreviousNode(node, model_.active));
  if (!decision.previous_client_states.has_value() && world_.log != nullptr) {
    decision.previous_client_states = world_.log->SentByNode0(query, node);
  }
}

CommitLedger::Cast CommitVotes::Cast(int node, const CommitVote& vote) {
  using Result = CommitLedger::Cast::Result;
  const CommitLedger::Cast cast =
      ledger_.Add(world_.members, node, node == 0 && world_.log != nullptr ? WithLog(vote) : vote);
  const bool is_decided = cast.result == Result::kCounted && ledger_.last_commit_number() == vote.commit_number;
  if (is_decided) AnswerVoters(vote.commit_number);
  if (cast.result == Result::kRepeated && ledger_.IsFirstVoter(node)) AskTheLate();
  if (cast.result == Result::kDiffers) {
    DemandCommands(node);
    DemandCommands(*ledger_.VoterBeside(node));
  }
  return cast;
}

// The log is written before node 0's journal: a decision that a restarted server finds there has to be on the disk too.
CommitVote CommitVotes::WithLog(const CommitVote& vote) {
  CommitVote logged = vote;
  logged.write_down = [world = &world_, model = vote.model, commit_number = vote.commit_number,
                       client_states = vote.client_states,
                       write_down = vote.write_down](const CommitDecision& decision) {
    return world->WriteInLog([&]() -> absl::Status {
      RETURN_IF_ERROR(world->log->Decide(model, commit_number, decision, client_states));
      return write_down == nullptr ? absl::OkStatus() : write_down(decision);
    });
  };
  return logged;
}

void CommitVotes::AnswerVoters(int64_t commit_number) {
  const CommitQuery query{.model = model_.name, .epoch = model_.last_epoch, .commit_number = commit_number};
  for (auto& [node, voters] : voters_) {
    if (!voters.empty()) AnswerAll(voters, *Find(node, query), world_.answers);
  }
}

// A first report is compared with a voter's commands, if there is a voter.
absl::Status CommitVotes::AddCommands(int node, const std::vector<CommandInWords>& commands) {
  RETURN_IF_ERROR(commands_.Add(node, commands));
  const std::optional<int> other = ledger_.VoterBeside(node);
  if (other.has_value() && commands_.HasReported(node)) DemandCommands(*other);
  return absl::OkStatus();
}

void CommitVotes::DemandCommands(int node) {
  if (commands_.Demand(node)) world_.Tell(node, CommandsWanted{.model = model_.name, .epoch = model_.last_epoch});
}

// A node is late if it is at another command than a voter, and waits for it.
void CommitVotes::AskTheLate() {
  for (const int node : model_.active) {
    if (ledger_.HasVoted(node) || world_.sinks[node] == nullptr) continue;
    commands_.Ask(node);
    world_.Tell(node, CommandsWanted{.model = model_.name, .epoch = model_.last_epoch, .unless = ledger_.commands()});
  }
}

}  // namespace paramshard::server
