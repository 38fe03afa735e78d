// Ring of the last events of one thread, in memory of a fixed size.
#ifndef PARAMSHARD_SERVER_OBSERVE_EVENT_RING_H_
#define PARAMSHARD_SERVER_OBSERVE_EVENT_RING_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace paramshard::server {

enum class EventKind : uint8_t {
  kCommand,  // a rank has sent it
  kWait,     // the rank waits for the trainer of `peer` before the command can go on
  kGather,   // the rank's pieces are copied
  kPush,     // gradients are summed
  kDiscard,
  kSum,   // of squares, and the sums that pushes have left
  kVote,  // in all daemons
  kApply,
  kShareAmaxes,  // of all daemons
  kEncode,       // what amaxes were needed for
  kAnswer,       // a commit is told to the trainers
  kHold,         // of a step, by readers; made of Readers' waits, and never in a ring
};
inline constexpr int kEventKinds = 12;

enum class EventEdge : uint8_t { kInstant, kBegin, kEnd };

struct Event {
  EventKind kind = EventKind::kCommand;
  EventEdge edge = EventEdge::kInstant;
  int peer = -1;              // of the daemon's ranks; -1: none
  int unit = -1;              // -1: none
  int64_t time_ns = 0;        // monotonic
  int64_t command = 0;        // its number in the epoch
  int64_t commit_number = 0;  // of a commit; else 0
  int64_t bytes = 0;
};

// One thread writes at a time, and neither waits nor allocates; any number of threads read meanwhile. A slot has a
// sequence number, 0 while it is written: readers leave out a slot that has changed meanwhile.
class EventRing {
 public:
  static constexpr size_t kSlots = 1536;

  EventRing() : slots_(std::make_unique<std::array<Slot, kSlots>>()) {}

  void Write(const Event& event) {
    const uint64_t number = written_.load(std::memory_order_relaxed);
    Slot& slot = (*slots_)[number % kSlots];
    slot.sequence.store(0, std::memory_order_relaxed);
    // A reader that sees one of these words sees the 0, too.
    slot.words[0].store(Pack(event), std::memory_order_release);
    slot.words[1].store(event.time_ns, std::memory_order_release);
    slot.words[2].store(event.command, std::memory_order_release);
    slot.words[3].store(event.commit_number, std::memory_order_release);
    slot.words[4].store(event.bytes, std::memory_order_release);
    slot.sequence.store(number + 1, std::memory_order_release);
    written_.store(number + 1, std::memory_order_release);
  }

  // Returns the events that are still there, the oldest first.
  std::vector<Event> Read() const;
  // Returns how many events there have ever been.
  uint64_t written() const { return written_.load(std::memory_order_acquire); }
  static constexpr size_t SizeBytes() { return sizeof(Slot) * kSlots; }

 private:
  struct Slot {
    std::atomic<uint64_t> sequence = 0;
    std::array<std::atomic<int64_t>, 5> words{};
  };

  // Kind, edge, peer + 1 in 16 bits, unit + 1 in 32 bits.
  static int64_t Pack(const Event& event) {
    return static_cast<int64_t>(static_cast<uint64_t>(event.kind) | static_cast<uint64_t>(event.edge) << 8U |
                                static_cast<uint64_t>(static_cast<uint16_t>(event.peer + 1)) << 16U |
                                static_cast<uint64_t>(static_cast<uint32_t>(event.unit + 1)) << 32U);
  }

  const std::unique_ptr<std::array<Slot, kSlots>> slots_;
  std::atomic<uint64_t> written_ = 0;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_OBSERVE_EVENT_RING_H_
