#include "client/internal/slots.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace paramshard::internal {

GatherSlots::GatherSlots(std::vector<int64_t> slot_bytes, int ring_slots)
    : slot_bytes_(std::move(slot_bytes)), ring_slots_(ring_slots), holders_(slot_bytes_.size()) {}

std::optional<int> GatherSlots::FindFree(int64_t bytes) const {
  for (int slot = 0; slot < ring_slots_; ++slot) {
    if (!held(slot) && slot_bytes_[slot] >= bytes) return slot;
  }
  return std::nullopt;
}

std::optional<int> GatherSlots::FindFreeOfClass(int64_t bytes) const {
  std::optional<int64_t> size;
  for (int slot = 0; slot < ring_slots_; ++slot) {
    if (slot_bytes_[slot] >= bytes) size = std::min(size.value_or(slot_bytes_[slot]), slot_bytes_[slot]);
  }
  for (int slot = 0; slot < ring_slots_; ++slot) {
    if (!held(slot) && slot_bytes_[slot] == size) return slot;
  }
  return std::nullopt;
}

std::vector<int> GatherSlots::Fitting(int64_t bytes) const {
  std::vector<int> slots;
  for (int slot = 0; slot < ring_slots_; ++slot) {
    if (slot_bytes_[slot] >= bytes) slots.push_back(slot);
  }
  return slots;
}

std::vector<int> GatherSlots::Holders() const {
  std::vector<int> all(holders_.size());
  std::iota(all.begin(), all.end(), 0);
  return HoldersOf(all);
}

std::vector<int> GatherSlots::HoldersOf(const std::vector<int>& slots) const {
  std::vector<int> units;
  for (int slot : slots) {
    if (held(slot)) units.push_back(*holders_[slot]);
  }
  return units;
}

GradientSlots::GradientSlots(std::vector<int64_t> slot_bytes) {
  for (int64_t bytes : slot_bytes) slots_.emplace_back().bytes = bytes;
}

std::optional<int> GradientSlots::FindOldest(int64_t bytes) const {
  std::optional<int> oldest;
  for (int slot = 0; slot < static_cast<int>(slots_.size()); ++slot) {
    if (slots_[slot].holder.has_value() || slots_[slot].bytes < bytes) continue;
    if (!oldest.has_value() || slots_[slot].last_push < slots_[*oldest].last_push) oldest = slot;
  }
  return oldest;
}

void GradientSlots::Push(int slot, int64_t number) {
  slots_[slot].last_push = number;
  slots_[slot].holder.reset();
}

std::vector<int> GradientSlots::Holders() const {
  std::vector<int> units;
  for (const Slot& slot : slots_) {
    if (slot.holder.has_value()) units.push_back(*slot.holder);
  }
  return units;
}

}  // namespace paramshard::internal
