#include "server/observe/event_ring.h"

#include <algorithm>

namespace paramshard::server {

std::vector<Event> EventRing::Read() const {
  const uint64_t end = written();
  std::vector<Event> events;
  events.reserve(std::min<uint64_t>(end, kSlots));
  for (uint64_t number = end < kSlots ? 0 : end - kSlots; number < end; ++number) {
    const Slot& slot = (*slots_)[number % kSlots];
    if (slot.sequence.load(std::memory_order_acquire) != number + 1) continue;
    std::array<int64_t, 5> words;
    for (size_t i = 0; i < words.size(); ++i) words[i] = slot.words[i].load(std::memory_order_acquire);
    if (slot.sequence.load(std::memory_order_relaxed) != number + 1) continue;
    const auto packed = static_cast<uint64_t>(words[0]);
    events.push_back({.kind = static_cast<EventKind>(packed & 0xffU),
                      .edge = static_cast<EventEdge>(packed >> 8U & 0xffU),
                      .peer = static_cast<int>(packed >> 16U & 0xffffU) - 1,
                      .unit = static_cast<int>(packed >> 32U) - 1,
                      .time_ns = words[1],
                      .command = words[2],
                      .commit_number = words[3],
                      .bytes = words[4]});
  }
  return events;
}

}  // namespace paramshard::server
