// Reads what a writer that has died left in a journal.
#ifndef PARAMSHARD_SERVER_JOURNAL_JOURNAL_READER_H_
#define PARAMSHARD_SERVER_JOURNAL_JOURNAL_READER_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/journal/journal_codec.h"
#include "server/journal/journal_content.h"
#include "server/journal/journal_layout.h"

namespace paramshard::server {

// The bytes may be anything: whatever is read of them was in bounds, had its hash, and is what an encoder writes. An
// error is DATA_LOSS and names what it is about. Keeps a copy of the bytes: those that are checked are those that are
// used, whoever writes meanwhile.
class JournalReader {
 public:
  // FAILED_PRECONDITION a journal of another version of the format, newer or older, which this program cannot read: it
  // is whole, and is to be left alone. Of memory in which no journal was begun, or not to its end, begun() is false, and
  // nothing else may be asked.
  static absl::StatusOr<JournalReader> Open(absl::Span<const uint8_t> bytes);

  bool begun() const { return begun_; }
  const JournalIdentity& identity() const { return identity_; }
  const JournalShape& shape() const { return shape_; }
  const JournalLayout& layout() const { return layout_; }

  absl::StatusOr<LifecycleRecord> Lifecycle() const;
  absl::StatusOr<JournalEpoch> Epoch() const;
  // As it is stored, and with histories and client states.
  absl::StatusOr<NumbersRecord> StoredNumbers() const;
  absl::StatusOr<JournalNumbers> Numbers(const NumbersRecord& record) const;
  absl::StatusOr<PreparedRecord> Prepared() const;
  absl::StatusOr<std::vector<std::string>> ClientStates(int64_t commit_number, const ClientStatesRef& ref) const;
  absl::StatusOr<DecidedRecord> Decided() const;
  // How far a rank of this daemon is with applying a commit that was decided.
  absl::StatusOr<RankProgress> Progress(int rank, int64_t commit_number) const;

  // The number of the record that holds, which is the one that is published but where the lifecycle names another; null
  // where there is none.
  std::optional<uint32_t> Sequence(JournalRecord record) const;

 private:
  explicit JournalReader(absl::Span<const uint8_t> bytes) : bytes_(bytes.begin(), bytes.end()) {}
  absl::Status Read();
  absl::Status ReadHeader();
  absl::Status ReadIdentity();
  void ReadChanged();
  uint64_t Word(int64_t offset) const;
  // The bytes of the record that holds.
  absl::StatusOr<absl::Span<const uint8_t>> Bytes(JournalRecord record) const;
  absl::StatusOr<LaneProgress> Lane(int rank, int lane, int64_t commit_number) const;
  absl::StatusOr<int32_t> Mark(int64_t offset, int64_t commit_number) const;
  // The value at a place of the ring that begins with the `first`-th value of all.
  float RingValue(int64_t first, int64_t place) const;
  absl::Status CheckWindows(const NumbersRecord& record) const;

  std::vector<uint8_t> bytes_;
  bool begun_ = false;
  JournalShape shape_;
  JournalLayout layout_;
  JournalIdentity identity_;
  std::optional<LifecycleRecord> changed_;  // set where it names records
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_JOURNAL_JOURNAL_READER_H_
