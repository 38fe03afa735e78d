// The sequence of commands of one epoch, on the ranks of one daemon: what each rank may do next.
//
// Pure state: no thread, clock, memory or byte is touched here. The owner feeds in commands and finished work and asks
// for work; times are given. The rules (docs/internals/architecture.md, "The sequence of commands"):
//
// * the n-th commands of all ranks are equal, or Submit refuses and names both; a commit's client state and a push's
//   absent parameters are each rank's own;
// * gathers run in order, and so do all others; a commit waits for every earlier command, and every later
//   command waits for the commit;
// * a gather runs when no trainer uses its slot any more and every rank has finished the gather that used it before (a
//   trainer may release what has not arrived yet, and the late pieces would land among the new ones), a push when every
//   trainer has filled its slot, a commit's sum on a rank when that rank's trainer has released every gathered unit;
// * a discard runs on a rank when that rank's pushes before it are done;
// * a commit has stages: every rank sums, one votes, every rank applies; where formats need amaxes of whole tensors one
//   shares them and every rank encodes; then it is answered;
// * what trainers can make the daemon hold is bounded: unanswered commits, and commands that are not finished;
// * after Stop nothing begins, except what a decided commit still needs.
#ifndef PARAMSHARD_SERVER_TRAINING_SEQUENCE_H_
#define PARAMSHARD_SERVER_TRAINING_SEQUENCE_H_

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/model/layout.h"
#include "common/model/model_spec.h"
#include "common/model/step_pushes.h"
#include "paramshard/v1/trainer.pb.h"
#include "server/base/clock.h"
#include "server/terms/cluster.h"
#include "server/terms/command_chain.h"
#include "server/training/command_queues.h"
#include "server/training/commit_stages.h"
#include "server/training/sent_command.h"
#include "server/training/sequence_waits.h"

namespace paramshard::server {

// Not thread-safe. Ranks are the daemon's own, from 0.
class Sequence {
 public:
  // Largest number of unanswered commits; more break the protocol.
  static constexpr int kMostCommits = 3;
  // Largest number and size of unfinished commands; beyond it a rank that is ahead of all others is not listened to.
  static constexpr int kMostCommands = 1024;
  static constexpr size_t kMostBytes = size_t{4} << 20;

  struct Options {
    const ModelSpec* spec = nullptr;  // outlives the sequence
    const Layout* layout = nullptr;   // outlives the sequence
    int ranks = 1;                    // of this daemon
    int first_rank = 0;               // of the world, for messages
    int64_t commit_number = 0;        // last answered
    absl::Duration step_timeout = absl::Seconds(60);
    bool may_save = false;         // whether a commit may ask for a save
    bool chains_commands = false;  // for other daemons
  };

  using ClientStates = std::vector<std::string>;  // what the ranks sent with a commit
  using Work = PushStep;
  struct PushWork {
    Work work;
    const v1::Command* command;         // all are valid until the command is finished
    const ClientStates* client_states;  // of a commit that all ranks have sent, by rank
    CommandsThrough commands;           // likewise, where they are chained
    // Absent parameters of a push that all ranks have sent, by rank; empty if no rank is without a gradient.
    absl::Span<const std::vector<int32_t>> absent;
  };

  // `words` outlives the sequence.
  Sequence(const Options& options, const TrainerWords* words);
  Sequence(const Sequence&) = delete;
  // Sets the commit that the first commit follows, in place of Options::commit_number. Must come before any command.
  void StartFrom(int64_t commit_number) { last_commit_ = commit_number; }

  // Returns how many more commands the rank may send now.
  int Room(int rank) const { return queues_.Room(rank, kMostCommands, kMostBytes); }
  // Takes a rank's next command; returns true if all ranks have now sent it. An error ends the epoch: INVALID_ARGUMENT
  // a command that breaks a rule, FAILED_PRECONDITION one that differs from another rank's, a commit number out of
  // order, a save where none is made, or a push that is one too many (MostPushesPerStep).
  absl::StatusOr<bool> Submit(int rank, SentCommand sent, SteadyTime now);

  // Returns the gather that the rank may begin now, or null. Valid until FinishGather, which ends the oldest gather
  // that the rank has begun; other gathers may begin before.
  const v1::Command* BeginGather(int rank, SteadyTime now);
  void FinishGather(int rank, SteadyTime now);

  // Returns the work that the rank's push queue may begin now. It ends with the Finish call of its kind.
  std::optional<PushWork> BeginPush(int rank);
  // Returns true if all ranks have read the slot: it is drained.
  bool FinishReduce(int rank, SteadyTime now);
  void FinishDiscard(int rank, SteadyTime now) { queues_.Pop(queues_.pushes(rank), now); }
  void FinishSum(int rank);
  using Verdict = VoteVerdict;
  void FinishVote(Verdict verdict);
  // Returns client states once all ranks have finished all stages: the commit is to be answered.
  std::optional<ClientStates> FinishApply(int rank, SteadyTime now);
  std::optional<ClientStates> FinishEncode(int rank, SteadyTime now) { return FinishRank(rank, now); }
  void FinishShareAmaxes();

  // Returns the chain of commands that all ranks have sent, where they are chained.
  const CommandChain& chain() const { return chain_; }

  // Return true if the rank could begin a gather, or work of its push queue, now.
  bool IsGatherRunnable(int rank) const;
  bool IsPushRunnable(int rank) const { return RunnableWork(rank).has_value(); }

  // Returns true if nothing up to the command `number` needs the rank's trainer any more: the daemon has taken all of
  // it, and no push or commit in it is unfinished. Gathers end without the trainer.
  bool Served(int rank, int64_t number) const;
  // Returns true if all ranks have sent everything up to the command `number`, and it is done, gathers too.
  bool CarriedOut(int64_t number) const { return queues_.AreAllFinished(number); }

  void Stop() { stopped_ = true; }
  // Returns true if the rank has sent commands that are not finished.
  bool Pending(int rank) const { return queues_.IsPending(rank); }
  // Returns the command number of the last unanswered commit that all ranks have sent; 0 without one.
  int64_t LastCommitInFlight() const;
  // Returns true if that commit, and every one before it, is answered.
  bool Answered(int64_t number) const { return !queues_.IsBehindCommit(number + 1); }
  // Returns true if the fate of a commit is open: it is voted on, or decided and not applied by all.
  bool CommitOpen() const { return stages_.is_open(); }
  // Returns true if it is stopped, with nothing under way and no decided commit unfinished.
  bool Quiet() const { return stopped_ && !queues_.IsBusy() && !stages_.is_open(); }

  // See SequenceWaits. No rank is waited for once the sequence is stopped.
  absl::Status Overdue(SteadyTime now) const { return stopped_ ? absl::OkStatus() : waits_.Overdue(now); }
  SteadyTime NextDeadline() const { return stopped_ ? kNever : waits_.NextDeadline(); }
  void FindLateRanks(std::vector<char>& late) const;
  // Describes what holds back the rank's next command; empty when nothing does.
  std::string WaitsFor(int rank) const { return waits_.Describe(rank); }
  int64_t last_command(int rank) const { return queues_.received(rank); }
  using Holder = SequenceWaits::Holder;
  Holder GatherHolder(int rank) const { return waits_.HolderOf(waits_.OfGather(rank)); }
  Holder PushHolder(int rank) const { return waits_.HolderOf(waits_.OfPush(rank)); }

 private:
  // Ends the rank's part of the commit.
  std::optional<ClientStates> FinishRank(int rank, SteadyTime now);
  absl::Status CheckRunAhead(int rank, const v1::Command& command) const;
  void Append(int rank, SentCommand sent, SteadyTime now);
  absl::Status Compare(int rank, const QueuedCommand& command, const SentCommand& sent) const;
  // Called when all ranks have sent it.
  void Agree(QueuedCommand& command, SteadyTime now);
  std::optional<Work> RunnableWork(int rank) const;
  // Lets the ranks' push queues look for work again.
  void FreePushes();

  const Options options_;
  CommandQueues queues_;
  CommitStages stages_;  // of the first unanswered commit
  const SequenceWaits waits_;
  CommandChain chain_;
  std::vector<int64_t> slot_users_;  // last gather number by slot
  StepPushes step_pushes_;           // since the last commit that was taken
  int64_t last_commit_;              // highest commit number taken
  bool stopped_ = false;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_TRAINING_SEQUENCE_H_
