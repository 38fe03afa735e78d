// Layout of a journal in its memory. Format version 6:
//
//   header    magic, version, counts, hash       written once
//   identity  its bytes, hash                    written once
//   records   for each kind a word and two slots
//   states    client states, and the data for readers, twice: of commits with even and with odd numbers
//   marks     four words for each rank
//   rings     amaxes: for each parameter with a history, one more than its length
//
// A **record** is published by its word, which names a sequence number: the record is in the slot of that parity. The
// next record is written into the other slot, and published by one aligned store of 8 bytes. A dying process tears no
// such store, so a reader finds the old record or the new one. Words contain their number twice, slots a hash of number
// and bytes, so that a flipped bit is found.
#ifndef PARAMSHARD_SERVER_JOURNAL_JOURNAL_LAYOUT_H_
#define PARAMSHARD_SERVER_JOURNAL_JOURNAL_LAYOUT_H_

#include <array>
#include <cstdint>

#include "absl/numeric/int128.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/journal/journal_content.h"

namespace paramshard::server {

inline constexpr uint64_t kJournalMagic = 0x6c6e726a68737071;  // "qpshjrnl"; 0: not written yet
inline constexpr uint32_t kJournalVersion = 6;

inline constexpr int64_t kMostJournalRanks = 4096;
// Largest number of a rank's bands: a mark counts up to 2^16 - 1 bands of a lane.
inline constexpr int64_t kMostJournalBands = 2 * 0xffff;
// Largest size of a change's text.
inline constexpr int64_t kMostSourceBytes = 4 << 10;

enum class JournalRecord : uint8_t { kLifecycle, kEpoch, kNumbers, kPrepared, kDecided };
inline constexpr int kJournalRecords = 5;
const char* JournalRecordName(JournalRecord record);

// Counts from which the layout follows.
struct JournalShape {
  int64_t ranks = 0;
  int64_t parameters = 0;
  int64_t groups = 0;
  int64_t scalings = 0;
  int64_t ring_values = 0;
  int64_t client_state_bytes = 0;
  int64_t identity_bytes = 0;
  friend bool operator==(const JournalShape&, const JournalShape&) = default;
};
JournalShape ShapeOf(const JournalIdentity& identity, int64_t identity_bytes);

// In every version a header begins with magic, version and size, and ends with its hash, so that a program recognizes a
// journal of another version, and takes no damage for one. Any other change of the format needs another version.
struct JournalHeader {
  uint64_t magic = 0;
  uint32_t version = 0;
  uint32_t size_bytes = 0;  // of the header
  JournalShape shape;
  uint64_t hash[2] = {};  // of all before it
};

struct JournalSlotHeader {
  uint64_t word = 0;  // as published
  uint64_t size_bytes = 0;
  uint64_t hash[2] = {};  // of kind, sequence number and bytes
};

// Offsets in bytes, all multiples of 8.
struct JournalLayout {
  struct Record {
    int64_t word = 0;
    std::array<int64_t, 2> slots = {};  // offsets of their headers
    int64_t capacity = 0;               // bytes after a header
  };

  // INVALID_ARGUMENT counts that no journal has.
  static absl::StatusOr<JournalLayout> Of(const JournalShape& shape);

  const Record& of(JournalRecord record) const { return records[static_cast<int>(record)]; }

  int64_t identity = 0;  // of its slot's header
  std::array<Record, kJournalRecords> records = {};
  std::array<int64_t, 2> states = {};  // of commits with even and with odd numbers
  int64_t states_capacity = 0;
  int64_t marks = 0;
  int64_t rings = 0;
  int64_t size_bytes = 0;
};

// Returns the word that publishes the record with this sequence number. A word with a flipped bit is not valid.
constexpr uint64_t PublishedWord(uint32_t sequence) { return sequence | uint64_t{~sequence} << 32; }
constexpr bool IsPublishedWord(uint64_t word) { return word == PublishedWord(static_cast<uint32_t>(word)); }

// Returns the word of a lane with `count` bands, for the apply of this commit.
constexpr uint64_t MarkWord(int64_t commit_number, int count) {
  return PublishedWord(static_cast<uint32_t>(commit_number & 0xffff) << 16 | static_cast<uint32_t>(count));
}
// Increment of a lane's word for each band, for devices that count in words.
inline constexpr uint64_t kMarkStep = uint64_t{1} - (uint64_t{1} << 32);
static_assert(MarkWord(7, 5) == MarkWord(7, 0) + 5 * kMarkStep);
// Size of a rank's marks: begun and done of lane 0, then of lane 1.
inline constexpr int64_t kMarkBytesPerRank = 64;
constexpr int64_t BegunMark(const JournalLayout& layout, int rank, int lane) {
  return layout.marks + rank * kMarkBytesPerRank + lane * 16;
}
constexpr int64_t DoneMark(const JournalLayout& layout, int rank, int lane) {
  return BegunMark(layout, rank, lane) + 8;
}

// Returns the hash of bytes. The seed of a slot is SlotSeed().
absl::uint128 JournalHash(absl::Span<const uint8_t> bytes, uint64_t seed);
constexpr uint64_t SlotSeed(JournalRecord record, uint32_t sequence) {
  return (uint64_t{1} + static_cast<uint64_t>(record)) << 32 | sequence;
}
inline constexpr uint64_t kHeaderSeed = 0;
inline constexpr uint64_t kIdentitySeed = uint64_t{100} << 32;
inline constexpr uint64_t kStatesSeed = uint64_t{101} << 32;

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_JOURNAL_JOURNAL_LAYOUT_H_
