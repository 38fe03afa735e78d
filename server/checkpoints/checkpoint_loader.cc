#include "server/checkpoints/checkpoint_loader.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/checkpoint/content_hash.h"
#include "common/checkpoint/saved_values.h"
#include "common/checkpoint/tensor_key.h"
#include "common/model/names.h"
#include "kernels/base/status_macros.h"
#include "kernels/formats/format.h"
#include "server/checkpoints/plane_piece.h"

namespace paramshard::server {
namespace {

using checkpoint::ArrayKind;
using checkpoint::ArrayShape;
using checkpoint::ContentHash;
using checkpoint::ContentHashes;
using checkpoint::Reader;

// Places of a decoded tensor in one piece: scales and the like are read once for all of them.
constexpr size_t kPlacesOfAPiece = 16;
// Number of threads that decode: each takes up to 80 MiB.
constexpr int kDecodingThreads = 8;

RowRange Overlap(const RowRange& a, const RowRange& b) {
  const int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

// Returns the array's rows that an extent needs. An array about the whole tensor lies at every extent.
RowRange Needed(const ArrayShape& shape, const ShardExtent& extent) {
  return shape.rows_per_row == kUnbounded ? RowRange{0, 1} : shape.RowsOf(extent.rows);
}

// Returns the extent's rows that `rows` of an array are about: all rows for an array about the whole tensor.
RowRange ParameterRowsOf(const ArrayShape& shape, const RowRange& rows, const ShardExtent& extent) {
  return Overlap({rows.begin * shape.rows_per_row, rows.end * shape.rows_per_row}, extent.rows);
}

absl::Status WriteRows(Shard& shard, const ShardExtent& extent, ArrayKind kind, const RowRange& rows,
                       absl::Span<const uint8_t> bytes) {
  if (const auto form = checkpoint::StateFormOf(kind); form.has_value()) {
    return shard.WriteStoredRows(extent, form->tensor, form->form, rows, bytes);
  }
  const checkpoint::PlaneForm form = *checkpoint::PlaneFormOf(kind);
  PlaneContent content;
  switch (form.piece) {
    case checkpoint::PlanePiece::kData:
      content.data = bytes;
      break;
    case checkpoint::PlanePiece::kScales:
      content.scales = bytes;
      break;
    case checkpoint::PlanePiece::kAmax:
      content.amax = bytes;
      break;
  }
  return shard.WritePlane(extent, form.plane, rows, content);
}

ScalingBook::Record RecordOf(const checkpoint::BookEntry& entry, const ParameterPlace& place,
                             const ParameterSpec& spec) {
  ScalingBook::Record record{.unit = place.unit,
                             .parameter = place.parameter,
                             .amax = entry.amax,
                             .scale = entry.scale,
                             .is_fresh = entry.is_fresh};
  if (!entry.delayed.has_value()) return record;
  record.history = {.scale = entry.delayed->next_scale, .amaxes = entry.delayed->history};
  // The lengths differ only if no step follows.
  const auto options = spec.encoding.delayed_scaling.value_or(DelayedScaling::Options());
  record.history->amaxes.resize(options.history_length, 0.0f);
  return record;
}

// --- Content hashes ---

absl::Status AddPlanes(const Shard& shard, const ShardExtent& extent, const ExtentPart& part,
                       absl::Span<const ArrayKind> kinds, ContentHashes& tensors) {
  const ParameterSpec& spec = shard.extents().Spec(extent);
  ASSIGN_OR_RETURN(const std::vector<PlaneViews> planes, PlaneBytes(shard.memory(), extent, part.rows));
  for (const ArrayKind kind : kinds) {
    const checkpoint::ArrayShape shape = *checkpoint::ShapeOf(spec, kind);
    // Data of the whole tensor lies with its row 0.
    const RowRange rows = shape.RowsOf(part.rows);
    if (rows.size() == 0) continue;
    tensors[checkpoint::TensorKey(spec, kind)] +=
        checkpoint::HashRows(rows.begin, shape.row_bytes(), PieceOf(planes, *checkpoint::PlaneFormOf(kind)).bytes());
  }
  return absl::OkStatus();
}

absl::StatusOr<ContentHash> HashOf(const Shard& shard, const ShardExtent& extent, const ExtentPart& part,
                                   ArrayKind kind) {
  const ParameterSpec& spec = shard.extents().Spec(extent);
  const checkpoint::StateForm form = *checkpoint::StateFormOf(kind);
  ASSIGN_OR_RETURN(const HostView elements, shard.arrays().StoredArray(extent, form.tensor, form.form, part));
  if (kind != ArrayKind::kMaster || spec.master_type != MasterType::kBF16Remainder) {
    return checkpoint::HashRows(part.rows.begin, checkpoint::ShapeOf(spec, kind)->row_bytes(), elements.bytes());
  }
  ASSIGN_OR_RETURN(const HostView rest, shard.arrays().StoredArray(extent, form.tensor, TensorForm::kRest, part));
  return checkpoint::HashJoinedRows(part.rows.begin, spec.columns(), elements.bytes(), rest.bytes());
}

// Adds the content hashes of some arrays of a part of an extent, as its shard's memory holds them now.
absl::Status AddContent(const Shard& shard, const ShardExtent& extent, const ExtentPart& part,
                        absl::Span<const ArrayKind> kinds, ContentHashes& tensors) {
  const ParameterSpec& spec = shard.extents().Spec(extent);
  absl::ReaderMutexLock lock(&shard.mutex());
  if (checkpoint::PlanesAreState(spec)) return AddPlanes(shard, extent, part, kinds, tensors);
  for (const ArrayKind kind : kinds) {
    ASSIGN_OR_RETURN(const ContentHash hash, HashOf(shard, extent, part, kind));
    tensors[checkpoint::TensorKey(spec, kind)] += hash;
  }
  return absl::OkStatus();
}

}  // namespace

// --- Before anything changes ---

absl::StatusOr<std::unique_ptr<CheckpointLoader>> CheckpointLoader::Create(Options options) {
  std::unique_ptr<CheckpointLoader> loader(new CheckpointLoader(std::move(options)));
  RETURN_IF_ERROR(loader->CheckNumbers());
  RETURN_IF_ERROR(loader->ReadNumbers());
  loader->FindTargets();
  loader->CutPieces();
  RETURN_IF_ERROR(loader->MakeRoom());
  RETURN_IF_ERROR(loader->StartThreadPool());
  return loader;
}

CheckpointLoader::~CheckpointLoader() {
  for (Shard* const shard : options_.shards) shard->GiveUpRoom();
}

const ParameterSpec& CheckpointLoader::SavedSpec(int parameter) const {
  const ParameterPlace& place = PlanOf(parameter).saved;
  return reader().spec().units[place.unit].parameters[place.parameter];
}

void CheckpointLoader::FindTargets() {
  targets_.resize(options_.plan.parameters().size());
  for (size_t i = 0; i < targets_.size(); ++i) {
    const RestorePlan::Parameter& parameter = PlanOf(static_cast<int>(i));
    for (Shard* const shard : options_.shards) {
      const ShardExtent* const extent = shard->extents().Find(parameter.place.unit, parameter.place.parameter);
      if (extent == nullptr) continue;
      targets_[i].push_back({shard, extent});
      if (!parameter.hashed.empty()) AddResident(static_cast<int>(i), targets_[i].back());
    }
  }
}

void CheckpointLoader::AddResident(int parameter, const Target& target) {
  for (const ExtentPart& part : target.shard->extents().Parts(*target.extent)) {
    resident_.push_back({parameter, target, part});
    all_bytes_ += BytesOf(resident_.back());
  }
}

int64_t CheckpointLoader::BytesOf(const ResidentPart& resident) const {
  int64_t bytes = 0;
  for (const ArrayKind kind : PlanOf(resident.parameter).hashed) {
    const ArrayShape shape = *checkpoint::ShapeOf(resident.target.shard->extents().Spec(*resident.target.extent), kind);
    bytes += shape.RowsOf(resident.part.rows).size() * shape.row_bytes();
  }
  return bytes;
}

// In the order of files and of their data, so that disks read ahead.
void CheckpointLoader::CutPieces() {
  std::map<std::string, Piece, std::less<>> pieces;  // by tensor key; without places
  for (int i = 0; i < static_cast<int>(targets_.size()); ++i) {
    const ParameterSpec& saved = SavedSpec(i);
    for (const ArrayKind kind : PlanOf(i).arrays) {
      pieces[checkpoint::TensorKey(saved, kind)] = {.parameter = i, .kind = kind};
    }
    for (const StateTensor tensor : PlanOf(i).tensors) {
      const ArrayKind kind = checkpoint::ElementsOf(saved, tensor);
      pieces[checkpoint::TensorKey(saved, kind)] = {.parameter = i, .kind = kind, .tensor = tensor};
    }
  }
  for (const Reader::Place& place : reader().Places()) {
    // Scales and the like are read with their elements; common.safetensors has been read.
    const auto found = pieces.find(place.key);
    if (found == pieces.end()) continue;
    Piece piece = found->second;
    piece.places = {place};
    const RowRange wanted = WantedOf(piece);
    if (wanted.size() == 0) continue;
    piece.places = {place.ChunksWith(wanted)};
    AddPlace(piece);
  }
  for (const Piece& piece : pieces_) all_bytes_ += piece.size_bytes();
}

RowRange CheckpointLoader::WantedOf(const Piece& piece) const {
  const ArrayShape shape = *checkpoint::ShapeOf(SavedSpec(piece.parameter), piece.kind);
  RowRange wanted;
  for (const Target& target : targets_[piece.parameter]) {
    const RowRange rows = Overlap(Needed(shape, *target.extent), piece.rows());
    if (rows.size() == 0) continue;
    wanted = wanted.size() == 0 ? rows : RowRange{std::min(wanted.begin, rows.begin), std::max(wanted.end, rows.end)};
  }
  return wanted;
}

void CheckpointLoader::AddPlace(const Piece& piece) {
  Piece* const last = pieces_.empty() ? nullptr : &pieces_.back();
  const bool goes_on = last != nullptr && piece.tensor.has_value() && last->parameter == piece.parameter &&
                       last->tensor == piece.tensor && last->rows().end == piece.rows().begin &&
                       last->places.size() < kPlacesOfAPiece;
  if (goes_on) {
    last->places.push_back(piece.places.front());
  } else {
    pieces_.push_back(piece);
  }
}

int64_t CheckpointLoader::Piece::size_bytes() const {
  int64_t bytes = 0;
  for (const Reader::Place& place : places) bytes += place.rows.size_bytes();
  return bytes;
}

absl::Status CheckpointLoader::MakeRoom() {
  std::map<Shard*, std::vector<const ShardExtent*>> extents;
  for (size_t i = 0; i < targets_.size(); ++i) {
    if (PlanOf(static_cast<int>(i)).tensors.empty()) continue;
    for (const Target& target : targets_[i]) extents[target.shard].push_back(target.extent);
  }
  for (const auto& [shard, of_shard] : extents) {
    const absl::Status status = shard->MakeRoom(of_shard);
    if (status.ok()) continue;
    return absl::Status(status.code(),
                        absl::StrCat("restore ", DisplayName(options_.spec->name), ": ", status.message()));
  }
  return absl::OkStatus();
}

int CheckpointLoader::MostThreads() const {
  const bool decodes =
      std::any_of(pieces_.begin(), pieces_.end(), [](const Piece& piece) { return piece.tensor.has_value(); });
  return decodes ? kDecodingThreads : kDefaultThreads;
}

absl::Status CheckpointLoader::StartThreadPool() {
  const auto works = static_cast<int>(std::min<size_t>(std::max(pieces_.size(), resident_.size()), INT32_MAX));
  ASSIGN_OR_RETURN(pool_, ThreadPool::Start(absl::StrCat("a restore of ", DisplayName(options_.spec->name)),
                                            std::clamp(options_.threads, 1, std::clamp(works, 1, MostThreads()))));
  return absl::OkStatus();
}

absl::Status CheckpointLoader::CheckNumbers() const {
  const checkpoint::CommonState& common = reader().common();
  int64_t largest = common.commit_number;
  for (const int64_t steps : common.step_counts) largest = std::max(largest, steps);
  if (largest < kNumberLimit) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("restore ", DisplayName(options_.spec->name), ": ", reader().folder(),
                                                 ": want a commit number and step counts below ", kNumberLimit,
                                                 ", got ", largest));
}

absl::Status CheckpointLoader::ReadNumbers() {
  const checkpoint::CommonState& common = reader().common();
  const checkpoint::Manifest& manifest = reader().manifest();
  CommitLog::State& commits = restored_.commits;
  commits.numbers = {.commit_number = common.commit_number, .version = common.version, .skipped = common.skipped};
  if (common.last_answer.has_value()) {
    commits.last_answer = CommitAnswer{.commit_number = common.commit_number,
                                       .version = common.version,
                                       .skipped = common.last_answer->skipped,
                                       .gradient_norm = common.last_answer->gradient_norm,
                                       .non_finite_count = common.last_answer->non_finite_count};
  }
  for (int i = 0; i < static_cast<int>(options_.shards.size()); ++i) {
    ASSIGN_OR_RETURN(commits.client_states.emplace_back(), reader().ClientState(options_.first_rank + i));
  }
  restored_.scaling = Records();
  restored_.checkpoint_id = manifest.save_id;
  restored_.parent = {.history = {manifest.history}, .commit_number = manifest.step};
  int64_t next = 0;
  for (const UnitSpec& unit : reader().spec().units) {
    first_parameters_.push_back(next);
    next += static_cast<int64_t>(unit.parameters.size());
  }
  return absl::OkStatus();
}

std::vector<ScalingBook::Record> CheckpointLoader::Records() const {
  std::map<std::pair<int, int>, const checkpoint::BookEntry*> entries;
  for (const checkpoint::BookEntry& entry : reader().common().book) entries[{entry.unit, entry.parameter}] = &entry;
  std::vector<ScalingBook::Record> records;
  for (const RestorePlan::Parameter& parameter : options_.plan.parameters()) {
    const auto found = entries.find({parameter.saved.unit, parameter.saved.parameter});
    if (!parameter.keeps_scaling || found == entries.end()) continue;
    const ParameterPlace& place = parameter.place;
    records.push_back(RecordOf(*found->second, place, options_.spec->units[place.unit].parameters[place.parameter]));
  }
  return records;
}

int64_t CheckpointLoader::StepsOf(int parameter) const {
  const ParameterPlace& place = PlanOf(parameter).saved;
  return reader().common().step_counts[first_parameters_[place.unit] + place.parameter];
}

// --- The change ---

absl::Status CheckpointLoader::CheckContinue() const {
  return cancelled_ ? absl::CancelledError("cancelled before it was done") : absl::OkStatus();
}

absl::Status CheckpointLoader::Load() {
  absl::Status status = CheckContinue();
  if (status.ok()) status = LoadAll();
  if (status.ok()) return status;
  return absl::Status(
      status.code(),
      absl::StrCat("restore ", DisplayName(options_.spec->name), ": ", status.message(),
                   torn() ? "; a part is written: restore another checkpoint, or delete the model" : ""));
}

absl::Status CheckpointLoader::LoadAll() {
  torn_ = true;
  std::vector<safetensors::PageBuffer> buffers(pool_->threads());
  RETURN_IF_ERROR(pool_->Run(static_cast<int64_t>(pieces_.size()),
                             [&](int thread, int64_t i) { return WritePiece(pieces_[i], buffers[thread]); }));
  buffers.clear();
  SetSteps();
  RETURN_IF_ERROR(
      pool_->Run(static_cast<int64_t>(resident_.size()), [&](int, int64_t i) { return HashResident(resident_[i]); }));
  torn_ = false;
  return absl::OkStatus();
}

absl::Status CheckpointLoader::WritePiece(const Piece& piece, safetensors::PageBuffer& buffer) {
  RETURN_IF_ERROR(CheckContinue());
  RETURN_IF_ERROR(piece.tensor.has_value() ? WriteTensor(piece) : WriteArray(piece, buffer));
  done_bytes_ += piece.size_bytes();
  return absl::OkStatus();
}

absl::Status CheckpointLoader::WriteArray(const Piece& piece, safetensors::PageBuffer& buffer) const {
  const ArrayShape shape = *checkpoint::ShapeOf(SavedSpec(piece.parameter), piece.kind);
  ASSIGN_OR_RETURN(const absl::Span<const uint8_t> bytes, reader().Read(piece.places.front(), buffer));
  for (const Target& target : targets_[piece.parameter]) {
    const RowRange rows = Overlap(Needed(shape, *target.extent), piece.rows());
    if (rows.size() == 0) continue;
    const int64_t first = (rows.begin - piece.rows().begin) * shape.row_bytes();
    RETURN_IF_ERROR(WriteRows(*target.shard, *target.extent, piece.kind, ParameterRowsOf(shape, rows, *target.extent),
                              bytes.subspan(first, rows.size() * shape.row_bytes())));
  }
  return absl::OkStatus();
}

absl::Status CheckpointLoader::WriteTensor(const Piece& piece) const {
  const int64_t columns = SavedSpec(piece.parameter).columns();
  return checkpoint::ReadValues(reader(), PlanOf(piece.parameter).saved, *piece.tensor, piece.rows(),
                                [&](const RowRange& run, absl::Span<const float> values) -> absl::Status {
                                  RETURN_IF_ERROR(CheckContinue());
                                  for (const Target& target : targets_[piece.parameter]) {
                                    const RowRange rows = Overlap(target.extent->rows, run);
                                    if (rows.size() == 0) continue;
                                    RETURN_IF_ERROR(target.shard->WriteRows(
                                        *target.extent, *piece.tensor, rows,
                                        values.subspan((rows.begin - run.begin) * columns, rows.size() * columns)));
                                  }
                                  return absl::OkStatus();
                                });
}

void CheckpointLoader::SetSteps() const {
  for (int i = 0; i < static_cast<int>(targets_.size()); ++i) {
    for (const Target& target : targets_[i]) target.shard->SetStep(*target.extent, StepsOf(i));
  }
}

absl::Status CheckpointLoader::HashResident(const ResidentPart& resident) {
  RETURN_IF_ERROR(CheckContinue());
  ContentHashes hashes;
  RETURN_IF_ERROR(AddContent(*resident.target.shard, *resident.target.extent, resident.part,
                             PlanOf(resident.parameter).hashed, hashes));
  done_bytes_ += BytesOf(resident);
  absl::MutexLock lock(&mu_);
  for (const auto& [key, hash] : hashes) content_[key] += hash;
  return absl::OkStatus();
}

absl::Status CheckpointLoader::Check(const ContentHashes& sums, int replicas) const {
  const ContentHashes& saved = reader().manifest().tensors;
  for (const RestorePlan::Parameter& parameter : options_.plan.parameters()) {
    const ParameterSpec& spec = options_.spec->units[parameter.place.unit].parameters[parameter.place.parameter];
    for (const ArrayKind kind : parameter.hashed) {
      const std::string key = checkpoint::TensorKey(spec, kind);
      const auto of_checkpoint = saved.find(key);
      const auto of_shards = sums.find(key);
      ContentHash expected = of_checkpoint == saved.end() ? ContentHash() : of_checkpoint->second;
      expected.sum *= replicas;
      expected.rows *= replicas;
      const ContentHash got = of_shards == sums.end() ? ContentHash() : of_shards->second;
      if (got == expected) continue;
      return absl::DataLossError(
          absl::StrCat("restore ", DisplayName(options_.spec->name), ": tensor ", DisplayName(key),
                       ": want content hash ", checkpoint::HashText(expected.sum), " of ", expected.rows,
                       " rows in all replicas, got ", checkpoint::HashText(got.sum), " of ", got.rows));
    }
  }
  return absl::OkStatus();
}

}  // namespace paramshard::server
