// The sequence of commands of one epoch, on the ranks of one daemon: what each rank may do next.
//
// Pure state: no thread, clock, memory or byte is touched here. The owner feeds in commands and finished work and asks
// for work; times are given. The rules (docs/internals/architecture.md, "The sequence of commands"):
//
// * the n-th commands of all ranks are equal, or Submit refuses and names both;
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
#include "common/model/layout.h"
#include "common/model/model_spec.h"
#include "common/model/step_pushes.h"
#include "paramshard/v1/trainer.pb.h"
#include "server/base/clock.h"
#include "server/terms/cluster.h"
#include "server/terms/command_chain.h"

namespace paramshard::server {

// The words that trainers write. Ranks are the daemon's own, from 0.
class TrainerWords {
 public:
  virtual ~TrainerWords() = default;
  virtual uint32_t Released(int rank, int slot) const = 0;
  virtual uint32_t Filled(int rank, int slot) const = 0;
};

// A command as a rank sent it, taken apart before any thread waits for it.
struct SentCommand {
  // A Command is sent as it is.
  SentCommand(v1::Command sent);  // NOLINT(google-explicit-constructor)

  v1::Command command;    // without client state
  std::string canonical;  // its bytes, for comparison
  std::string client_state;
};

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
  enum class Work : uint8_t { kReduce, kDiscard, kSum, kVote, kApply, kShareAmaxes, kEncode };
  struct PushWork {
    Work work;
    const v1::Command* command;         // both are valid until the command is finished
    const ClientStates* client_states;  // of a commit that all ranks have sent, by rank
    CommandsThrough commands;           // likewise, where they are chained
  };

  // `words` outlives the sequence.
  Sequence(const Options& options, const TrainerWords* words);
  // Sets the commit that the first commit follows, in place of Options::commit_number. Must come before any command.
  void StartFrom(int64_t commit_number) { last_commit_ = commit_number; }

  // Returns how many more commands the rank may send now. Commands that other ranks have sent before are always taken:
  // they cost nothing, and finishing them makes room.
  int Room(int rank) const;
  // Takes a rank's next command; returns true if all ranks have now sent it. An error ends the epoch: INVALID_ARGUMENT
  // a command that breaks a rule, FAILED_PRECONDITION one that differs from another rank's, a commit number out of
  // order, a save where none is made, or a second push that BF16 accumulators do not take.
  absl::StatusOr<bool> Submit(int rank, SentCommand sent, SteadyTime now);

  // Returns the gather that the rank may begin now, or null. Valid until FinishGather, which ends the oldest gather
  // that the rank has begun; other gathers may begin before.
  const v1::Command* BeginGather(int rank, SteadyTime now);
  void FinishGather(int rank, SteadyTime now);

  // Returns the work that the rank's push queue may begin now. It ends with the Finish call of its kind.
  std::optional<PushWork> BeginPush(int rank);
  // Returns true if all ranks have read the slot: it is drained.
  bool FinishReduce(int rank, SteadyTime now);
  void FinishDiscard(int rank, SteadyTime now) { Pop(pushes_[rank], now); }
  void FinishSum(int rank);
  // kGivenUp: the epoch ends, and nothing more happens to the commit. kEncodes: amaxes are shared after all ranks have
  // applied it, and every rank encodes.
  enum class Verdict : uint8_t { kGivenUp, kApplies, kEncodes };
  void FinishVote(Verdict verdict);
  // Returns client states once all ranks have finished all stages: the commit is to be answered.
  std::optional<ClientStates> FinishApply(int rank, SteadyTime now);
  std::optional<ClientStates> FinishEncode(int rank, SteadyTime now);
  void FinishShareAmaxes();

  // Returns the chain of commands that all ranks have sent, where they are chained.
  const CommandChain& chain() const { return chain_; }

  // Return the ranks that could begin something now.
  std::vector<int> RunnableGathers() const;
  std::vector<int> RunnablePushes() const;

  // Returns true if nothing up to the command `number` needs the rank's trainer any more: the daemon has taken all of
  // it, and no push or commit in it is unfinished. Gathers end without the trainer.
  bool Served(int rank, int64_t number) const;
  // Returns true if all ranks have sent everything up to the command `number`, and it is done, gathers too.
  bool CarriedOut(int64_t number) const { return number < first_number_; }

  void Stop() { stopped_ = true; }
  // Returns true if the rank has sent commands that are not finished.
  bool Pending(int rank) const { return !gathers_[rank].numbers.empty() || !pushes_[rank].numbers.empty(); }
  // Returns the command number of the last unanswered commit that all ranks have sent; 0 without one.
  int64_t LastCommitInFlight() const;
  // Returns true if that commit, and every one before it, is answered.
  bool Answered(int64_t number) const { return !BehindCommit(number + 1); }
  // Returns true if the fate of a commit is open: it is voted on, or decided and not applied by all.
  bool CommitOpen() const { return vote_ == VoteState::kVoting || vote_ == VoteState::kApplies; }
  // Returns true if it is stopped, with nothing under way and no decided commit unfinished.
  bool Quiet() const;

  // Returns DEADLINE_EXCEEDED naming rank and command if a rank has kept another waiting for longer than the timeout.
  absl::Status Overdue(SteadyTime now) const;
  // Returns when Overdue should be asked again; kNever if no rank waits.
  SteadyTime NextDeadline() const;

  // Sets, by rank, true if it alone is what the others wait for: its command or its gradients, where all others have
  // sent theirs, or its release of a slot, where all others have released it. Ranks that are late together do not
  // count.
  void FindLateRanks(std::vector<char>& late) const;

  // Describes what holds back the rank's next command; empty when nothing does.
  std::string WaitsFor(int rank) const;
  int64_t last_command(int rank) const { return received_[rank]; }
  // The trainer that holds back the next command, sent by all, of one of the rank's queues; rank -1: none.
  struct Holder {
    int rank = -1;
    int64_t command = 0;
    friend bool operator==(const Holder& a, const Holder& b) { return a.rank == b.rank && a.command == b.command; }
  };
  Holder GatherHolder(int rank) const { return HolderOf(GatherWait(rank)); }
  Holder PushHolder(int rank) const { return HolderOf(PushWait(rank)); }

 private:
  struct Entry {
    v1::Command command;    // without client state
    std::string canonical;  // its bytes, for comparison
    int first_rank = 0;
    int arrived = 0;
    int finished = 0;
    SteadyTime first_arrival;
    SteadyTime agreed_at;
    // Gather: the number that used the slot before. Commit: the last number in every slot.
    std::vector<int64_t> slot_users;
    std::vector<std::string> client_states;  // of a commit, by rank
    bool repeats = false;
    absl::uint128 chained = 0;  // the commands through this one, once all have sent it
  };
  struct Queue {
    std::deque<int64_t> numbers;
    size_t begun = 0;  // of them, the first; of pushes at most one
    SteadyTime changed_at;

    bool HasNext() const { return begun < numbers.size(); }
    int64_t next() const { return numbers[begun]; }
  };
  // A wait of a rank for a trainer.
  struct Wait {
    enum class Kind : uint8_t { kCommand, kRelease, kGradients };

    int rank = -1;  // waited for; -1 none
    Kind kind = Kind::kCommand;
    int slot = 0;        // to be released
    int64_t number = 0;  // of the command that is missing or held back
    SteadyTime since;
  };
  // A rank goes through these in a commit. It is kDone where it has nothing left to do.
  enum class Stage : uint8_t { kPending, kSumming, kSummed, kApplying, kApplied, kEncoding, kDone };
  enum class VoteState : uint8_t { kNone, kVoting, kApplies, kGivenUp };
  enum class AmaxState : uint8_t { kUnneeded, kNeeded, kSharing, kShared };

  absl::Status CheckCommand(const v1::Command& command) const;
  absl::Status CheckGather(const v1::Gather& gather) const;
  absl::Status CheckPush(const v1::Push& push) const;
  absl::Status CheckCommit(const v1::Commit& commit) const;
  absl::Status CheckRunAhead(int rank, const v1::Command& command) const;
  void Append(int rank, SentCommand sent, SteadyTime now);
  absl::Status Compare(int rank, const Entry& entry, const SentCommand& sent) const;
  // Called when all ranks have sent it.
  void Agree(Entry& entry, SteadyTime now);
  void Enqueue(int rank, const Entry& entry, SteadyTime now);

  const Entry& At(int64_t number) const { return entries_[number - first_number_]; }
  Entry& At(int64_t number) { return entries_[number - first_number_]; }
  bool Agreed(const Entry& entry) const { return entry.arrived == options_.ranks; }
  bool Finished(int64_t number) const { return number < first_number_ || At(number).finished == options_.ranks; }
  bool BehindCommit(int64_t number) const { return !commits_.empty() && commits_.front() < number; }
  void Pop(Queue& queue, SteadyTime now);
  void FinishEntry(int64_t number);

  // Returns what the next command of a queue waits for; rank -1 if it may run (or is not agreed, or waits for the
  // daemon itself).
  Wait GatherWait(int rank) const;
  Wait PushWait(int rank) const;
  Wait CommitWait(int rank, int64_t number, const Queue& queue) const;
  static Holder HolderOf(const Wait& wait) { return {.rank = wait.rank, .command = wait.number}; }
  bool GatherRunnable(int rank) const;
  // Returns true if the rank's gathers before the command are done.
  bool Gathered(int rank, int64_t number) const;
  std::optional<Work> RunnableWork(int rank) const;
  std::optional<Work> CommitWork(int rank) const;
  std::optional<Work> DecidedWork(int rank) const;
  bool AllAt(Stage stage) const;
  std::optional<ClientStates> FinishRank(int rank, SteadyTime now);
  std::optional<Wait> Missing() const;
  // Returns the only rank that is missing, -1 if there are several or none. OnlyMissing: the rank that has not written
  // a word as far as `number`; OnlyMissingCommand: the rank that has not sent what is next in a queue of the waiting
  // rank; OnlyUnsummed: the rank whose trainer keeps it from a commit's sum.
  int OnlyMissing(uint32_t (TrainerWords::*word)(int rank, int slot) const, int slot, int64_t number) const;
  int OnlyMissingCommand(int waiting) const;
  int OnlyUnsummed() const;
  std::vector<Wait> Waits() const;
  // Describes what is missing.
  std::string Describe(const Wait& wait) const;
  // Returns true if the commit is answered already, or will be: its answer stands, there is nothing to do.
  bool Repeats(const v1::Command& command) const;

  const Options options_;
  const TrainerWords* words_;

  std::deque<Entry> entries_;
  CommandChain chain_;
  size_t bytes_ = 0;          // of entries_
  int64_t first_number_ = 1;  // of entries_.front()
  std::vector<int64_t> received_;
  std::vector<Queue> gathers_, pushes_;
  std::vector<int64_t> slot_users_;  // last gather number by slot
  StepPushes step_pushes_;           // since the last commit that was taken
  std::deque<int64_t> commits_;      // command numbers of unanswered commits
  int64_t last_commit_;              // highest commit number taken
  std::vector<Stage> stages_;        // of commits_.front()
  VoteState vote_ = VoteState::kNone;
  AmaxState amaxes_ = AmaxState::kUnneeded;
  bool stopped_ = false;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_TRAINING_SEQUENCE_H_
