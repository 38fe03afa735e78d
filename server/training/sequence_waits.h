// Waits of an epoch's ranks for trainers: which trainer holds what up, and since when.
#ifndef PARAMSHARD_SERVER_TRAINING_SEQUENCE_WAITS_H_
#define PARAMSHARD_SERVER_TRAINING_SEQUENCE_WAITS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/model/model_spec.h"
#include "server/base/clock.h"
#include "server/training/commit_stages.h"
#include "server/training/equal_commands.h"
#include "server/training/gather_queues.h"
#include "server/training/push_groups.h"
#include "server/training/step_ends.h"

namespace paramshard::server {

// The words that trainers write. Ranks are the daemon's own, from 0.
class TrainerWords {
 public:
  virtual ~TrainerWords() = default;
  virtual uint32_t Released(int rank, int slot) const = 0;
  virtual uint32_t Filled(int rank, int slot) const = 0;
};

// A view: it says what queues, stages and words are now. Not thread-safe.
class SequenceWaits {
 public:
  // A wait of a rank for a trainer.
  struct Wait {
    enum class Kind : uint8_t { kCommand, kRelease, kGradients };

    int rank = -1;  // waited for; -1 none
    Kind kind = Kind::kCommand;
    int slot = 0;        // to be released, or of gradients
    int64_t number = 0;  // of the command that is missing or held back
    int sender = -1;     // rank whose command that is; -1: the one that is waited for
    const v1::Command* command = nullptr;
    bool lacks_memory = false;  // of the daemon, to copy the push out of its slot meanwhile
    SteadyTime since;
  };

  // The trainer that is waited for; rank -1: none.
  struct Holder {
    int rank = -1;
    int64_t command = 0;
    friend bool operator==(const Holder&, const Holder&) = default;
  };
  static Holder HolderOf(const Wait& wait) { return {.rank = wait.rank, .command = wait.number}; }

  // All references outlive this.
  struct Facts {
    const ModelSpec& spec;
    int ranks = 1;
    int first_rank = 0;  // of the world, for messages
    absl::Duration timeout;
    bool equal_commands = false;
    const GatherQueues& gathers;
    const PushGroups& groups;
    const StepEnds& ends;
    const EqualCommands& equal;
    const CommitStages& stages;
    const std::vector<int64_t>& received;              // by rank: the number of the last command
    const std::vector<char>& closed;                   // by rank: it sends no more
    const std::vector<SteadyTime>& pushes_changed_at;  // by rank
    const TrainerWords& words;
  };
  explicit SequenceWaits(const Facts& facts) : facts_(facts) {}

  // Returns true if the commits before the rank's present step are answered.
  bool MayBegin(int rank) const { return facts_.ends.commits_answered() >= facts_.ends.commits_done(rank); }
  // Returns true if the rank has pushes of the step left to sum.
  bool HasPushes(int rank, int64_t step) const;
  // Returns true if the rank has sent its push, and filled its slot.
  bool IsFilled(const PushGroup& group, int rank) const;
  // Returns true if the rank makes no push of the group.
  bool IsAbsent(const PushGroup& group, int rank) const;
  bool IsComplete(const PushGroup& group) const;

  // Return what the next command of a queue waits for; rank -1 if it may run, or waits for the daemon itself.
  Wait OfGather(int rank, const QueuedGather& gather) const;
  Wait OfGather(int rank) const;
  Wait OfPush(int rank) const;

  // Returns DEADLINE_EXCEEDED naming rank and command if a rank has kept another waiting for longer than the timeout.
  absl::Status Overdue(SteadyTime now) const;
  // Returns when Overdue should be asked again; kNever if no rank waits.
  SteadyTime NextDeadline() const;
  // Sets, by rank, true if it alone is what the others wait for: its push, commit or discard, where all others have sent
  // theirs, or its gradients, where all others have filled their slots. Ranks that are late together do not count, nor
  // does a rank that has not sent a push of a unit from which ranks are absent.
  void FindLateRanks(std::vector<char>& late) const;
  // Describes what holds back the rank's next command; empty when nothing does.
  std::string Describe(int rank) const;

 private:
  // Returns true if the gradients of all ranks that have sent the push are read out of their slots.
  bool IsLanded(const PushGroup& group) const;
  // Returns true if gradients of it wait in their slot because there was no memory to land them.
  bool LacksMemory(const PushGroup& group) const;
  Wait OfGroup(int rank, const PushGroup& group) const;
  Wait OfCommit(int rank, const StepEnd& end) const;
  // Returns the wait for the first commit or discard that a rank has not sent; where commands are equal, for the first
  // command.
  Wait Missing() const;
  std::vector<Wait> All() const;
  // Says what is missing.
  std::string Text(const Wait& wait) const;
  std::string TextWithRank(const Wait& wait) const;

  const Facts facts_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_TRAINING_SEQUENCE_WAITS_H_
