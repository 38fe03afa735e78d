// Commits and discards of an epoch that are not finished: the ends of steps, to which all ranks come.
#ifndef PARAMSHARD_SERVER_TRAINING_STEP_ENDS_H_
#define PARAMSHARD_SERVER_TRAINING_STEP_ENDS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "absl/numeric/int128.h"
#include "paramshard/v1/trainer.pb.h"
#include "server/base/clock.h"
#include "server/training/sent_command.h"

namespace paramshard::server {

struct StepEnd {
  v1::Command command;     // of the rank that sent it first
  std::string unnumbered;  // of a commit: its bytes without the number, for comparison
  int first_rank = 0;
  int arrived = 0;
  int finished = 0;
  SteadyTime first_arrival, agreed_at;
  std::vector<int64_t> numbers;                  // of the ranks' commands; 0 while a rank has not sent it
  std::vector<std::vector<int64_t>> slot_users;  // of a commit, by rank: the last gather in every slot
  std::vector<std::string> client_states;        // of a commit, by rank
  std::vector<size_t> bytes;                     // by rank: of the command and its client state
  absl::uint128 chained = 0;                     // the commands through this one, where they are chained

  bool is_commit() const { return command.has_commit(); }
};

// Ends count from 0 in every epoch, in the order in which each rank sends them. A step is what a rank sends between two
// ends, and has the number of the end that follows. An end is agreed when all ranks have sent it, and goes when all have
// finished it. Not thread-safe.
class StepEnds {
 public:
  explicit StepEnds(int ranks)
      : ranks_(ranks), sent_(ranks, 0), done_(ranks, 0), commits_sent_(ranks, 0), commits_done_(ranks, 0) {}

  // Returns the end that the rank sends next; null if it is the first rank to send it.
  const StepEnd* NextOf(int rank) const { return Find(sent_[rank]); }
  // Records that the rank has sent its next end.
  StepEnd& Add(int rank, SentCommand sent, std::vector<int64_t> slot_users, SteadyTime now);
  // Ends the rank's part of its present step.
  void Finish(int rank, SteadyTime now);

  // Returns the number of ends that the rank has sent, or finished: the number of its present step.
  int64_t sent(int rank) const { return sent_[rank]; }
  int64_t done(int rank) const { return done_[rank]; }
  // Return the number of commits that the rank has sent, or finished.
  int64_t commits_sent(int rank) const { return commits_sent_[rank]; }
  int64_t commits_done(int rank) const { return commits_done_[rank]; }
  // Returns the number of answered commits, and when the last one was.
  int64_t commits_answered() const { return commits_answered_; }
  SteadyTime answered_at() const { return answered_at_; }
  // Returns the number of ends that all ranks have finished.
  int64_t finished() const { return first_; }

  // Returns an end that is not finished by all; null if it is, or no rank has sent it.
  const StepEnd* Find(int64_t step) const {
    const int64_t index = step - first_;
    return index >= 0 && index < static_cast<int64_t>(ends_.size()) ? &ends_[index] : nullptr;
  }
  StepEnd& At(int64_t step) { return ends_[step - first_]; }
  bool IsAgreed(const StepEnd& end) const { return end.arrived == ranks_; }
  // Returns the first end that some ranks have sent, and others have not; null without one.
  const StepEnd* FirstMissing() const;
  // Returns the number, among all commits of the epoch, of the last unanswered commit that all ranks have sent; 0
  // without one.
  int64_t LastCommitInFlight() const;
  // Returns the first unanswered commit. Requires one.
  StepEnd& FirstCommit();
  // Returns the number of the rank's ends that are not finished by all.
  int unfinished(int rank) const { return static_cast<int>(sent_[rank] - first_); }
  size_t bytes(int rank) const;
  // Returns true if the rank has sent an end with a number up to `number` that is not finished by all.
  bool IsOneThrough(int rank, int64_t number) const;

 private:
  const int ranks_;
  std::deque<StepEnd> ends_;
  int64_t first_ = 0;  // of ends_.front()
  std::vector<int64_t> sent_, done_, commits_sent_, commits_done_;
  int64_t commits_answered_ = 0;
  SteadyTime answered_at_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_TRAINING_STEP_ENDS_H_
