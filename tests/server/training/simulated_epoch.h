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
#include <tuple>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/model/layout.h"
#include "common/model/model_spec.h"
#include "paramshard/v1/trainer.pb.h"
#include "server/training/sequence.h"

namespace paramshard::server {

// Commands of the ranks: each its own, or equal ones.
enum class SimulatedCommands { kOwn, kEqual, kEqualGatheredTogether };

// The programs of the trainers, which are otherwise random.
struct SimulationSize {
  int ranks = 1;
  int commands = 10;  // of each rank, about
  int first_rank = 0;
  SimulatedCommands kind = SimulatedCommands::kOwn;
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
  // The k-th push of a unit in a step.
  struct Key {
    int step = 0;
    int unit = 0;
    int ordinal = 0;
    friend auto operator<=>(const Key&, const Key&) = default;
  };
  // A command of a rank's program, with what the rules say of it.
  struct Planned {
    v1::Command command;
    int64_t commit_before = 0;  // the last commit number before it
    int64_t user_before = 0;    // the command before it that used the same slot; 0: none
    Key key;                    // of a push; of other commands: the step
    bool ends_step = false;
  };
  struct Trainer {
    std::vector<Planned> program;
    int sent = 0;                  // commands
    std::map<int64_t, int> ready;  // gather -> ranks whose pieces have come
    std::set<int64_t> released;    // gathers
    std::set<int64_t> filled;      // pushes
    std::vector<uint32_t> released_words, filled_words;
    std::map<int64_t, std::string> client_states;  // by commit number
    std::vector<int64_t> drained;                  // by gradient slot
    std::map<int64_t, std::set<int>> readers;      // push -> ranks that have landed or summed it
    int ends_sent = 0;
  };
  // One rank's threads and planes.
  struct Rank {
    std::vector<std::deque<int64_t>> gathers;  // under way, by target
    std::vector<std::set<int64_t>> served;     // by target
    std::optional<Sequence::Work> work;
    Key key;                                   // of a push under way
    int source = 0;                            // of one that is landed
    int64_t landing = 0;                       // and its number
    int64_t commit = 0;                        // of a stage under way
    std::set<std::pair<int, int64_t>> landed;  // ranks and numbers of pushes
    std::vector<Key> accumulated;              // pushes since the last commit or discard
    int step = 0;                              // ends that it has done
    bool summed = false;
    int64_t applied = 0;  // last commit number in the masters
    int64_t encoded = 0;  // and in the planes
  };
  using Event = std::function<void()>;

  uint32_t Released(int rank, int slot) const override { return trainers_[rank].released_words[slot]; }
  uint32_t Filled(int rank, int slot) const override { return trainers_[rank].filled_words[slot]; }

  // The programs.
  void WritePrograms(int commands, int64_t commit_number);
  void Append(Trainer& trainer, v1::Command command, int step);
  std::optional<v1::Command> RandomCommand(const Trainer& trainer, int step);
  const Planned& At(int rank, int64_t number) const { return trainers_[rank].program[number - 1]; }
  // Returns a rank's push of that key; null if it makes none.
  const Planned* PushOf(int rank, const Key& key) const;
  bool SentByAll(int64_t number) const;
  bool is_own() const { return kind_ == SimulatedCommands::kOwn; }
  bool together() const { return kind_ == SimulatedCommands::kEqualGatheredTogether; }

  std::vector<Event> Events();
  void AddTrainerEvents(int rank, std::vector<Event>& events);
  void AddDaemonEvents(int rank, std::vector<Event>& events);

  void Send(int rank);
  void Release(int rank, int64_t number);
  void Fill(int rank, int64_t number);
  void BeginGather(int rank);
  void FinishGather(int rank, int target);
  void BeginPush(int rank);
  // Returns the pushes of a step, of all ranks, in order.
  std::vector<Key> PushesOf(int step) const;
  void BeginReduce(int rank, const Sequence::PushWork& work);
  void BeginLand(int rank, const Sequence::PushWork& work);
  void CheckStepDone(int rank) const;
  void CheckSum(int rank, const v1::Command& command) const;
  void CheckVote(const v1::Command& command) const;
  void CheckApply(int rank, const v1::Command& command) const;
  void CheckShareAmaxes(const v1::Command& command) const;
  void CheckEncode(int rank, const v1::Command& command) const;
  void FinishPush(int rank);
  void NoteRead(int owner, int source, int64_t number);
  void TakeDrained(const std::vector<DrainedSlot>& drained);
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
  const SimulatedCommands kind_;
  std::vector<Trainer> trainers_;
  std::vector<Rank> ranks_;
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
