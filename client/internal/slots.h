// Books of the slots in a session's memory. Choices follow from the order of the trainer's calls alone, never from time:
// ranks that run the same program choose the same slots, as engines between daemons need it.
#ifndef PARAMSHARD_CLIENT_INTERNAL_SLOTS_H_
#define PARAMSHARD_CLIENT_INTERNAL_SLOTS_H_

#include <cstdint>
#include <optional>
#include <vector>

namespace paramshard::internal {

// Slots that gathers fill. A slot is held from a gather's issue until its handle is released.
class GatherSlots {
 public:
  // The first `ring_slots` serve any unit that fits; the rest are residents' own.
  GatherSlots(std::vector<int64_t> slot_bytes, int ring_slots);

  // The lowest free slot of the ring with at least `bytes`.
  std::optional<int> FindFree(int64_t bytes) const;
  // The same among slots of the smallest size that holds `bytes`: a gather that is issued ahead must
  // not take a large slot from a unit that needs it.
  std::optional<int> FindFreeOfClass(int64_t bytes) const;
  // Returns the slots of the ring, free or not, that hold `bytes`. Fits: there are any.
  std::vector<int> Fitting(int64_t bytes) const;
  bool Fits(int64_t bytes) const { return !Fitting(bytes).empty(); }

  bool held(int slot) const { return holders_[slot].has_value(); }
  void Hold(int slot, int unit) { holders_[slot] = unit; }
  void Release(int slot) { holders_[slot].reset(); }

  // Units that hold slots, residents' own included, in slot order. HoldersOf: only of `slots`.
  std::vector<int> Holders() const;
  std::vector<int> HoldersOf(const std::vector<int>& slots) const;

 private:
  std::vector<int64_t> slot_bytes_;
  int ring_slots_;
  std::vector<std::optional<int>> holders_;  // units
};

// Slots that the trainer fills with gradients. The time when a slot has drained depends on the
// daemon, so the choice is the slot that was pushed longest ago; the caller waits until that push has
// drained.
class GradientSlots {
 public:
  explicit GradientSlots(std::vector<int64_t> slot_bytes);

  // Returns the free slot of at least `bytes` whose last push has the smallest number; the lowest
  // slot among slots that were never pushed.
  std::optional<int> FindOldest(int64_t bytes) const;

  void Hold(int slot, int unit) { slots_[slot].holder = unit; }
  // Gives back a slot that was not pushed.
  void Release(int slot) { slots_[slot].holder.reset(); }
  // Gives a slot to push `number`.
  void Push(int slot, int64_t number);
  // 0 before the first.
  int64_t last_push(int slot) const { return slots_[slot].last_push; }

  // Units that hold slots, in slot order.
  std::vector<int> Holders() const;

 private:
  struct Slot {
    int64_t bytes = 0;
    int64_t last_push = 0;
    std::optional<int> holder;  // unit
  };
  std::vector<Slot> slots_;
};

}  // namespace paramshard::internal

#endif  // PARAMSHARD_CLIENT_INTERNAL_SLOTS_H_
