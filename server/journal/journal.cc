#include "server/journal/journal.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/model/limits.h"
#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"

namespace paramshard::server {
namespace {

absl::Status NotNext(absl::string_view expected) {
  return absl::FailedPreconditionError(absl::StrCat("journal: called out of order, want ", expected));
}

absl::Span<const uint8_t> BytesOf(const void* data, size_t size) {
  return absl::MakeConstSpan(static_cast<const uint8_t*>(data), size);
}

void SetHash(uint64_t (&stored)[2], absl::uint128 hash) {
  stored[0] = absl::Uint128Low64(hash);
  stored[1] = absl::Uint128High64(hash);
}

absl::StatusOr<JournalBytes> EncodeIdentity(const JournalIdentity& identity) {
  RETURN_IF_ERROR(CheckIdentity(identity));
  JournalBytes bytes;
  Encode(identity, bytes);
  return bytes;
}

}  // namespace

absl::StatusOr<int64_t> Journal::SizeOf(const JournalIdentity& identity) {
  ASSIGN_OR_RETURN(const JournalBytes bytes, EncodeIdentity(identity));
  ASSIGN_OR_RETURN(const JournalLayout layout,
                   JournalLayout::Of(ShapeOf(identity, static_cast<int64_t>(bytes.bytes().size()))));
  return layout.size_bytes;
}

absl::StatusOr<std::unique_ptr<Journal>> Journal::Create(absl::Span<uint8_t> memory, const JournalIdentity& identity,
                                                         StoreLimit* limit) {
  ASSIGN_OR_RETURN(const JournalBytes bytes, EncodeIdentity(identity));
  const JournalShape shape = ShapeOf(identity, static_cast<int64_t>(bytes.bytes().size()));
  ASSIGN_OR_RETURN(const JournalLayout layout, JournalLayout::Of(shape));
  if (layout.size_bytes != static_cast<int64_t>(memory.size())) {
    return absl::InvalidArgumentError(
        absl::StrCat("journal: want memory of ", layout.size_bytes, " bytes, got ", memory.size()));
  }
  std::unique_ptr<Journal> journal(new Journal(identity, layout, shape, JournalStores(memory.data(), limit)));
  journal->WriteLifecycle(JournalLifecycle::kCreating, {});
  journal->WriteHeader(bytes.bytes());
  return journal;
}

absl::StatusOr<std::unique_ptr<Journal>> Journal::Adopt(absl::Span<uint8_t> memory, StoreLimit* limit) {
  ASSIGN_OR_RETURN(const JournalReader reader, JournalReader::Open(memory));
  if (!reader.begun()) return absl::DataLossError("journal: its memory is empty");
  const JournalIdentity& identity = reader.identity();
  std::unique_ptr<Journal> journal(
      new Journal(identity, reader.layout(), reader.shape(), JournalStores(memory.data(), limit)));
  RETURN_IF_ERROR(journal->Load(reader));
  return journal;
}

Journal::Journal(JournalIdentity identity, const JournalLayout& layout, const JournalShape& shape, JournalStores stores)
    : identity_(std::move(identity)),
      layout_(layout),
      shape_(shape),
      stores_(stores),
      rings_(layout_, identity_.book, stores_.at(0)) {}

absl::Status Journal::Load(const JournalReader& reader) {
  for (int i = 0; i < kJournalRecords; ++i) {
    sequences_[i] = reader.Sequence(static_cast<JournalRecord>(i)).value_or(0);
  }
  ASSIGN_OR_RETURN(const LifecycleRecord lifecycle, reader.Lifecycle());
  lifecycle_ = lifecycle.lifecycle;
  const bool is_usable = lifecycle_ == JournalLifecycle::kUsable || lifecycle_ == JournalLifecycle::kChanged;
  // Numbers from before a change are used if they are whole.
  absl::StatusOr<NumbersRecord> numbers = reader.StoredNumbers();
  if (is_usable) RETURN_IF_ERROR(numbers.status());
  if (numbers.ok()) numbers_ = *std::move(numbers);
  if (!is_usable) return absl::OkStatus();
  ASSIGN_OR_RETURN(epoch_, reader.Epoch());
  ASSIGN_OR_RETURN(const PreparedRecord prepared, reader.Prepared());
  ASSIGN_OR_RETURN(const DecidedRecord decided, reader.Decided());
  prepared_ = prepared.key;
  prepared_states_ = prepared.client_states;
  decided_ = decided.key;
  if (lifecycle_ == JournalLifecycle::kChanged) FinishChange(lifecycle);
  return absl::OkStatus();
}

// The magic is written last: without it there is no journal yet.
void Journal::WriteHeader(absl::Span<const uint8_t> identity) {
  JournalSlotHeader slot{.word = PublishedWord(0), .size_bytes = identity.size()};
  SetHash(slot.hash, JournalHash(identity, kIdentitySeed));
  stores_.Put(layout_.identity, slot);
  stores_.Copy(layout_.identity + static_cast<int64_t>(sizeof(slot)), identity);
  JournalHeader header{
      .magic = kJournalMagic, .version = kJournalVersion, .size_bytes = sizeof(header), .shape = shape_};
  SetHash(header.hash, JournalHash(BytesOf(&header, offsetof(JournalHeader, hash)), kHeaderSeed));
  constexpr size_t kBegin = offsetof(JournalHeader, version);
  stores_.Copy(kBegin, BytesOf(&header, sizeof(header)).subspan(kBegin));
  stores_.Publish(offsetof(JournalHeader, magic), header.magic);
}

uint32_t Journal::WriteSlot(JournalRecord record) {
  const int kind = static_cast<int>(record);
  // A longer record would overwrite the published slot after this one.
  PARAMSHARD_CHECK(static_cast<int64_t>(bytes_.bytes().size()) <= layout_.records[kind].capacity);
  const uint32_t sequence = sequences_[kind] + 1;
  const int64_t offset = layout_.records[kind].slots[sequence % 2];
  JournalSlotHeader slot{.word = PublishedWord(sequence), .size_bytes = bytes_.bytes().size()};
  SetHash(slot.hash, JournalHash(bytes_.bytes(), SlotSeed(record, sequence)));
  stores_.Put(offset, slot);
  stores_.Copy(offset + static_cast<int64_t>(sizeof(slot)), bytes_.bytes());
  return sequence;
}

void Journal::PublishWord(JournalRecord record, uint32_t sequence) {
  const int kind = static_cast<int>(record);
  stores_.Publish(layout_.records[kind].word, PublishedWord(sequence));
  sequences_[kind] = sequence;
}

ClientStatesRef Journal::WriteClientStates(int64_t commit_number, absl::Span<const std::string> states,
                                           const std::string& reader_data) {
  bytes_.Clear();
  EncodeClientStates(states, reader_data, bytes_);
  PARAMSHARD_CHECK(static_cast<int64_t>(bytes_.bytes().size()) <= layout_.states_capacity);
  stores_.Copy(layout_.states[commit_number % 2 != 0], bytes_.bytes());
  return RefOf(bytes_);
}

absl::Status Journal::CheckClientStates(absl::Span<const std::string> states, const std::string& reader_data) const {
  if (reader_data.size() > kMaxReaderDataBytes) {
    return absl::InvalidArgumentError(absl::StrCat("journal: want data for readers of at most ", kMaxReaderDataBytes,
                                                   " bytes, got ", reader_data.size()));
  }
  if (states.size() != identity_.ranks.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("journal: want ", identity_.ranks.size(), " client states, got ", states.size()));
  }
  for (const std::string& state : states) {
    if (static_cast<int64_t>(state.size()) <= identity_.client_state_bytes) continue;
    return absl::InvalidArgumentError(absl::StrCat("journal: want a client state of at most ",
                                                   identity_.client_state_bytes, " bytes, got ", state.size()));
  }
  return absl::OkStatus();
}

// --- Lifecycle

void Journal::WriteLifecycle(JournalLifecycle lifecycle, const ChangeSource& source) {
  Publish(JournalRecord::kLifecycle, LifecycleRecord{.lifecycle = lifecycle, .source = source});
  lifecycle_ = lifecycle;
}

absl::Status Journal::SetUsable(const JournalEpoch& epoch, const JournalNumbers& numbers) {
  if (lifecycle_ != JournalLifecycle::kCreating && lifecycle_ != JournalLifecycle::kChanging) {
    return NotNext("a model that is made or changed");
  }
  RETURN_IF_ERROR(CheckNumbers(identity_, numbers));
  RETURN_IF_ERROR(CheckClientStates(numbers.client_states, numbers.reader_data));
  // No reader uses these records of a model that is being made or changed.
  prepared_ = decided_ = CommitKey();
  Publish(JournalRecord::kPrepared, PreparedRecord());
  Publish(JournalRecord::kDecided, DecidedRecord());
  // Client states of an import are empty, and their place may hold the old ones.
  const bool has_states =
      !numbers.reader_data.empty() || std::any_of(numbers.client_states.begin(), numbers.client_states.end(),
                                                  [](const std::string& state) { return !state.empty(); });
  if (has_states) WriteClientStates(numbers.commit_number, numbers.client_states, numbers.reader_data);
  numbers_ = WriteNumbers(epoch, numbers);
  epoch_ = epoch;
  // The word of this record publishes the new state. Before it the old state holds, from which a change can be
  // repeated.
  const LifecycleRecord changed{.lifecycle = JournalLifecycle::kChanged,
                                .source = {},
                                .numbers = Write(JournalRecord::kNumbers, numbers_),
                                .epoch = Write(JournalRecord::kEpoch, epoch_)};
  Publish(JournalRecord::kLifecycle, changed);
  if (!has_states) WriteClientStates(numbers.commit_number, numbers.client_states, numbers.reader_data);
  FinishChange(changed);
  return absl::OkStatus();
}

void Journal::FinishChange(const LifecycleRecord& changed) {
  PublishWord(JournalRecord::kNumbers, changed.numbers);
  PublishWord(JournalRecord::kEpoch, changed.epoch);
  WriteLifecycle(JournalLifecycle::kUsable, {});
}

NumbersRecord Journal::WriteNumbers(const JournalEpoch& epoch, const JournalNumbers& numbers) const {
  JournalBytes client_states;
  EncodeClientStates(numbers.client_states, numbers.reader_data, client_states);
  NumbersRecord record{.commit_number = numbers.commit_number,
                       .version = numbers.version,
                       .skipped = numbers.skipped,
                       .generation = epoch.generation,
                       .last_answer = numbers.last_answer,
                       .client_states = RefOf(client_states),
                       .rings_hash = 0,
                       .positions = numbers.positions,
                       .steps = numbers.steps,
                       .scalings = {}};
  for (size_t i = 0; i < numbers.scalings.size(); ++i) {
    const JournalScaling& scaling = numbers.scalings[i];
    record.scalings.push_back({.amax = scaling.amax,
                               .scale = scaling.scale,
                               .offered = scaling.offered,
                               .stepped = scaling.stepped,
                               .is_fresh = scaling.is_fresh,
                               .window = {}});
    if (!scaling.history.has_value()) continue;
    const RingWindow old = i < numbers_.scalings.size() ? numbers_.scalings[i].window : RingWindow();
    record.scalings[i].window = rings_.Replace(i, *scaling.history, old, stores_);
    record.rings_hash += rings_.Hash(i, record.scalings[i].window);
  }
  return record;
}

absl::Status Journal::BeginChange(const ChangeSource& source) {
  if (static_cast<int64_t>(source.text.size()) > kMostSourceBytes) {
    return absl::InvalidArgumentError(absl::StrCat("journal: want the source of a change in at most ", kMostSourceBytes,
                                                   " bytes, got ", source.text.size()));
  }
  // A model that is made to be healed exists without a state of its own.
  const bool is_made_to_be_healed =
      lifecycle_ == JournalLifecycle::kCreating && source.kind == ChangeSource::Kind::kReplica;
  if (lifecycle_ != JournalLifecycle::kUsable && lifecycle_ != JournalLifecycle::kChanging && !is_made_to_be_healed) {
    return NotNext("a model that is there");
  }
  WriteLifecycle(JournalLifecycle::kChanging, source);
  return absl::OkStatus();
}

// --- Commits

CommitKey Journal::NextKey() const {
  return {.history = epoch_.history, .epoch = epoch_.epoch, .commit_number = numbers_.commit_number + 1};
}

absl::Status Journal::CheckUsable() const {
  return lifecycle_ == JournalLifecycle::kUsable ? absl::OkStatus() : NotNext("a usable model");
}

absl::Status Journal::BeginEpoch(int64_t epoch, const HistoryId& history) {
  return BeginEpoch(epoch,
                    {.id = history,
                     .lineage = epoch_.lineage,
                     .parent = epoch_.parent,
                     .run = epoch_.run,
                     .values_follow = epoch_.values_follow},
                    epoch_.history_begin);
}

absl::Status Journal::BeginEpoch(int64_t epoch, const History& history, int64_t begin) {
  RETURN_IF_ERROR(CheckUsable());
  if (is_prepared()) return NotNext("the end of a commit");
  if (epoch <= epoch_.epoch) {
    return absl::InvalidArgumentError(absl::StrCat("journal: want an epoch above ", epoch_.epoch, ", got ", epoch));
  }
  epoch_.epoch = epoch;
  epoch_.history = history.id;
  epoch_.lineage = history.lineage;
  epoch_.parent = history.parent;
  epoch_.run = history.run;
  epoch_.values_follow = history.values_follow;
  epoch_.history_begin = begin;
  Publish(JournalRecord::kEpoch, epoch_);
  return absl::OkStatus();
}

absl::Status Journal::Prepare(const PreparedCommit& commit) {
  RETURN_IF_ERROR(CheckUsable());
  if (is_prepared() || commit.commit_number != NextKey().commit_number) return NotNext("the end of a commit");
  RETURN_IF_ERROR(CheckClientStates(commit.client_states, commit.reader_data));
  if (static_cast<int64_t>(commit.groups.size()) > shape_.groups ||
      static_cast<int64_t>(commit.has_gradient.size()) != shape_.parameters) {
    return absl::InvalidArgumentError(
        "journal: the commit's hyper-parameter groups or gradient bits do not fit the model");
  }
  PreparedRecord record{
      .key = NextKey(),
      .commit = {.commit_number = commit.commit_number,
                 .groups = commit.groups,
                 .has_gradient = commit.has_gradient,
                 .client_states = {},
                 .reader_data = {},
                 .save = commit.save,
                 .gradient_scale = commit.gradient_scale,
                 .max_grad_norm = commit.max_grad_norm,
                 .ranks = commit.ranks},
      .client_states = WriteClientStates(commit.commit_number, commit.client_states, commit.reader_data)};
  Publish(JournalRecord::kPrepared, record);
  prepared_ = record.key;
  prepared_states_ = record.client_states;
  return absl::OkStatus();
}

absl::Status Journal::Withdraw() {
  RETURN_IF_ERROR(CheckUsable());
  if (!is_prepared() || is_decided()) return NotNext("a prepared commit that is not decided");
  Publish(JournalRecord::kPrepared, PreparedRecord());
  prepared_ = CommitKey();
  return absl::OkStatus();
}

// The marks are set to this commit before they may be read.
absl::Status Journal::Decide(const DecidedCommit& commit) {
  RETURN_IF_ERROR(CheckUsable());
  if (!is_prepared() || is_decided() || commit.commit_number != prepared_.commit_number) {
    return NotNext("a prepared commit that is not decided");
  }
  decided_ = prepared_;
  for (int rank = 0; rank < static_cast<int>(identity_.ranks.size()); ++rank) {
    for (int lane = 0; lane < kBandLanes; ++lane) {
      MarkBegun(rank, lane, 0);
      MarkDone(rank, lane, 0);
    }
  }
  Publish(JournalRecord::kDecided, DecidedRecord{.key = decided_, .commit = commit});
  return absl::OkStatus();
}

absl::Status Journal::CheckAnswer(const AnsweredCommit& commit) const {
  if (!is_decided() || commit.answer.commit_number != decided_.commit_number) return NotNext("a decided commit");
  const bool fits = static_cast<int64_t>(commit.steps.size()) == shape_.parameters &&
                    static_cast<int64_t>(commit.positions.size()) == shape_.ranks;
  if (!fits) return absl::InvalidArgumentError("journal: the numbers belong to another model");
  return CheckScalings(commit.scalings);
}

absl::Status Journal::CheckScalings(absl::Span<const ScalingChange> scalings) const {
  if (static_cast<int64_t>(scalings.size()) != shape_.scalings) {
    return absl::InvalidArgumentError("journal: the amaxes do not fit the model");
  }
  for (size_t i = 0; i < scalings.size(); ++i) {
    const ScalingChange::History history = scalings[i].history;
    if (history == ScalingChange::History::kSame) continue;
    const bool appends = history == ScalingChange::History::kAppended;
    if (identity_.book[i].history_length > 0 && (!appends || numbers_.scalings[i].window.exists)) continue;
    return absl::InvalidArgumentError(absl::StrCat("journal: want a history of parameter ", identity_.book[i].parameter,
                                                   " of unit ", identity_.book[i].unit, ", got none"));
  }
  return absl::OkStatus();
}

absl::Status Journal::Answer(const AnsweredCommit& commit) {
  RETURN_IF_ERROR(CheckUsable());
  RETURN_IF_ERROR(CheckAnswer(commit));
  numbers_.commit_number = commit.answer.commit_number;
  numbers_.version = commit.answer.version;
  numbers_.skipped = commit.skipped;
  numbers_.last_answer = commit.answer;
  numbers_.client_states = prepared_states_;
  std::copy(commit.positions.begin(), commit.positions.end(), numbers_.positions.begin());
  std::copy(commit.steps.begin(), commit.steps.end(), numbers_.steps.begin());
  Take(commit.scalings);
  Publish(JournalRecord::kNumbers, numbers_);
  return absl::OkStatus();
}

absl::Status Journal::Settle(absl::Span<const ScalingChange> scalings) {
  RETURN_IF_ERROR(CheckUsable());
  if (is_prepared()) return NotNext("the end of a commit");
  RETURN_IF_ERROR(CheckScalings(scalings));
  Take(scalings);
  Publish(JournalRecord::kNumbers, numbers_);
  return absl::OkStatus();
}

void Journal::Take(absl::Span<const ScalingChange> scalings) {
  for (size_t i = 0; i < scalings.size(); ++i) {
    const ScalingChange& change = scalings[i];
    NumbersRecord::Scaling& scaling = numbers_.scalings[i];
    if (change.history == ScalingChange::History::kBegun) {
      numbers_.rings_hash -= rings_.Hash(i, scaling.window);
      scaling.window.filled = 0;
    }
    if (change.history != ScalingChange::History::kSame) {
      numbers_.rings_hash += rings_.Append(i, change.amax, scaling.window, stores_);
    }
    scaling.amax = change.amax;
    scaling.scale = change.scale;
    scaling.offered = change.offered;
    scaling.stepped = change.stepped;
    scaling.is_fresh = change.is_fresh;
    scaling.window.next_scale = change.next_scale;
  }
}

}  // namespace paramshard::server
