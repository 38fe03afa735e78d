// The votes on one model's commits and what was decided.
#ifndef PARAMSHARD_SERVER_CLUSTER_COMMIT_BOOK_H_
#define PARAMSHARD_SERVER_CLUSTER_COMMIT_BOOK_H_

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "server/cluster/membership.h"
#include "server/terms/cluster.h"

namespace paramshard::server {

// Decisions of a model that are remembered. A node in doubt asks for its last one: it cannot vote on the next commit
// before it knows. The others may go on without it meanwhile, by more commits than these.
inline constexpr size_t kKeptDecisions = 64;

// Not thread-safe.
class CommitBook {
 public:
  // The `voters` nodes stand at `commit_number`. Decisions about later ones belong to a history that an import has
  // replaced. The sums of the ranks of `first_group` make the norm.
  void StartEpoch(int64_t commit_number, RankRange first_group, int voters);
  // Votes without a decision are dropped.
  void EndEpoch() { DropVotes(); }

  // The last one that was decided, or that all nodes stood at when the epoch started.
  int64_t last_commit_number() const { return last_commit_number_; }

  // The decision of that epoch about that commit, when there is one.
  std::optional<CommitDecision> Find(int64_t epoch, int64_t commit_number) const;
  // Whether that decision is one of another history than the one that is asked for.
  bool IsOfAnother(const CommitQuery& query) const;
  // Whether that commit of an epoch that is over is decided, or may be, and nobody can tell any more in which one, and
  // how.
  bool HasForgotten(int64_t epoch, int64_t commit_number) const;
  // What the node's ranks have sent with that commit, while it is the last one that was decided; else none.
  std::optional<std::vector<std::string>> ClientStates(int64_t epoch, int64_t commit_number, int node) const;

  // What has become of a vote.
  struct Cast {
    enum class Result : uint8_t {
      kCounted,    // it is among the votes, and was the last one where there is a decision now
      kRepeated,   // it was among them, and the decision is open
      kDiffers,    // it is among them, and names other commands than the others: nothing is decided in this epoch
      kRefused,    // nothing has changed; INVALID_ARGUMENT
      kDisagrees,  // it is on another commit than the next one, or than another node votes on; FAILED_PRECONDITION
      kUnwritten,  // it was the last one, and the decision could not be written down: nothing is decided; INTERNAL
    };
    Result result = Result::kCounted;
    absl::Status why = {};  // OK when it is among the votes
  };
  // Takes a vote of one of the voters, and decides when all have voted and the decision is written down where
  // votes say so.
  Cast Add(const Membership& members, int node, const CommitVote& vote);

  // Of votes without a decision.
  bool HasVoted(int node) const { return votes_.contains(node); }
  // The first node that has voted, but for this one.
  std::optional<int> VoterBeside(int node) const;
  bool IsFirstVoter(int node) const { return !votes_.empty() && votes_.begin()->first == node; }
  // What that one has sent. Requires a vote.
  const CommandsThrough& commands() const { return votes_.begin()->second.commands; }

 private:
  struct Record {
    int64_t epoch = 0;
    int64_t commit_number = 0;
    CommitDecision decision;
    std::string history_id;
  };

  // FAILED_PRECONDITION naming both sides.
  absl::Status CheckCommitNumber(const Membership& members, int node, const CommitVote& vote) const;
  CommitDecision Sum() const;
  void DropVotes();
  // INTERNAL.
  absl::Status WriteDown(const CommitDecision& decision) const;
  Cast Decide();

  int64_t last_commit_number_ = 0;
  int64_t replaced_epoch_ = 0;  // the last one with decisions that were forgotten because another state counts now
  RankRange first_group_;
  int voters_ = 0;
  std::map<int, CommitVote> votes_;                        // by node: sums come in rank order
  bool differ_ = false;                                    // in their commands
  std::deque<Record> records_;                             // ascending
  std::map<int, std::vector<std::string>> client_states_;  // with the commit of the last record, by node
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_CLUSTER_COMMIT_BOOK_H_
