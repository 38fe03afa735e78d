#include "server/journal/amax_rings.h"

#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <cstring>

namespace paramshard::server {
namespace {

uint64_t ValueHash(size_t parameter, int64_t place, float value) {
  const auto ring = static_cast<int64_t>(parameter);
  uint8_t bytes[sizeof(ring) + sizeof(place) + sizeof(value)];
  std::memcpy(bytes, &ring, sizeof(ring));
  std::memcpy(bytes + sizeof(ring), &place, sizeof(place));
  std::memcpy(bytes + sizeof(ring) + sizeof(place), &value, sizeof(value));
  return XXH3_64bits(bytes, sizeof(bytes));
}

bool EqualWithSign(float a, float b) { return a == b && std::signbit(a) == std::signbit(b); }

}  // namespace

AmaxRings::AmaxRings(const JournalLayout& layout, absl::Span<const JournalIdentity::BookParameter> book,
                     const uint8_t* journal)
    : journal_(journal) {
  int64_t offset = layout.rings;
  for (const JournalIdentity::BookParameter& parameter : book) {
    const int64_t places = parameter.history_length > 0 ? parameter.history_length + 1 : 0;
    rings_.push_back({.offset = offset, .places = places});
    offset += places * static_cast<int64_t>(sizeof(float));
  }
}

JournalScaling::History AmaxRings::Read(size_t parameter, const RingWindow& window) const {
  JournalScaling::History history{.scale = window.next_scale, .amaxes = {}};
  for (int64_t age = 0; age < window.filled; ++age) {
    history.amaxes.push_back(Value(parameter, PlaceOf(parameter, window, age)));
  }
  history.amaxes.resize(rings_[parameter].places - 1);
  return history;
}

uint64_t AmaxRings::Hash(size_t parameter, const RingWindow& window) const {
  uint64_t hash = 0;
  for (int64_t age = 0; age < window.filled; ++age) {
    const int64_t place = PlaceOf(parameter, window, age);
    hash += ValueHash(parameter, place, Value(parameter, place));
  }
  return hash;
}

// An unchanged history stays where it is: if it moved on, a full one would overwrite places of the published numbers.
// In other histories zeros at the end take no place, so that a history which an import begins takes one place, which
// no old history has.
RingWindow AmaxRings::Replace(size_t parameter, const JournalScaling::History& history, const RingWindow& old,
                              const JournalStores& stores) const {
  RingWindow window = old;
  window.next_scale = history.scale;
  const std::vector<float>& amaxes = history.amaxes;
  if (old.exists && std::ranges::equal(Read(parameter, old).amaxes, amaxes, EqualWithSign)) return window;
  const auto last = std::find_if(amaxes.rbegin(), amaxes.rend(), [](float amax) { return !EqualWithSign(amax, 0.0f); });
  window.exists = true;
  window.filled = static_cast<uint32_t>(amaxes.rend() - last);
  window.newest = static_cast<uint32_t>((old.newest + int64_t{window.filled}) % rings_[parameter].places);
  for (int64_t age = 0; age < window.filled; ++age) {
    stores.Put(OffsetOf(parameter, PlaceOf(parameter, window, age)), amaxes[age]);
  }
  return window;
}

uint64_t AmaxRings::Append(size_t parameter, float amax, RingWindow& window, const JournalStores& stores) const {
  const int64_t places = rings_[parameter].places;
  uint64_t change = 0;
  if (window.filled == places - 1) {
    --window.filled;
    const int64_t oldest = PlaceOf(parameter, window, window.filled);
    change -= ValueHash(parameter, oldest, Value(parameter, oldest));
  }
  window.exists = true;
  window.newest = static_cast<uint32_t>((window.newest + int64_t{1}) % places);
  ++window.filled;
  stores.Put(OffsetOf(parameter, window.newest), amax);
  return change + ValueHash(parameter, window.newest, amax);
}

float AmaxRings::Value(size_t parameter, int64_t place) const {
  float value;
  std::memcpy(&value, journal_ + OffsetOf(parameter, place), sizeof(value));
  return value;
}

}  // namespace paramshard::server
