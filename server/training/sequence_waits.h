// Waits of an epoch's ranks for trainers: which trainer holds what up, and since when.
#ifndef PARAMSHARD_SERVER_TRAINING_SEQUENCE_WAITS_H_
#define PARAMSHARD_SERVER_TRAINING_SEQUENCE_WAITS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/model/model_spec.h"
#include "server/base/clock.h"
#include "server/training/command_queues.h"
#include "server/training/commit_stages.h"

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
    int slot = 0;        // to be released
    int64_t number = 0;  // of the command that is missing or held back
    SteadyTime since;
  };

  // The trainer that is waited for; rank -1: none.
  struct Holder {
    int rank = -1;
    int64_t command = 0;
    friend bool operator==(const Holder&, const Holder&) = default;
  };
  static Holder HolderOf(const Wait& wait) { return {.rank = wait.rank, .command = wait.number}; }

  // All outlive this. `first_rank`: of the world, for messages.
  SequenceWaits(const ModelSpec& spec, int first_rank, absl::Duration timeout, const CommandQueues& queues,
                const CommitStages& stages, const TrainerWords& words)
      : spec_(spec), first_rank_(first_rank), timeout_(timeout), queues_(queues), stages_(stages), words_(words) {}

  // Return what the next command of a queue waits for; rank -1 if it may run (or is not agreed, or waits for the daemon
  // itself).
  Wait OfGather(int rank) const;
  Wait OfPush(int rank) const;

  // Returns DEADLINE_EXCEEDED naming rank and command if a rank has kept another waiting for longer than the timeout.
  absl::Status Overdue(SteadyTime now) const;
  // Returns when Overdue should be asked again; kNever if no rank waits.
  SteadyTime NextDeadline() const;
  // Sets, by rank, true if it alone is what the others wait for: its command or its gradients, where all others have
  // sent theirs, or its release of a slot, where all others have released it. Ranks that are late together do not
  // count.
  void FindLateRanks(std::vector<char>& late) const;
  // Describes what holds back the rank's next command; empty when nothing does.
  std::string Describe(int rank) const;

 private:
  Wait OfCommit(int rank, int64_t number) const;
  std::optional<Wait> Missing() const;
  std::vector<Wait> All() const;
  // Returns the only rank that has not written a word as far as `number`; -1 if there are several or none.
  int OnlyMissing(uint32_t (TrainerWords::*word)(int rank, int slot) const, int slot, int64_t number) const;
  // Returns the only rank that has not sent what is next in a queue of the waiting rank.
  int OnlyMissingCommand(int waiting) const;
  // Says what is missing.
  std::string Text(const Wait& wait) const;
  std::string TextWithRank(const Wait& wait) const;

  const ModelSpec& spec_;
  const int first_rank_;
  const absl::Duration timeout_;
  const CommandQueues& queues_;
  const CommitStages& stages_;
  const TrainerWords& words_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_TRAINING_SEQUENCE_WAITS_H_
