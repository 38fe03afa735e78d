// One rank's place in an epoch: the memory that its trainer maps, and what the daemon writes and reads there.
#ifndef PARAMSHARD_SERVER_TRAINING_RANK_SLOT_H_
#define PARAMSHARD_SERVER_TRAINING_RANK_SLOT_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/model/layout.h"
#include "common/shared_memory/ring.h"
#include "common/shared_memory/words.h"
#include "server/device/compute_device.h"
#include "server/device/memory.h"
#include "server/terms/commit_log.h"
#include "server/training/sequence.h"
#include "server/training/wakeup.h"

namespace paramshard::server {

// Holds what a trainer maps besides its planes. It is fresh in every epoch.
struct RankSlotMemory {
  static absl::StatusOr<RankSlotMemory> Allocate(ComputeDevice& device, const wire::WordsCounts& counts,
                                                 int64_t slots_bytes);

  Memory slots;
  Memory words;
  std::unique_ptr<Memory::Owner> open_words;  // to the rank's device
};

// Not thread-safe, but for what says so; memory is taken before other threads begin.
class RankSlot {
 public:
  // Returns how many words the page of a model's trainer has.
  static wire::WordsCounts CountsOf(const Layout& layout);

  explicit RankSlot(int rank) : rank_(rank) {}
  RankSlot(const RankSlot&) = delete;
  RankSlot& operator=(const RankSlot&) = delete;

  int rank() const { return rank_; }

  void Take(RankSlotMemory memory, const wire::WordsCounts& counts);
  bool has_memory() const { return ring_.has_value(); }
  const RankSlotMemory& memory() const { return memory_; }
  const wire::Words& words() const { return words_; }

  // Wakes the rank's gather thread. Thread-safe, also before there is memory.
  void Call();
  Wakeup& wakeup() { return wakeup_; }

  // Returns what the trainer has sent since the last call, at most `most` commands. INVALID_ARGUMENT a ring that cannot
  // be read. For the gather thread alone.
  absl::StatusOr<std::vector<SentCommand>> ReadCommands(int most);

  // Thread-safe.
  void PublishReady(int slot, int source, int64_t number) const;
  void PublishDrained(int slot, int64_t number) const;
  void PublishAnswer(const CommitAnswer& answer) const;
  // Fills in the answer of a commit before the trainer comes.
  void WriteAnswer(const CommitAnswer& answer) const;

  // Announces the end on the page, to all that waits there; again, when nothing writes words any more. Does nothing
  // without memory.
  void EndPage(const absl::Status& why) const;
  // Empties the slots, so that a process that still maps them holds no pages.
  void DiscardSlots() { memory_.slots.Discard(); }

  // The rest is guarded by the epoch's mutex.

  // The trainer may send commands: it has been sent `started`.
  bool started = false;
  // Its process is gone or has detached.
  bool gone = false;
  // Its ring is not read for want of room.
  bool held_back = false;
  // It sends no commands after this one, and wants to go.
  std::optional<int64_t> last_command;
  // Nothing that it has sent needs it any more.
  bool left = false;
  // It has heard that it may go.
  bool told = false;

 private:
  const int rank_;  // of the world
  RankSlotMemory memory_;
  wire::Words words_;
  std::optional<wire::RingReader> ring_;
  Wakeup wakeup_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_TRAINING_RANK_SLOT_H_
