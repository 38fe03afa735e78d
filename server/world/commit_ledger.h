// Votes on one model's commits, and their decisions.
#ifndef PARAMSHARD_SERVER_WORLD_COMMIT_LEDGER_H_
#define PARAMSHARD_SERVER_WORLD_COMMIT_LEDGER_H_

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "server/terms/cluster.h"
#include "server/world/membership.h"

namespace paramshard::server {

// Number of decisions of a model that are remembered. A node in doubt asks for its last decision, without which it
// cannot vote on the next commit. The others may meanwhile make more commits than that without it.
inline constexpr size_t kKeptDecisions = 64;

// Not thread-safe.
class CommitLedger {
 public:
  // Starts an epoch of `voters` nodes at `commit_number`. Decisions about later commits belong to a history that an
  // import has replaced. The sums of the ranks of `first_group` make the norm.
  void StartEpoch(int64_t commit_number, RankRange first_group, int voters);
  // Drops votes without a decision.
  void EndEpoch() { DropVotes(); }

  // The last decided commit, or the commit at which the epoch started.
  int64_t last_commit_number() const { return last_commit_number_; }

  // Returns the decision of that epoch about that commit, if there is one.
  std::optional<CommitDecision> Find(int64_t epoch, int64_t commit_number) const;
  // Returns true if the decision belongs to another history than the query's.
  bool IsOfAnother(const CommitQuery& query) const;
  // Returns true if a commit of an ended epoch is or may be decided, but its epoch and decision are forgotten.
  bool HasForgotten(int64_t epoch, int64_t commit_number) const;
  // Returns the client states that the node's ranks sent with that commit, if it is the last decided one.
  std::optional<std::vector<std::string>> ClientStates(int64_t epoch, int64_t commit_number, int node) const;

  // Result of a vote.
  struct Cast {
    enum class Result : uint8_t {
      kCounted,    // the vote counts; if it was the last missing one there is a decision now
      kRepeated,   // the node has voted already, and the decision is open
      kDiffers,    // the vote counts, but names other commands than the others: nothing is decided in this epoch
      kRefused,    // nothing has changed; INVALID_ARGUMENT
      kDisagrees,  // the vote is on another commit than the next one, or than another node's vote; FAILED_PRECONDITION
      kUnwritten,  // the last missing vote, but the decision could not be written: nothing is decided; INTERNAL
    };
    Result result = Result::kCounted;
    absl::Status why = {};  // OK if the vote counts
  };
  // Takes the vote of a voter. Decides when all have voted and each CommitVote::write_down has succeeded.
  Cast Add(const Membership& members, int node, const CommitVote& vote);

  // Returns true if the node has voted on the open commit.
  bool HasVoted(int node) const { return votes_.contains(node); }
  // Returns the first node other than `node` that has voted.
  std::optional<int> VoterBeside(int node) const;
  bool IsFirstVoter(int node) const { return !votes_.empty() && votes_.begin()->first == node; }
  // The first voter's commands. Requires a vote.
  const CommandsThrough& commands() const { return votes_.begin()->second.commands; }

 private:
  struct Record {
    int64_t epoch = 0;
    int64_t commit_number = 0;
    CommitDecision decision;
    std::string history_id;
  };

  // FAILED_PRECONDITION naming both commits.
  absl::Status CheckCommitNumber(const Membership& members, int node, const CommitVote& vote) const;
  CommitDecision Sum() const;
  void DropVotes();
  // INTERNAL.
  absl::Status WriteDown(const CommitDecision& decision) const;
  Cast Decide();

  int64_t last_commit_number_ = 0;
  int64_t replaced_epoch_ = 0;  // last epoch whose decisions were dropped because another state replaced its own
  RankRange first_group_;
  int voters_ = 0;
  std::map<int, CommitVote> votes_;                        // by node: sums come in rank order
  bool differ_ = false;                                    // votes name different commands
  std::deque<Record> records_;                             // ascending
  std::map<int, std::vector<std::string>> client_states_;  // with the commit of the last record, by node
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_WORLD_COMMIT_LEDGER_H_
