// Reader of a journal that a dead writer has left.
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
#include "server/journal/amax_rings.h"
#include "server/journal/journal_codec.h"
#include "server/journal/journal_content.h"
#include "server/journal/journal_layout.h"

namespace paramshard::server {

// Accepts any bytes: all that it returns was in bounds, has its hash, and is content that an encoder writes. An error
// is DATA_LOSS and names the damaged part. Keeps a copy of the bytes, so that the checked bytes are the used ones even
// if another process writes meanwhile.
class JournalReader {
 public:
  // FAILED_PRECONDITION a journal of another version of the format, newer or older, which this program cannot read: it
  // is whole and must be left alone. If no journal was completely begun in the memory, begun() is false, and no other
  // call is allowed.
  static absl::StatusOr<JournalReader> Open(absl::Span<const uint8_t> bytes);

  bool begun() const { return begun_; }
  const JournalIdentity& identity() const { return identity_; }
  const JournalShape& shape() const { return shape_; }
  const JournalLayout& layout() const { return layout_; }

  absl::StatusOr<LifecycleRecord> Lifecycle() const;
  absl::StatusOr<JournalEpoch> Epoch() const;
  // Return the numbers as stored, and these with histories and client states.
  absl::StatusOr<NumbersRecord> StoredNumbers() const;
  absl::StatusOr<JournalNumbers> Numbers(const NumbersRecord& record) const;
  absl::StatusOr<PreparedRecord> Prepared() const;
  absl::Status ReadClientStates(int64_t commit_number, const ClientStatesRef& ref, std::vector<std::string>& states,
                                std::string& reader_data) const;
  absl::StatusOr<DecidedRecord> Decided() const;
  // Returns how far a rank of this daemon has applied a decided commit.
  absl::StatusOr<RankProgress> Progress(int rank, int64_t commit_number) const;

  // Returns the sequence number of the valid record: the published one, unless the lifecycle names another. Null if
  // there is none.
  std::optional<uint32_t> Sequence(JournalRecord record) const;

 private:
  explicit JournalReader(absl::Span<const uint8_t> bytes) : bytes_(bytes.begin(), bytes.end()) {}
  absl::Status Read();
  absl::Status ReadHeader();
  absl::Status ReadIdentity();
  void ReadChanged();
  uint64_t Word(int64_t offset) const;
  // Returns the bytes of the valid record.
  absl::StatusOr<absl::Span<const uint8_t>> Bytes(JournalRecord record) const;
  absl::StatusOr<LaneProgress> Lane(int rank, int lane, int64_t commit_number) const;
  absl::StatusOr<int32_t> Mark(int64_t offset, int64_t commit_number) const;
  AmaxRings Rings() const { return AmaxRings(layout_, identity_.book, bytes_.data()); }
  absl::Status CheckWindows(const NumbersRecord& record) const;

  std::vector<uint8_t> bytes_;
  bool begun_ = false;
  JournalShape shape_;
  JournalLayout layout_;
  JournalIdentity identity_;
  std::optional<LifecycleRecord> changed_;  // set if it names records
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_JOURNAL_JOURNAL_READER_H_
