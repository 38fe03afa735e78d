// The sequence of commands of one epoch, on the ranks of one daemon: what each rank may do next.
//
// Pure state: no thread, clock, memory or byte is touched here. The owner feeds in commands and finished work and asks
// for work; times are given. The rules (docs/internals/architecture.md, "The sequence of commands"):
//
// * commits and discards end steps: the n-th ends of all ranks are equal, or Submit refuses and names both; a commit's
//   client state is each rank's own;
// * gathers are each rank's own. They run in order, when the commits are answered that their rank has sent before, and
//   its trainer does not use the slot any more; they wait for no other rank;
// * pushes are matched by step, unit and ordinal (the k-th push of the unit in the step). A rank that has come to the end
//   of the step without one is absent. A push is summed when every rank has filled its slot or is absent; pushes of a
//   unit in their order. A push that waits for other ranks is landed: its gradients are copied out of the slot, which is
//   free again;
// * a commit's sum on a rank comes after the pushes of the step, when that rank's gathers before it are done and its
//   trainer has released every gathered unit; a discard after the pushes of the step;
// * a commit has stages: every rank sums, one votes, every rank applies; where formats need amaxes of whole tensors one
//   shares them and every rank encodes; then it is answered, and later commands go on;
// * what trainers can make the daemon hold is bounded: unanswered commits, and commands that are not finished;
// * after Stop nothing begins, except what a decided commit still needs.
//
// Where engines work together in one order (Options::equal_commands), the n-th commands of all ranks are equal: Submit
// refuses others, pushes run in order when all ranks have sent them, and none is landed.
#ifndef PARAMSHARD_SERVER_TRAINING_SEQUENCE_H_
#define PARAMSHARD_SERVER_TRAINING_SEQUENCE_H_

#include <algorithm>
#include <cstdint>
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
#include "server/training/command_rules.h"
#include "server/training/commit_stages.h"
#include "server/training/equal_commands.h"
#include "server/training/gather_queues.h"
#include "server/training/push_groups.h"
#include "server/training/sent_command.h"
#include "server/training/sequence_waits.h"
#include "server/training/step_ends.h"

namespace paramshard::server {

// Not thread-safe. Ranks are the daemon's own, from 0.
class Sequence {
 public:
  // Largest number of unanswered commits; more break the protocol.
  static constexpr int kMostCommits = 3;
  // Largest number and size of a rank's unfinished commands; beyond it the rank is not listened to.
  static constexpr int kMostCommands = 1024;
  static constexpr size_t kMostBytes = size_t{4} << 20;
  // Largest number of pushes that other ranks have not made: landed ones are not among a rank's unfinished commands.
  static constexpr int kMostPushes = 16384;

  struct Options {
    const ModelSpec* spec = nullptr;  // outlives the sequence
    const Layout* layout = nullptr;   // outlives the sequence
    int ranks = 1;                    // of this daemon
    int first_rank = 0;               // of the world, for messages
    int64_t commit_number = 0;        // last answered
    absl::Duration step_timeout = absl::Seconds(60);
    // A push that is filled and waits for other ranks is landed after this time; at once if ranks have been absent from
    // a push of its unit, or later than this, and have not sent this one.
    absl::Duration land_after = absl::Milliseconds(100);
    bool may_save = false;          // whether a commit may ask for a save
    bool equal_commands = false;    // the n-th commands of all ranks are equal
    bool gathers_together = false;  // an engine makes a gather of all ranks in one call; requires equal_commands
    bool chains_commands = false;   // for other daemons; requires equal_commands
  };

  using ClientStates = std::vector<std::string>;  // what the ranks sent with a commit
  using Work = PushStep;
  struct PushWork {
    Work work;
    const v1::Command* command =
        nullptr;         // the rank's, or another one's where it is absent; valid until it is finished
    int64_t number = 0;  // of the rank's command; of the end of its step where it is absent
    const ClientStates* client_states = nullptr;  // of a commit, by rank; all are valid until the work is finished
    CommandsThrough commands = {};                // of a commit, where commands are chained
    // A push that is summed has its number in the epoch, the ranks' gradient slots, and their absent parameters; empty
    // if no rank is without a gradient.
    int64_t push = 0;
    absl::Span<const int> slots = {};
    absl::Span<const std::vector<int32_t>> absent = {};
    int source = 0;  // of a push that is landed: the rank
  };
  struct GatherWork {
    int target = 0;              // the rank whose gather it is
    const v1::Command* command;  // valid until FinishGather
  };

  // `words` outlives the sequence.
  Sequence(const Options& options, const TrainerWords* words);
  Sequence(const Sequence&) = delete;
  // Sets the commit that the first commit follows, in place of Options::commit_number. Must come before any command.
  void StartFrom(int64_t commit_number) { last_commits_.assign(last_commits_.size(), commit_number); }

  // Returns how many more commands the rank may send now.
  int Room(int rank) const;
  // Takes a rank's next command. An error ends the epoch: INVALID_ARGUMENT a command that breaks a rule,
  // FAILED_PRECONDITION one that differs from another rank's, a commit number out of order, a save where none is made,
  // or a push that is one too many (MostPushesPerStep); RESOURCE_EXHAUSTED a push beyond kMostPushes.
  absl::Status Submit(int rank, SentCommand sent, SteadyTime now);
  // The rank sends no more commands: it is absent from all pushes that it has not sent.
  void Close(int rank) { closed_[rank] = true; }
  // Looks which gradient slots are filled, and which pushes are to be landed now.
  void Look(SteadyTime now);

  // Returns a gather that the rank may serve now: its own first, then its neighbours'. More may begin before the first
  // is finished. FinishGather ends the target's oldest gather that the rank has begun, and returns true if all ranks
  // have served it.
  std::optional<GatherWork> BeginGather(int rank, SteadyTime now);
  bool FinishGather(int rank, int target, SteadyTime now) { return gathers_.Finish(rank, target, now); }
  // Returns true if all ranks have served the rank's gather `number`.
  bool IsServed(int rank, int64_t number) const { return gathers_.IsFinished(rank, number); }

  // Returns the work that the rank's push queue may begin now. It ends with the Finish call of its kind.
  std::optional<PushWork> BeginPush(int rank);
  // Return the slots that are drained now. `landed`: false if there was no memory for it.
  std::vector<DrainedSlot> FinishReduce(int rank, SteadyTime now);
  std::vector<DrainedSlot> FinishLand(int rank, bool landed, SteadyTime now);
  void FinishDiscard(int rank, SteadyTime now);
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
  bool IsPushRunnable(int rank) const;

  // Returns true if nothing up to the command `number` needs the rank's trainer any more: the daemon has taken all of
  // it, its gradients are read, and no commit in it is unfinished. Gathers end without the trainer.
  bool Served(int rank, int64_t number) const;
  // A point to which all ranks come: the number of a command where the ranks' commands are equal, else of an end of a
  // step, from 1. Returns the last one that the rank has sent.
  int64_t LastPoint(int rank) const { return options_.equal_commands ? received_[rank] : ends_.sent(rank); }
  // Returns true if all ranks have sent everything up to the point, and it is done.
  bool CarriedOut(int64_t point) const;

  void Stop() { stopped_ = true; }
  // Returns true if the rank has sent commands that are not finished.
  bool Pending(int rank) const { return Unfinished(rank) > 0; }
  // Returns the last unanswered commit that all ranks have sent, counted in the epoch from 1; 0 without one.
  int64_t LastCommitInFlight() const { return ends_.LastCommitInFlight(); }
  // Returns true if that commit, and every one before it, is answered.
  bool Answered(int64_t commit) const { return ends_.commits_answered() >= commit; }
  // Returns true if the fate of a commit is open: it is voted on, or decided and not applied by all.
  bool CommitOpen() const { return stages_.is_open(); }
  // Returns true if it is stopped, with nothing under way and no decided commit unfinished.
  bool Quiet() const;

  // See SequenceWaits. No rank is waited for once the sequence is stopped.
  absl::Status Overdue(SteadyTime now) const { return stopped_ ? absl::OkStatus() : waits_.Overdue(now); }
  // Returns when to ask Overdue, or to Look, again.
  SteadyTime NextDeadline() const { return stopped_ ? kNever : std::min(waits_.NextDeadline(), NextLanding()); }
  void FindLateRanks(std::vector<char>& late) const;
  // Describes what holds back the rank's next command; empty when nothing does.
  std::string WaitsFor(int rank) const { return waits_.Describe(rank); }
  int64_t last_command(int rank) const { return received_[rank]; }
  using Holder = SequenceWaits::Holder;
  Holder GatherHolder(int rank) const { return waits_.HolderOf(waits_.OfGather(rank)); }
  Holder PushHolder(int rank) const { return waits_.HolderOf(waits_.OfPush(rank)); }

 private:
  // Work of a rank's push queue. `Group` is PushGroup, or const where work is looked for and not begun.
  template <typename Group>
  struct TaskOn {
    Work work;
    Group* group = nullptr;  // of a push
    int source = 0;          // of a push that is landed
  };
  using Task = TaskOn<PushGroup>;

  CommandRules RulesFor(int rank) const;
  absl::Status CheckRunAhead(int rank, const v1::Command& command) const;
  // Compares a commit or discard with what other ranks have sent in its place, a push with those that it joins.
  absl::Status Compare(int rank, const SentCommand& sent) const;
  void Append(int rank, SentCommand sent, SteadyTime now);
  void AppendGather(int rank, SentCommand sent, SteadyTime now);
  void AppendEnd(int rank, SentCommand sent, SteadyTime now);
  // Chains the commands that all ranks have sent.
  void Chain();
  int Unfinished(int rank) const {
    return gathers_.unfinished(rank) + groups_.unfinished(rank) + ends_.unfinished(rank);
  }

  bool MayGather(int target, const QueuedGather& gather) const;
  std::optional<int> RunnableGather(int rank) const;
  // `groups` are all pushes.
  template <typename Groups>
  auto RunnableWork(int rank, Groups& groups) const;
  template <typename Groups>
  auto RunnablePush(int rank, Groups& groups) const;
  template <typename Groups, typename Held>
  void ForEachHeld(Groups& groups, Held held) const;
  SteadyTime LandsAt(const PushGroup& group, const PushPart& part) const;
  SteadyTime NextLanding() const;
  // Ends the rank's part of the commit.
  std::optional<ClientStates> FinishRank(int rank, SteadyTime now);
  // Ends the rank's work.
  Task Finish(int rank, SteadyTime now);
  // Lets the ranks' push queues look for work again.
  void FreePushes();

  const Options options_;
  GatherQueues gathers_;
  PushGroups groups_;
  StepEnds ends_;
  EqualCommands equal_;                           // where commands are equal
  CommitStages stages_;                           // of the first unanswered commit
  std::vector<std::optional<Task>> tasks_;        // by rank: begun
  std::vector<int64_t> received_;                 // by rank: the number of the last command
  std::vector<char> closed_;                      // by rank
  std::vector<SteadyTime> pushes_changed_at_;     // by rank
  std::vector<std::vector<int64_t>> slot_users_;  // by rank: last gather number by slot
  std::vector<StepPushes> step_pushes_;           // by rank: since the last commit or discard
  std::vector<int64_t> last_commits_;             // by rank: highest commit number taken
  CommandChain chain_;
  bool stopped_ = false;
  const SequenceWaits waits_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_TRAINING_SEQUENCE_H_
