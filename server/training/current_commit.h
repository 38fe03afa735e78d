// Commit in progress, from the ranks' sums to its answer.
#ifndef PARAMSHARD_SERVER_TRAINING_CURRENT_COMMIT_H_
#define PARAMSHARD_SERVER_TRAINING_CURRENT_COMMIT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "paramshard/v1/trainer.pb.h"
#include "server/base/clock.h"
#include "server/journal/journal_content.h"
#include "server/state/shard_step.h"
#include "server/terms/cluster.h"

namespace paramshard::server {

// Says what a commit does to this daemon's shards.
struct Decided {
  bool apply = false;
  bool save = false;  // the state after it
  int64_t non_finite_count = 0;
  double gradient_norm = 0;
  double square_sum = 0;  // as node 0 tells it
  StepParameters step;
  std::string reader_data = {};
};

// Returns the factor by which the trainers have multiplied their gradients.
float GradientScaleOf(const v1::Commit& commit);

// Computes norm, clip and unscaling in the order of docs/reference/numerics.md. `mean`: over the ranks of the world.
Decided Decide(const v1::Commit& commit, const CommitDecision& decision, bool mean, int ranks);
// Does the same for a commit that another server has prepared.
DecidedCommit Decide(const PreparedCommit& commit, const CommitDecision& decision, bool mean);

// Outcome of a commit that its epoch did not finish. All are OK if there is none.
struct OpenCommit {
  absl::Status torn;       // it was applied on some ranks, and failed on others
  absl::Status unwritten;  // it is answered, and its answer is not in the journal; no other commit follows
  absl::Status doubt;      // its vote failed without a result: it was not applied here
};

// Remembers what was summed, decided and done, of one commit after the other. Not thread-safe.
class CurrentCommit {
 public:
  explicit CurrentCommit(int ranks) : sums_(ranks) {}

  // Sets the sum of a rank of this daemon, counted from 0.
  void SetSum(int rank, const SquareSum& sum) { sums_[rank] = sum; }
  // Returns what this daemon votes with; `first_rank` is its first rank's in the world.
  std::vector<RankSum> Sums(int first_rank) const;

  // The vote waits for other daemons until the deadline; a later end of the epoch leaves the decision to the
  // coordinator.
  void BeginVote(SteadyTime deadline) { vote_deadline_ = deadline; }
  void EndVote() { vote_deadline_ = kNever; }
  SteadyTime vote_deadline() const { return vote_deadline_; }

  // `previous`: CommitLog::State::previous of the commit.
  void SetDecided(Decided decided, std::optional<PreviousStates> previous) {
    decided_ = std::move(decided);
    previous_ = std::move(previous);
  }
  std::optional<PreviousStates> TakePrevious() { return std::exchange(previous_, std::nullopt); }
  const Decided& decided() const { return decided_; }

  // Records that a rank's stage has failed. Such a commit is never answered: the device is broken, and the model with
  // it.
  void Fail(const absl::Status& status) { failure_.Update(status); }
  const absl::Status& failure() const { return failure_; }

  // Records that the vote failed without a result: whether other daemons apply the commit is unknown. It is not applied
  // here.
  void SetDoubt(const absl::Status& why) { doubt_ = why; }

  // Records that the commit is answered, and that its journal does not say so.
  void SetUnwritten(const absl::Status& why) { unwritten_ = why; }
  OpenCommit open() const { return {.torn = failure_, .unwritten = unwritten_, .doubt = doubt_}; }

  // A commit is being answered from the last rank's last stage until the answer is published.
  void BeginAnswer() { answering_ = true; }
  void EndAnswer() { answering_ = false; }
  bool answering() const { return answering_; }

 private:
  std::vector<SquareSum> sums_;
  SteadyTime vote_deadline_ = kNever;
  Decided decided_;
  std::optional<PreviousStates> previous_;
  absl::Status failure_;
  absl::Status doubt_;
  absl::Status unwritten_;
  bool answering_ = false;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_TRAINING_CURRENT_COMMIT_H_
