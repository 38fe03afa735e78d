#include "server/journal/journal_codec.h"

#include <algorithm>
#include <cmath>

#include "common/model/limits.h"

namespace paramshard::server {
namespace {

// Sizes of parts with a fixed size. Tests compare them with the encoded bytes.
constexpr int64_t kRefBytes = 24;
constexpr int64_t kKeyBytes = 32;
constexpr int64_t kAnswerBytes = 1 + 8 + 8 + 1 + 8 + 8;
constexpr int64_t kScalingBytes = 3 * 4 + 2 + 1 + 3 * 4;
constexpr int64_t kEpochBytes = 16 + 16 + 1 + 16 + 8 + 3 * 8 + 16 + 1 + 8;
constexpr int64_t kDecidedBytes = kKeyBytes + 1 + 4 + 3 * 8;
constexpr int64_t kScaleBytes = 4 + 1 + 4;  // gradient scale and norm of a prepared commit
constexpr int64_t kRankCountBytes = 4;
constexpr int64_t kLengthBytes = 4;       // of a text
constexpr int64_t kChangedBytes = 4 + 4;  // of a lifecycle that names records
constexpr auto kGroupBytes = static_cast<int64_t>(kHyperparameterCount * sizeof(float));

constexpr int64_t BitmapBytes(int64_t bits) { return (bits + 7) / 8; }

void Put(const ClientStatesRef& ref, JournalBytes& bytes) {
  bytes.Put(ref.size_bytes);
  bytes.Put(ref.hash);
}

void Get(JournalBytesReader& reader, ClientStatesRef& ref) {
  reader.Get(ref.size_bytes);
  reader.Get(ref.hash);
}

void Put(const CommitKey& key, JournalBytes& bytes) {
  bytes.Put(key.history.value);
  bytes.Put(key.epoch);
  bytes.Put(key.commit_number);
}

void Get(JournalBytesReader& reader, CommitKey& key) {
  reader.Get(key.history.value);
  reader.Get(key.epoch);
  reader.Get(key.commit_number);
}

void Put(const JournalRank& rank, JournalBytes& bytes) {
  bytes.Put(rank.rank);
  bytes.Put(static_cast<uint32_t>(rank.pieces.size()));
  for (const JournalRank::Piece& piece : rank.pieces) {
    bytes.Put(piece.name);
    bytes.Put(piece.size_bytes);
  }
  bytes.Put(static_cast<uint32_t>(rank.extents.size()));
  for (const JournalRank::Extent& extent : rank.extents) {
    bytes.Put(extent.unit);
    bytes.Put(extent.parameter);
    bytes.Put(extent.first_row);
    bytes.Put(extent.end_row);
    for (const int64_t offset : extent.offsets) bytes.Put(offset);
    bytes.Put(extent.gradient_offset);
  }
  bytes.Put(rank.trainable_count);
  bytes.Put(static_cast<uint32_t>(rank.bands.size()));
  for (const JournalRank::Band& band : rank.bands) {
    bytes.Put(band.unit);
    bytes.Put(band.parameter);
    bytes.Put(band.row);
  }
  bytes.Put(rank.distance);
}

void Get(JournalBytesReader& reader, JournalRank& rank) {
  reader.Get(rank.rank);
  rank.pieces.resize(reader.Count(kPieceBytes));
  for (JournalRank::Piece& piece : rank.pieces) {
    reader.Get(piece.name);
    reader.Get(piece.size_bytes);
  }
  rank.extents.resize(reader.Count(kExtentBytes));
  for (JournalRank::Extent& extent : rank.extents) {
    reader.Get(extent.unit);
    reader.Get(extent.parameter);
    reader.Get(extent.first_row);
    reader.Get(extent.end_row);
    for (int64_t& offset : extent.offsets) reader.Get(offset);
    reader.Get(extent.gradient_offset);
  }
  reader.Get(rank.trainable_count);
  rank.bands.resize(reader.Count(kBandBytes));
  for (JournalRank::Band& band : rank.bands) {
    reader.Get(band.unit);
    reader.Get(band.parameter);
    reader.Get(band.row);
  }
  reader.Get(rank.distance);
}

void Put(const std::optional<CommitAnswer>& answer, JournalBytes& bytes) {
  const CommitAnswer value = answer.value_or(CommitAnswer());
  bytes.Put(answer.has_value());
  bytes.Put(value.commit_number);
  bytes.Put(value.version);
  bytes.Put(value.skipped);
  bytes.Put(value.gradient_norm);
  bytes.Put(value.non_finite_count);
}

void Get(JournalBytesReader& reader, std::optional<CommitAnswer>& answer) {
  const bool exists = reader.Next<bool>();
  CommitAnswer value;
  reader.Get(value.commit_number);
  reader.Get(value.version);
  reader.Get(value.skipped);
  reader.Get(value.gradient_norm);
  reader.Get(value.non_finite_count);
  if (exists) answer = value;
}

void Put(const NumbersRecord::Scaling& scaling, JournalBytes& bytes) {
  bytes.Put(scaling.amax);
  bytes.Put(scaling.scale);
  bytes.Put(scaling.offered);
  bytes.Put(scaling.stepped);
  bytes.Put(scaling.is_fresh);
  bytes.Put(scaling.window.exists);
  bytes.Put(scaling.window.next_scale);
  bytes.Put(scaling.window.newest);
  bytes.Put(scaling.window.filled);
}

void Get(JournalBytesReader& reader, NumbersRecord::Scaling& scaling) {
  reader.Get(scaling.amax);
  reader.Get(scaling.scale);
  reader.Get(scaling.offered);
  reader.Get(scaling.stepped);
  reader.Get(scaling.is_fresh);
  reader.Get(scaling.window.exists);
  reader.Get(scaling.window.next_scale);
  reader.Get(scaling.window.newest);
  reader.Get(scaling.window.filled);
}

}  // namespace

void Encode(const JournalIdentity& identity, JournalBytes& bytes) {
  bytes.Put(identity.spec);
  bytes.Put(identity.spec_fingerprint);
  bytes.Put(identity.node);
  bytes.Put(static_cast<uint32_t>(identity.device_counts.size()));
  for (const int32_t count : identity.device_counts) bytes.Put(count);
  bytes.Put(identity.shard_size);
  bytes.Put(identity.parameters);
  bytes.Put(identity.groups);
  bytes.Put(identity.client_state_bytes);
  bytes.Put(static_cast<uint32_t>(identity.book.size()));
  for (const JournalIdentity::BookParameter& parameter : identity.book) {
    bytes.Put(parameter.unit);
    bytes.Put(parameter.parameter);
    bytes.Put(parameter.history_length);
  }
  bytes.Put(static_cast<uint32_t>(identity.ranks.size()));
  for (const JournalRank& rank : identity.ranks) Put(rank, bytes);
}

bool Decode(absl::Span<const uint8_t> bytes, JournalIdentity& identity) {
  JournalBytesReader reader(bytes);
  reader.Get(identity.spec);
  reader.Get(identity.spec_fingerprint);
  reader.Get(identity.node);
  identity.device_counts.resize(reader.Count(sizeof(int32_t)));
  for (int32_t& count : identity.device_counts) reader.Get(count);
  reader.Get(identity.shard_size);
  reader.Get(identity.parameters);
  reader.Get(identity.groups);
  reader.Get(identity.client_state_bytes);
  identity.book.resize(reader.Count(kBookParameterBytes));
  for (JournalIdentity::BookParameter& parameter : identity.book) {
    reader.Get(parameter.unit);
    reader.Get(parameter.parameter);
    reader.Get(parameter.history_length);
  }
  identity.ranks.resize(reader.Count(kRankBytes));
  for (JournalRank& rank : identity.ranks) Get(reader, rank);
  return reader.done();
}

void Encode(const LifecycleRecord& record, JournalBytes& bytes) {
  bytes.Put(record.lifecycle);
  bytes.Put(record.source.kind);
  bytes.Put(record.source.text);
  bytes.Put(record.source.convert_moments);
  if (record.lifecycle != JournalLifecycle::kChanged) return;
  bytes.Put(record.numbers);
  bytes.Put(record.epoch);
}

bool Decode(absl::Span<const uint8_t> bytes, LifecycleRecord& record) {
  JournalBytesReader reader(bytes);
  const auto lifecycle = reader.Next<uint8_t>();
  const auto kind = reader.Next<uint8_t>();
  reader.Get(record.source.text);
  reader.Get(record.source.convert_moments);
  record.lifecycle = static_cast<JournalLifecycle>(lifecycle);
  record.source.kind = static_cast<ChangeSource::Kind>(kind);
  if (record.lifecycle == JournalLifecycle::kChanged) {
    reader.Get(record.numbers);
    reader.Get(record.epoch);
  }
  return reader.done() && lifecycle <= static_cast<uint8_t>(JournalLifecycle::kChanged) &&
         kind <= static_cast<uint8_t>(ChangeSource::Kind::kReplica);
}

void Encode(const JournalEpoch& record, JournalBytes& bytes) {
  const HistoryParent parent = record.parent.value_or(HistoryParent());
  bytes.Put(record.history.value);
  bytes.Put(record.lineage.value);
  bytes.Put(record.parent.has_value());
  bytes.Put(parent.history.value);
  bytes.Put(parent.commit_number);
  bytes.Put(record.history_begin);
  bytes.Put(record.generation);
  bytes.Put(record.epoch);
  bytes.Put(record.run);
  bytes.Put(record.values_follow);
  bytes.Put(record.deletion);
}

bool Decode(absl::Span<const uint8_t> bytes, JournalEpoch& record) {
  JournalBytesReader reader(bytes);
  reader.Get(record.history.value);
  reader.Get(record.lineage.value);
  const bool has_parent = reader.Next<bool>();
  HistoryParent parent;
  reader.Get(parent.history.value);
  reader.Get(parent.commit_number);
  if (has_parent) record.parent = parent;
  reader.Get(record.history_begin);
  reader.Get(record.generation);
  reader.Get(record.epoch);
  reader.Get(record.run);
  record.values_follow = reader.Next<bool>();
  reader.Get(record.deletion);
  const auto counts = [](int64_t number) { return number >= 0 && number < kNumberLimit; };
  return reader.done() && counts(record.history_begin) && counts(record.generation) && counts(record.epoch) &&
         record.deletion >= 0;
}

void Encode(const NumbersRecord& record, JournalBytes& bytes) {
  bytes.Put(record.commit_number);
  bytes.Put(record.version);
  bytes.Put(record.skipped);
  bytes.Put(record.generation);
  Put(record.last_answer, bytes);
  Put(record.client_states, bytes);
  bytes.Put(record.rings_hash);
  bytes.PutBytes(record.positions.data(), record.positions.size() * sizeof(int64_t));
  bytes.PutBytes(record.steps.data(), record.steps.size() * sizeof(int64_t));
  for (const NumbersRecord::Scaling& scaling : record.scalings) Put(scaling, bytes);
}

bool Decode(absl::Span<const uint8_t> bytes, const JournalShape& shape, NumbersRecord& record) {
  if (static_cast<int64_t>(bytes.size()) != RecordCapacity(JournalRecord::kNumbers, shape)) return false;
  JournalBytesReader reader(bytes);
  reader.Get(record.commit_number);
  reader.Get(record.version);
  reader.Get(record.skipped);
  reader.Get(record.generation);
  Get(reader, record.last_answer);
  Get(reader, record.client_states);
  reader.Get(record.rings_hash);
  record.positions.resize(shape.ranks);
  for (int64_t& position : record.positions) reader.Get(position);
  record.steps.resize(shape.parameters);
  for (int64_t& step : record.steps) reader.Get(step);
  record.scalings.resize(shape.scalings);
  for (NumbersRecord::Scaling& scaling : record.scalings) Get(reader, scaling);
  return reader.done();
}

void Encode(const PreparedRecord& record, JournalBytes& bytes) {
  Put(record.key, bytes);
  if (record.key.commit_number < 0) return;
  Put(record.client_states, bytes);
  bytes.Put(record.commit.gradient_scale);
  bytes.Put(record.commit.max_grad_norm.has_value());
  bytes.Put(record.commit.max_grad_norm.value_or(0.0f));
  bytes.Put(record.commit.ranks);
  bytes.Put(static_cast<uint32_t>(record.commit.groups.size()));
  for (const Hyperparameters& group : record.commit.groups) {
    for (const HyperparameterTraits& traits : kHyperparameters) bytes.Put(group.*traits.member);
  }
  std::vector<uint8_t> bits(BitmapBytes(static_cast<int64_t>(record.commit.has_gradient.size())));
  for (size_t i = 0; i < record.commit.has_gradient.size(); ++i) {
    if (record.commit.has_gradient[i]) bits[i / 8] |= static_cast<uint8_t>(1 << i % 8);
  }
  bytes.PutBytes(bits.data(), bits.size());
  bytes.Put(record.commit.save);
}

bool Decode(absl::Span<const uint8_t> bytes, const JournalShape& shape, PreparedRecord& record) {
  JournalBytesReader reader(bytes);
  Get(reader, record.key);
  if (record.key.commit_number < 0) return reader.done();
  record.commit.commit_number = record.key.commit_number;
  Get(reader, record.client_states);
  reader.Get(record.commit.gradient_scale);
  const bool has_max = reader.Next<bool>();
  const auto max_grad_norm = reader.Next<float>();
  if (has_max) record.commit.max_grad_norm = max_grad_norm;
  reader.Get(record.commit.ranks);
  if (record.commit.ranks < 1) reader.Refuse();
  record.commit.groups.resize(reader.Count(kGroupBytes));
  for (Hyperparameters& group : record.commit.groups) {
    for (const HyperparameterTraits& traits : kHyperparameters) {
      reader.Get(group.*traits.member);
      if (!std::isfinite(group.*traits.member)) reader.Refuse();
    }
  }
  record.commit.has_gradient.resize(shape.parameters);
  uint8_t bits = 0;
  for (int64_t i = 0; i < shape.parameters; ++i) {
    if (i % 8 == 0) reader.Get(bits);
    record.commit.has_gradient[i] = (bits >> i % 8 & 1) != 0;
  }
  reader.Get(record.commit.save);
  return reader.done() && static_cast<int64_t>(record.commit.groups.size()) <= shape.groups;
}

void Encode(const DecidedRecord& record, JournalBytes& bytes) {
  Put(record.key, bytes);
  bytes.Put(record.commit.apply);
  bytes.Put(record.commit.gradient_scale);
  bytes.Put(record.commit.gradient_norm);
  bytes.Put(record.commit.non_finite_count);
  bytes.Put(record.commit.square_sum);
}

bool Decode(absl::Span<const uint8_t> bytes, DecidedRecord& record) {
  JournalBytesReader reader(bytes);
  Get(reader, record.key);
  record.commit.commit_number = record.key.commit_number;
  reader.Get(record.commit.apply);
  reader.Get(record.commit.gradient_scale);
  reader.Get(record.commit.gradient_norm);
  reader.Get(record.commit.non_finite_count);
  reader.Get(record.commit.square_sum);
  return reader.done();
}

void EncodeClientStates(absl::Span<const std::string> states, const std::string& reader_data, JournalBytes& bytes) {
  for (const std::string& state : states) bytes.Put(state);
  bytes.Put(reader_data);
}

ClientStatesRef RefOf(const JournalBytes& client_states) {
  return {.size_bytes = static_cast<int64_t>(client_states.bytes().size()),
          .hash = JournalHash(client_states.bytes(), kStatesSeed)};
}

bool DecodeClientStates(absl::Span<const uint8_t> bytes, const JournalShape& shape, std::vector<std::string>& states,
                        std::string& reader_data) {
  JournalBytesReader reader(bytes);
  states.resize(shape.ranks);
  for (std::string& state : states) {
    reader.Get(state);
    if (static_cast<int64_t>(state.size()) > shape.client_state_bytes) return false;
  }
  reader.Get(reader_data);
  return reader.done() && reader_data.size() <= kMaxReaderDataBytes;
}

int64_t RecordCapacity(JournalRecord record, const JournalShape& shape) {
  switch (record) {
    case JournalRecord::kLifecycle:
      return 1 + 1 + kLengthBytes + kMostSourceBytes + 1 + kChangedBytes;
    case JournalRecord::kEpoch:
      return kEpochBytes;
    case JournalRecord::kNumbers:
      return 4 * 8 + kAnswerBytes + kRefBytes + 8 + shape.ranks * 8 + shape.parameters * 8 +
             shape.scalings * kScalingBytes;
    case JournalRecord::kPrepared:
      return kKeyBytes + kRefBytes + 4 + shape.groups * kGroupBytes + BitmapBytes(shape.parameters) + 1 + kScaleBytes +
             kRankCountBytes;
    case JournalRecord::kDecided:
      return kDecidedBytes;
  }
  return 0;
}

int64_t ClientStatesCapacity(const JournalShape& shape) {
  return shape.ranks * (kLengthBytes + shape.client_state_bytes) + kLengthBytes +
         static_cast<int64_t>(kMaxReaderDataBytes);
}

}  // namespace paramshard::server
