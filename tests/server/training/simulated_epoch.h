// One epoch of a model in which everything but the Sequence is played: trainers that behave, and the daemon's threads.
//
// Every event (a trainer sends a command or writes a word, a thread begins or ends a piece of work) is chosen at random
// among those that could happen, and checked against what docs/internals/architecture.md says of a step. The simulation
// keeps its own books: it believes nothing that the sequence says. Broken contracts are GoogleTest failures.
#ifndef PARAMSHARD_TESTS_SERVER_TRAINING_SIMULATED_EPOCH_H_
#define PARAMSHARD_TESTS_SERVER_TRAINING_SIMULATED_EPOCH_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/model/layout.h"
#include "common/model/model_spec.h"
#include "paramshard/v1/trainer.pb.h"
#include "server/training/sequence.h"

namespace paramshard::server {

// The program of all trainers, which is otherwise random.
struct SimulationSize {
  int ranks = 1;
  int commands = 10;
  int first_rank = 0;
};

class SimulatedEpoch : private TrainerWords {
 public:
  static constexpr absl::Duration kStepTimeout = absl::Seconds(60);

  // `layout` and `random` outlive the epoch. `commit_number` commits were answered before.
  SimulatedEpoch(const Layout* layout, const SimulationSize& size, int64_t commit_number, std::mt19937_64* random);

  const Layout& layout() const { return layout_; }

  // Lets one event happen; returns false when none can.
  bool Step();
  // The trainer does nothing any more.
  void Hang(int rank) { hung_ = rank; }
  // The daemon ends the epoch.
  void Stop();

  // All commands were sent by all, carried out, and their memory is free.
  void ExpectComplete() const;
  // After Stop, when no event is left: nothing is under way, and the last commit was applied by all or by none.
  void ExpectQuiet() const;
  // Called when no event is left because a trainer hangs: the trainer that is waited for is named.
  void ExpectHungIsNamed() const;

  // Stop was called, or a vote failed.
  bool stopped() const { return stopped_; }
  // Commits answered, those before the epoch included.
  int64_t commit_number() const { return answered_; }

 private:
  struct Trainer {
    int sent = 0;                  // commands
    std::map<int64_t, int> ready;  // gather -> ranks whose pieces have come
    std::set<int64_t> released;    // gathers
    std::set<int64_t> filled;      // pushes
    std::vector<uint32_t> released_words, filled_words;
    std::map<int64_t, std::string> client_states;  // by commit number
  };
  // One rank's threads and planes.
  struct Rank {
    std::deque<int64_t> gathers;  // under way
    std::optional<Sequence::Work> work;
    v1::Command work_command;
    std::set<int64_t> begun, gathered;  // gathers
    std::set<int64_t> reduced, discarded;
    std::vector<int64_t> accumulated;  // pushes since the last commit or discard
    bool summed = false;
    int64_t applied = 0;  // last commit number in the masters
    int64_t encoded = 0;  // and in the planes
  };
  using Event = std::function<void()>;

  uint32_t Released(int rank, int slot) const override { return trainers_[rank].released_words[slot]; }
  uint32_t Filled(int rank, int slot) const override { return trainers_[rank].filled_words[slot]; }

  // The program.
  void WriteProgram(int commands, int64_t commit_number);
  v1::Command RandomGather(int64_t number);
  bool MayPush() const;
  v1::Command RandomPush(int64_t number);
  const v1::Command& At(int64_t number) const { return program_[number - 1]; }
  bool NewCommit(int64_t number) const { return new_commits_.contains(number); }
  // The last commit number before a command, and the command before it that used the same slot (0 when none did).
  int64_t CommitBefore(int64_t number) const;
  int64_t UserBefore(int64_t number) const;
  bool SentByAll(int64_t number) const;

  std::vector<Event> Events();
  void AddTrainerEvents(int rank, std::vector<Event>& events);
  void AddDaemonEvents(int rank, std::vector<Event>& events);

  void Send(int rank);
  void Release(int rank, int64_t number);
  void Fill(int rank, int64_t number);
  void BeginGather(int rank);
  void FinishGather(int rank);
  void BeginPush(int rank);
  // Returns the pushes whose gradients a commit or discard finds.
  std::vector<int64_t> PushesBefore(int64_t number) const;
  void CheckDiscard(int rank, const v1::Command& command) const;
  void CheckReduce(int rank, const v1::Command& command) const;
  void CheckSum(int rank, const v1::Command& command) const;
  void CheckVote(const v1::Command& command) const;
  void CheckApply(int rank, const v1::Command& command) const;
  void CheckShareAmaxes(const v1::Command& command) const;
  void CheckEncode(int rank, const v1::Command& command) const;
  void FinishPush(int rank);
  void FinishVote();
  void FinishApply(int rank);
  void FinishEncode(int rank);
  // Returns true if a trainer that keeps to the protocol waits for an answer first.
  bool AheadOfAnswers(const v1::Command& command) const;
  void ExpectAnswer(int64_t commit_number, const std::optional<Sequence::ClientStates>& states);
  void CheckState();

  int Random(int limit) { return static_cast<int>((*random_)() % static_cast<uint64_t>(limit)); }
  bool OneIn(int n) { return Random(n) == 0; }
  int ranks() const { return static_cast<int>(ranks_.size()); }

  const Layout& layout_;
  std::mt19937_64* random_;
  const int first_rank_;
  std::vector<v1::Command> program_;
  StepPushes step_pushes_;         // of the program's last step
  std::set<int64_t> new_commits_;  // command numbers of commits that are no repetition
  std::vector<Trainer> trainers_;
  std::vector<Rank> ranks_;
  std::vector<int64_t> drained_;  // by gradient slot
  Sequence sequence_;
  SteadyTime now_;
  std::optional<int> hung_;
  bool stopped_ = false;
  enum class Vote { kNone, kVoting, kApplies, kGivenUp };
  Vote vote_ = Vote::kNone;
  // Stages of the commit that applies: whether it has the ones that amaxes need, and how far they are.
  enum class Amaxes { kUnneeded, kNeeded, kSharing, kShared };
  Amaxes amaxes_ = Amaxes::kUnneeded;
  int64_t answered_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_TESTS_SERVER_TRAINING_SIMULATED_EPOCH_H_
