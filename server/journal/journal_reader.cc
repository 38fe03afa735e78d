#include "server/journal/journal_reader.h"

#include <cstddef>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"

namespace paramshard::server {
namespace {

absl::Status Damaged(absl::string_view what) {
  return absl::DataLossError(absl::StrCat("journal: its ", what, " is damaged"));
}

bool SameHash(const uint64_t (&stored)[2], absl::uint128 hash) {
  return stored[0] == absl::Uint128Low64(hash) && stored[1] == absl::Uint128High64(hash);
}

// Works for headers of every version.
bool HasHeaderHash(absl::Span<const uint8_t> bytes, size_t header_bytes) {
  uint64_t stored[2];
  if (header_bytes < offsetof(JournalHeader, shape) + sizeof(stored) || header_bytes > bytes.size()) return false;
  const size_t hashed_bytes = header_bytes - sizeof(stored);
  std::memcpy(stored, bytes.data() + hashed_bytes, sizeof(stored));
  return SameHash(stored, JournalHash(bytes.subspan(0, hashed_bytes), kHeaderSeed));
}

absl::Status OtherVersionError(uint32_t version) {
  return absl::FailedPreconditionError(
      absl::StrCat("journal: want format version ", kJournalVersion, ", got ", version, ", of ",
                   version > kJournalVersion ? "a newer" : "an older",
                   " program: start that one again, have it save its models, and restore them with this one"));
}

}  // namespace

absl::StatusOr<JournalReader> JournalReader::Open(absl::Span<const uint8_t> bytes) {
  JournalReader reader(bytes);
  RETURN_IF_ERROR(reader.Read());
  return reader;
}

absl::Status JournalReader::Read() {
  if (bytes_.size() < sizeof(JournalHeader)) return Damaged("header");
  // The magic is the last of the parts that are written once.
  if (Word(offsetof(JournalHeader, magic)) == 0) return absl::OkStatus();
  begun_ = true;
  RETURN_IF_ERROR(ReadHeader());
  RETURN_IF_ERROR(ReadIdentity());
  ReadChanged();
  return absl::OkStatus();
}

// A damaged lifecycle is reported by Lifecycle().
void JournalReader::ReadChanged() {
  const absl::StatusOr<LifecycleRecord> lifecycle = Lifecycle();
  if (lifecycle.ok() && lifecycle->lifecycle == JournalLifecycle::kChanged) changed_ = *lifecycle;
}

absl::Status JournalReader::ReadHeader() {
  JournalHeader header;
  std::memcpy(&header, bytes_.data(), sizeof(header));
  if (header.magic != kJournalMagic) return Damaged("header");
  if (!HasHeaderHash(bytes_, header.size_bytes)) return Damaged("header");
  if (header.version != kJournalVersion) return OtherVersionError(header.version);
  if (header.size_bytes != sizeof(header)) return Damaged("header");
  shape_ = header.shape;
  const absl::StatusOr<JournalLayout> layout = JournalLayout::Of(shape_);
  if (!layout.ok() || layout->size_bytes != static_cast<int64_t>(bytes_.size())) return Damaged("header");
  layout_ = *layout;
  return absl::OkStatus();
}

absl::Status JournalReader::ReadIdentity() {
  JournalSlotHeader slot;
  std::memcpy(&slot, bytes_.data() + layout_.identity, sizeof(slot));
  const auto bytes = absl::MakeConstSpan(bytes_).subspan(layout_.identity + sizeof(slot), shape_.identity_bytes);
  if (slot.word != PublishedWord(0) || slot.size_bytes != bytes.size() ||
      !SameHash(slot.hash, JournalHash(bytes, kIdentitySeed)) || !Decode(bytes, identity_) ||
      !CheckIdentity(identity_).ok() || ShapeOf(identity_, shape_.identity_bytes) != shape_) {
    return Damaged("identity");
  }
  return absl::OkStatus();
}

uint64_t JournalReader::Word(int64_t offset) const {
  uint64_t word;
  std::memcpy(&word, bytes_.data() + offset, sizeof(word));
  return word;
}

std::optional<uint32_t> JournalReader::Sequence(JournalRecord record) const {
  if (changed_.has_value() && record == JournalRecord::kNumbers) return changed_->numbers;
  if (changed_.has_value() && record == JournalRecord::kEpoch) return changed_->epoch;
  const uint64_t word = Word(layout_.of(record).word);
  if (!IsPublishedWord(word)) return std::nullopt;
  return static_cast<uint32_t>(word);
}

absl::StatusOr<absl::Span<const uint8_t>> JournalReader::Bytes(JournalRecord record) const {
  const JournalLayout::Record& place = layout_.of(record);
  const std::optional<uint32_t> sequence = Sequence(record);
  if (!sequence.has_value()) return Damaged(JournalRecordName(record));
  const int64_t offset = place.slots[*sequence % 2];
  JournalSlotHeader slot;
  std::memcpy(&slot, bytes_.data() + offset, sizeof(slot));
  if (slot.word != PublishedWord(*sequence) || slot.size_bytes > static_cast<uint64_t>(place.capacity)) {
    return Damaged(JournalRecordName(record));
  }
  const auto bytes = absl::MakeConstSpan(bytes_).subspan(offset + sizeof(slot), slot.size_bytes);
  if (!SameHash(slot.hash, JournalHash(bytes, SlotSeed(record, *sequence)))) return Damaged(JournalRecordName(record));
  return bytes;
}

absl::StatusOr<LifecycleRecord> JournalReader::Lifecycle() const {
  ASSIGN_OR_RETURN(const absl::Span<const uint8_t> bytes, Bytes(JournalRecord::kLifecycle));
  LifecycleRecord record;
  if (!Decode(bytes, record)) return Damaged(JournalRecordName(JournalRecord::kLifecycle));
  return record;
}

absl::StatusOr<JournalEpoch> JournalReader::Epoch() const {
  ASSIGN_OR_RETURN(const absl::Span<const uint8_t> bytes, Bytes(JournalRecord::kEpoch));
  JournalEpoch record;
  if (!Decode(bytes, record)) return Damaged(JournalRecordName(JournalRecord::kEpoch));
  return record;
}

absl::StatusOr<NumbersRecord> JournalReader::StoredNumbers() const {
  ASSIGN_OR_RETURN(const absl::Span<const uint8_t> bytes, Bytes(JournalRecord::kNumbers));
  NumbersRecord record;
  if (!Decode(bytes, shape_, record)) return Damaged(JournalRecordName(JournalRecord::kNumbers));
  RETURN_IF_ERROR(CheckWindows(record));
  return record;
}

absl::Status JournalReader::CheckWindows(const NumbersRecord& record) const {
  const AmaxRings rings = Rings();
  uint64_t hash = 0;
  for (size_t i = 0; i < identity_.book.size(); ++i) {
    const int64_t length = identity_.book[i].history_length;
    const RingWindow& window = record.scalings[i].window;
    if (length == 0 && window.exists) return Damaged(JournalRecordName(JournalRecord::kNumbers));
    if (length == 0) continue;
    if (window.filled > length || window.newest > length || (!window.exists && window.filled > 0)) {
      return Damaged(JournalRecordName(JournalRecord::kNumbers));
    }
    hash += rings.Hash(i, window);
  }
  return hash == record.rings_hash ? absl::OkStatus() : Damaged("histories of amaxes");
}

absl::StatusOr<JournalNumbers> JournalReader::Numbers(const NumbersRecord& record) const {
  JournalNumbers numbers{.commit_number = record.commit_number,
                         .version = record.version,
                         .skipped = record.skipped,
                         .last_answer = record.last_answer,
                         .client_states = {},
                         .reader_data = {},
                         .steps = record.steps,
                         .positions = record.positions,
                         .scalings = {}};
  RETURN_IF_ERROR(
      ReadClientStates(record.commit_number, record.client_states, numbers.client_states, numbers.reader_data));
  const AmaxRings rings = Rings();
  for (size_t i = 0; i < identity_.book.size(); ++i) {
    const NumbersRecord::Scaling& stored = record.scalings[i];
    JournalScaling& scaling = numbers.scalings.emplace_back(JournalScaling{.amax = stored.amax,
                                                                           .scale = stored.scale,
                                                                           .offered = stored.offered,
                                                                           .stepped = stored.stepped,
                                                                           .is_fresh = stored.is_fresh});
    if (stored.window.exists) scaling.history = rings.Read(i, stored.window);
  }
  if (!CheckNumbers(identity_, numbers).ok()) return Damaged(JournalRecordName(JournalRecord::kNumbers));
  return numbers;
}

absl::StatusOr<PreparedRecord> JournalReader::Prepared() const {
  ASSIGN_OR_RETURN(const absl::Span<const uint8_t> bytes, Bytes(JournalRecord::kPrepared));
  PreparedRecord record;
  if (!Decode(bytes, shape_, record)) return Damaged(JournalRecordName(JournalRecord::kPrepared));
  return record;
}

absl::Status JournalReader::ReadClientStates(int64_t commit_number, const ClientStatesRef& ref,
                                             std::vector<std::string>& states, std::string& reader_data) const {
  states.assign(shape_.ranks, "");
  reader_data.clear();
  JournalBytes none;
  EncodeClientStates(states, reader_data, none);
  if (ref == RefOf(none)) return absl::OkStatus();  // the writer stores empty states late
  if (ref.size_bytes < 0 || ref.size_bytes > layout_.states_capacity) return Damaged("client states");
  const auto bytes = absl::MakeConstSpan(bytes_).subspan(layout_.states[commit_number % 2 != 0], ref.size_bytes);
  if (JournalHash(bytes, kStatesSeed) != ref.hash || !DecodeClientStates(bytes, shape_, states, reader_data)) {
    return Damaged(absl::StrCat("client states of commit ", commit_number));
  }
  return absl::OkStatus();
}

absl::StatusOr<DecidedRecord> JournalReader::Decided() const {
  ASSIGN_OR_RETURN(const absl::Span<const uint8_t> bytes, Bytes(JournalRecord::kDecided));
  DecidedRecord record;
  if (!Decode(bytes, record)) return Damaged(JournalRecordName(JournalRecord::kDecided));
  return record;
}

absl::StatusOr<RankProgress> JournalReader::Progress(int rank, int64_t commit_number) const {
  RankProgress progress;
  for (int lane = 0; lane < kBandLanes; ++lane) {
    ASSIGN_OR_RETURN(progress[lane], Lane(rank, lane, commit_number));
  }
  return progress;
}

absl::StatusOr<LaneProgress> JournalReader::Lane(int rank, int lane, int64_t commit_number) const {
  LaneProgress progress;
  ASSIGN_OR_RETURN(progress.begun, Mark(BegunMark(layout_, rank, lane), commit_number));
  ASSIGN_OR_RETURN(progress.done, Mark(DoneMark(layout_, rank, lane), commit_number));
  const int bands = LaneBands(identity_.ranks[rank], lane);
  if (progress.done > bands || progress.begun > bands || progress.begun > progress.done + 1) {
    return Damaged("mark of a lane");
  }
  return progress;
}

absl::StatusOr<int32_t> JournalReader::Mark(int64_t offset, int64_t commit_number) const {
  const uint64_t word = Word(offset);
  const auto count = static_cast<int32_t>(word & 0xffff);
  if (word != MarkWord(commit_number, count)) return Damaged("mark of a lane");
  return count;
}

}  // namespace paramshard::server
