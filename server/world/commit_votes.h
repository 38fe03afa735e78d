// Votes on a model's commits, and the calls that wait for their answers.
#ifndef PARAMSHARD_SERVER_WORLD_COMMIT_VOTES_H_
#define PARAMSHARD_SERVER_WORLD_COMMIT_VOTES_H_

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/terms/cluster.h"
#include "server/world/command_ledger.h"
#include "server/world/commit_ledger.h"
#include "server/world/epoch_plan.h"
#include "server/world/waiters.h"
#include "server/world/world_context.h"

namespace paramshard::server {

// DATA_LOSS the epoch belongs to an earlier coordinator or a deleted model, whose decisions are gone.
absl::Status InDoubtError(const CommitQuery& query);
// ABORTED the epoch ended before the decision.
absl::Status UndecidedError(const CommitQuery& query, const absl::Status& why);
// FAILED_PRECONDITION
absl::Status TakesNoPartError(int node, absl::string_view model, int64_t epoch);
// ABORTED
absl::Status EpochOverError(absl::string_view model, int64_t epoch);

// Not thread-safe. Answers votes of the running epoch, and queries about all epochs that it remembers.
class CommitVotes {
 public:
  using Answer = absl::StatusOr<CommitDecision>;
  using Answered = Waiters<Answer>::Answered;

  // Both outlive it.
  CommitVotes(const ModelFacts* model, WorldContext* world) : model_(*model), world_(*world) {}

  // The model's epoch starts with this state.
  void StartEpoch(const ModelReport& state);
  // The model's epoch has ended: answers the votes on the open commit. `by_votes`: the votes disagreed, and are
  // answered with `why` itself.
  void EndEpoch(const absl::Status& why, bool by_votes);
  // Answers the votes on the open commit without a decision: nothing is decided any more.
  void Stop() { AnswerVoters(ledger_.last_commit_number() + 1); }

  // Returns the answer to the vote or query of `node`; nothing while the decision is open.
  std::optional<Answer> Find(int node, const CommitQuery& query) const;
  // The same without the client states of the previous node.
  std::optional<Answer> FindDecision(const CommitQuery& query) const;
  // Counts a vote of a node that takes part. Answers all votes if it was the last missing one. A vote that differs, or
  // is repeated, makes the coordinator ask nodes for their commands.
  CommitLedger::Cast Cast(int node, const CommitVote& vote);
  void Await(int node, int64_t waiter, Answered answered) { voters_[node].Add(waiter, std::move(answered)); }
  // Returns true if the call was still waiting.
  bool GiveUp(int node, int64_t waiter) { return voters_[node].Remove(waiter); }

  // Compares the commands of a node with the commands of other nodes. FAILED_PRECONDITION: see CommandLedger::Add.
  absl::Status AddCommands(int node, const std::vector<CommandInWords>& commands);

  // The last decided commit, or the commit at which the epoch started.
  int64_t last_commit_number() const { return ledger_.last_commit_number(); }

 private:
  // Adds to node 0's vote, which every decision needs, that the decision is written to the log too. Requires a log.
  CommitVote WithLog(const CommitVote& vote);
  // Adds the client states of the previous node's ranks, if they are known.
  void AddPrevious(int node, const CommitQuery& query, CommitDecision& decision) const;
  void AnswerVoters(int64_t commit_number);
  // Asks a node for its commands, at most once.
  void DemandCommands(int node);
  // Asks the nodes that have not voted whether they have sent other commands than the voters.
  void AskTheLate();

  struct EndedEpoch {
    int64_t epoch = 0;
    absl::Status why;
    bool by_votes = false;
  };

  const ModelFacts& model_;
  WorldContext& world_;
  CommitLedger ledger_;
  CommandLedger commands_;                 // of the running epoch
  std::map<int, Waiters<Answer>> voters_;  // by node: on the commit after the last decided one
  EndedEpoch last_end_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_WORLD_COMMIT_VOTES_H_
