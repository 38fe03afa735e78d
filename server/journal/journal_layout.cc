#include "server/journal/journal_layout.h"

#include <xxhash.h>

#include "absl/strings/str_cat.h"
#include "kernels/base/align.h"
#include "server/journal/journal_codec.h"

namespace paramshard::server {
namespace {

// Parts written by different threads, or at different times, share no cache line.
constexpr int64_t kAlignment = 64;

// Largest count and size in a journal, so that sums of them fit int64.
constexpr int64_t kMostOfAnything = int64_t{1} << 40;

}  // namespace

const char* JournalRecordName(JournalRecord record) {
  static constexpr const char* kNames[kJournalRecords] = {"lifecycle", "epoch", "numbers", "prepared commit",
                                                          "decided commit"};
  return kNames[static_cast<int>(record)];
}

JournalShape ShapeOf(const JournalIdentity& identity, int64_t identity_bytes) {
  JournalShape shape{.ranks = static_cast<int64_t>(identity.ranks.size()),
                     .parameters = identity.parameters,
                     .groups = identity.groups,
                     .scalings = static_cast<int64_t>(identity.book.size()),
                     .client_state_bytes = identity.client_state_bytes,
                     .identity_bytes = identity_bytes};
  for (const JournalIdentity::BookParameter& parameter : identity.book) {
    if (parameter.history_length > 0) shape.ring_values += parameter.history_length + 1;
  }
  return shape;
}

absl::StatusOr<JournalLayout> JournalLayout::Of(const JournalShape& shape) {
  const bool plausible = shape.ranks >= 1 && shape.ranks <= kMostJournalRanks && shape.parameters >= 0 &&
                         shape.parameters <= (int64_t{1} << 31) && shape.groups >= 0 &&
                         shape.groups <= (int64_t{1} << 20) && shape.scalings >= 0 &&
                         shape.scalings <= (int64_t{1} << 31) && shape.ring_values >= 0 &&
                         shape.ring_values <= kMostOfAnything && shape.client_state_bytes >= 0 &&
                         shape.client_state_bytes <= (int64_t{1} << 24) && shape.identity_bytes >= 0 &&
                         shape.identity_bytes <= kMostOfAnything;
  if (!plausible) return absl::InvalidArgumentError("journal: invalid counts");
  JournalLayout layout;
  int64_t end = 0;
  const auto place = [&end](int64_t size) {
    const int64_t begin = end;
    end = AlignUp(end + size, kAlignment);
    return begin;
  };
  constexpr auto kSlotHeader = static_cast<int64_t>(sizeof(JournalSlotHeader));
  place(sizeof(JournalHeader));
  layout.identity = place(kSlotHeader + shape.identity_bytes);
  for (int i = 0; i < kJournalRecords; ++i) {
    Record& record = layout.records[i];
    record.capacity = RecordCapacity(static_cast<JournalRecord>(i), shape);
    record.word = place(sizeof(uint64_t));
    for (int64_t& slot : record.slots) slot = place(kSlotHeader + record.capacity);
  }
  layout.states_capacity = ClientStatesCapacity(shape);
  for (int64_t& states : layout.states) states = place(layout.states_capacity);
  layout.marks = place(shape.ranks * kMarkBytesPerRank);
  layout.rings = place(shape.ring_values * static_cast<int64_t>(sizeof(float)));
  layout.size_bytes = end;
  return layout;
}

absl::uint128 JournalHash(absl::Span<const uint8_t> bytes, uint64_t seed) {
  const XXH128_hash_t hash = XXH3_128bits_withSeed(bytes.data(), bytes.size(), seed);
  return absl::MakeUint128(hash.high64, hash.low64);
}

}  // namespace paramshard::server
