// Encoding of a journal's records. Decoding rejects bytes that no encoder writes.
#ifndef PARAMSHARD_SERVER_JOURNAL_JOURNAL_CODEC_H_
#define PARAMSHARD_SERVER_JOURNAL_JOURNAL_CODEC_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/numeric/int128.h"
#include "absl/types/span.h"
#include "server/journal/journal_bytes.h"
#include "server/journal/journal_content.h"
#include "server/journal/journal_layout.h"

namespace paramshard::server {

enum class JournalLifecycle : uint8_t {
  kCreating,
  kChanging,
  kUsable,
  // Usable, with the numbers and the epoch that this record names instead of the published ones. 3 is not used.
  kChanged = 4,
};

// Size and hash of a commit's client states, and of its data for readers, which follows them. They lie in one of two
// places, chosen by the commit number modulo 2.
struct ClientStatesRef {
  int64_t size_bytes = 0;
  absl::uint128 hash = 0;
  friend bool operator==(const ClientStatesRef&, const ClientStatesRef&) = default;
};

struct LifecycleRecord {
  JournalLifecycle lifecycle = JournalLifecycle::kCreating;
  ChangeSource source;  // for kChanging
  // Sequence numbers of records, for kChanged.
  uint32_t numbers = 0;
  uint32_t epoch = 0;
};

// Window of a ring that holds a history: `filled` values that end at `newest`, and zeros before them.
struct RingWindow {
  bool exists = false;
  float next_scale = 1.0f;
  uint32_t newest = 0;
  uint32_t filled = 0;
};

struct NumbersRecord {
  struct Scaling {
    float amax = 0.0f;
    float scale = 1.0f;
    float offered = -1.0f;
    bool stepped = false;
    bool is_fresh = true;
    RingWindow window;
  };

  int64_t commit_number = 0;
  int64_t version = 0;
  int64_t skipped = 0;
  int64_t generation = 0;
  std::optional<CommitAnswer> last_answer;
  ClientStatesRef client_states;
  uint64_t rings_hash = 0;  // of the values of all windows
  std::vector<int64_t> positions;
  std::vector<int64_t> steps;
  std::vector<Scaling> scalings;
};

// Identity of a commit: its number alone may belong to an earlier epoch or another history, which is over.
struct CommitKey {
  HistoryId history;
  int64_t epoch = 0;
  int64_t commit_number = -1;  // -1: none
  friend bool operator==(const CommitKey&, const CommitKey&) = default;
};

struct PreparedRecord {
  CommitKey key;
  PreparedCommit commit;  // without client states and data for readers
  ClientStatesRef client_states;
};

struct DecidedRecord {
  CommitKey key;
  DecidedCommit commit;
};

// Smallest sizes of an identity's parts. Parts without a name have exactly this size.
inline constexpr int64_t kPieceBytes = 4 + 8;
inline constexpr int64_t kExtentBytes = 2 * 4 + 2 * 8 + kJournalArrays * 8 + 8;
inline constexpr int64_t kBandBytes = 2 * 4 + 8;
inline constexpr int64_t kRankBytes = 5 * 4 + 8;
inline constexpr int64_t kBookParameterBytes = 2 * 4 + 8;

void Encode(const JournalIdentity& identity, JournalBytes& bytes);
void Encode(const LifecycleRecord& record, JournalBytes& bytes);
void Encode(const JournalEpoch& record, JournalBytes& bytes);
void Encode(const NumbersRecord& record, JournalBytes& bytes);
void Encode(const PreparedRecord& record, JournalBytes& bytes);
void Encode(const DecidedRecord& record, JournalBytes& bytes);
void EncodeClientStates(absl::Span<const std::string> states, const std::string& reader_data, JournalBytes& bytes);
// Returns the size and hash of these bytes.
ClientStatesRef RefOf(const JournalBytes& client_states);

// Return false for invalid bytes and for other counts.
bool Decode(absl::Span<const uint8_t> bytes, JournalIdentity& identity);
bool Decode(absl::Span<const uint8_t> bytes, LifecycleRecord& record);
bool Decode(absl::Span<const uint8_t> bytes, JournalEpoch& record);
bool Decode(absl::Span<const uint8_t> bytes, const JournalShape& shape, NumbersRecord& record);
bool Decode(absl::Span<const uint8_t> bytes, const JournalShape& shape, PreparedRecord& record);
bool Decode(absl::Span<const uint8_t> bytes, DecidedRecord& record);
bool DecodeClientStates(absl::Span<const uint8_t> bytes, const JournalShape& shape, std::vector<std::string>& states,
                        std::string& reader_data);

// Largest size of a record, and of the client states of a commit.
int64_t RecordCapacity(JournalRecord record, const JournalShape& shape);
int64_t ClientStatesCapacity(const JournalShape& shape);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_JOURNAL_JOURNAL_CODEC_H_
