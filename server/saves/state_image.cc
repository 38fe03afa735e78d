#include "server/saves/state_image.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"
#include "kernels/optim/moment.h"
#include "proto/checkpoint/content_hash.h"
#include "proto/checkpoint/rank_image.h"
#include "proto/model/limits.h"
#include "proto/model/names.h"

namespace paramshard::server {
namespace {

using checkpoint::PlannedFile;
using checkpoint::PlannedTensor;
using checkpoint::RankFilePlan;

// Read at a time: 4 MiB in fp32. Whole blocks of moments.
constexpr int64_t kElementsOfAPart = int64_t{1} << 20;
static_assert(kElementsOfAPart % kMomentBlockSize == 0);

// Files begin at pages, so that they can also be written around the page cache.
constexpr int64_t kFileAlignment = 4096;

int64_t RoomOf(const PlannedFile& file) {
  const int64_t size_bytes = file.size_bytes(static_cast<int64_t>(kMaxClientStateBytes));
  return (size_bytes + kFileAlignment - 1) / kFileAlignment * kFileAlignment;
}

absl::Span<const uint8_t> PieceOf(const std::vector<PlaneViews>& planes, const checkpoint::PlaneForm& form) {
  const PlaneViews& plane = planes[form.plane == Plane::kRowWise ? 0 : 1];
  switch (form.piece) {
    case checkpoint::PlanePiece::kData:
      return plane.data.bytes();
    case checkpoint::PlanePiece::kScales:
      return plane.scales.bytes();
    case checkpoint::PlanePiece::kAmax:
      break;
  }
  return plane.amax.bytes();
}

// Whole granules of rows of about kElementsOfAPart; of rows that are longer, parts of one row where they may be cut.
std::vector<ExtentPart> PartsOf(const RowRange& rows, int64_t columns, int64_t granule, bool may_cut_rows) {
  const int64_t rows_of_a_part = std::max(granule, kElementsOfAPart / columns / granule * granule);
  const int64_t columns_of_a_part = may_cut_rows ? kElementsOfAPart : columns;
  std::vector<ExtentPart> parts;
  for (int64_t row = rows.begin; row < rows.end; row += rows_of_a_part) {
    for (int64_t column = 0; column < columns; column += columns_of_a_part) {
      parts.push_back({.rows = {row, std::min(row + rows_of_a_part, rows.end)},
                       .first_column = column,
                       .columns = std::min(columns_of_a_part, columns - column)});
    }
  }
  return parts;
}

}  // namespace

int64_t StateImage::SizeOf(const RankFilePlan& plan) {
  int64_t bytes = 0;
  for (const PlannedFile& file : plan.files()) bytes += RoomOf(file);
  return bytes;
}

absl::StatusOr<std::unique_ptr<StateImage>> StateImage::Create(const Layout& layout, const checkpoint::World& world,
                                                               int rank, int64_t max_header_bytes) {
  ASSIGN_OR_RETURN(RankFilePlan plan, RankFilePlan::Create(layout, world, rank, max_header_bytes));
  auto image = std::unique_ptr<StateImage>(new StateImage(layout, rank, std::move(plan)));
  const std::string name = absl::StrCat("save of ", DisplayName(layout.spec().name), ", rank ", rank);
  ASSIGN_OR_RETURN(image->memory_, Memory::Allocate(name, SizeOf(image->plan_), Sharing::kPrivate));
  // Advice: a kernel that does not take it makes larger cores.
  madvise(image->memory_.data(), image->memory_.size_bytes(), MADV_DONTDUMP);
  image->MakeTargets();
  return image;
}

void StateImage::MakeTargets() {
  const ModelSpec& spec = layout_.spec();
  std::map<std::pair<int, int>, Share> shares;  // by unit and parameter
  int64_t offset = 0;
  for (int i = 0; i < file_count(); ++i) {
    file_offsets_.push_back(offset);
    offset += RoomOf(file(i));
    size_t chunk = 0;
    for (const PlannedTensor& tensor : file(i).tensors()) {
      Share& share = shares[{tensor.unit, tensor.parameter}];
      share.unit = tensor.unit;
      share.parameter = tensor.parameter;
      share.rows = tensor.parameter_rows;
      const ParameterSpec& parameter = spec.units[tensor.unit].parameters[tensor.parameter];
      share.targets.push_back(
          {.file = i, .tensor = &tensor, .shape = *ShapeOf(parameter, tensor.kind), .first_chunk = chunk});
      chunk += ChunkCount(tensor.run);
    }
    chunk_counts_.push_back(chunk);
  }
  for (auto& [place, share] : shares) shares_.push_back(std::move(share));
}

absl::Status StateImage::Fill(const Shard& shard, absl::string_view client_state, Check check) {
  if (client_state.size() > kMaxClientStateBytes) {
    return absl::InvalidArgumentError(absl::StrCat("save rank ", rank_, ": a client state of at most ",
                                                   kMaxClientStateBytes, " bytes expected, got ", client_state.size()));
  }
  Restart(client_state);
  RETURN_IF_ERROR(FillSteps(shard, check));
  for (Share& share : shares_) RETURN_IF_ERROR(FillShare(shard, check, share));
  AddClientState(client_state);
  is_filled_ = true;
  return absl::OkStatus();
}

void StateImage::Restart(absl::string_view client_state) {
  is_filled_ = false;
  client_state_bytes_ = static_cast<int64_t>(client_state.size());
  step_counts_.clear();
  chunk_sums_.resize(file_count());
  for (int i = 0; i < file_count(); ++i) {
    chunk_sums_[i].assign(chunk_counts_[i], 0);
    const std::string header = file(i).Header(file(i).takes_client_state() ? client_state_bytes_ : 0);
    std::memcpy(DataOf(i), header.data(), header.size());
  }
  for (Share& share : shares_) {
    for (Target& target : share.targets) target.filled_bytes = target.hashed_rows = 0;
  }
}

absl::Status StateImage::FillSteps(const Shard& shard, Check check) {
  absl::ReaderMutexLock lock(&shard.mutex());
  RETURN_IF_ERROR(check(shard));
  for (const ShardExtent& extent : shard.extents()) step_counts_[shard.Spec(extent).name] = shard.step(extent);
  return absl::OkStatus();
}

absl::Status StateImage::FillShare(const Shard& shard, Check check, Share& share) {
  const ShardExtent* const extent = shard.Find(share.unit, share.parameter);
  PARAMSHARD_CHECK(extent != nullptr);
  const ParameterSpec& spec = shard.Spec(*extent);
  const bool has_planes = checkpoint::PlanesAreState(spec);
  for (const ExtentPart& part :
       PartsOf(share.rows, spec.columns(), checkpoint::SavedGranule(spec), /*may_cut_rows=*/!has_planes)) {
    absl::ReaderMutexLock lock(&shard.mutex());
    RETURN_IF_ERROR(check(shard));
    RETURN_IF_ERROR(has_planes ? FillPlanes(shard, *extent, part.rows, share) : FillRows(shard, *extent, part, share));
  }
  for (const Target& target : share.targets) PARAMSHARD_CHECK(target.hashed_rows == target.tensor->run.rows);
  return absl::OkStatus();
}

absl::Status StateImage::FillRows(const Shard& shard, const ShardExtent& extent, const ExtentPart& part, Share& share) {
  for (Target& target : share.targets) {
    const checkpoint::StateForm form = *checkpoint::StateFormOf(target.tensor->kind);
    ASSIGN_OR_RETURN(const HostView view, shard.StoredArray(extent, form.tensor, form.form, part));
    Append(target, view.bytes());
  }
  return absl::OkStatus();
}

absl::Status StateImage::FillPlanes(const Shard& shard, const ShardExtent& extent, const RowRange& rows, Share& share) {
  ASSIGN_OR_RETURN(const std::vector<PlaneViews> planes, shard.PlaneBytes(extent, rows));
  for (Target& target : share.targets) {
    // What is one number for the whole tensor comes with its first row alone.
    if (target.shape.RowsOf(rows).size() == 0) continue;
    Append(target, PieceOf(planes, *checkpoint::PlaneFormOf(target.tensor->kind)));
  }
  return absl::OkStatus();
}

// Rows are hashed as soon as they are whole, while they are in the cache.
void StateImage::Append(Target& target, absl::Span<const uint8_t> bytes) {
  const checkpoint::RowRun& run = target.tensor->run;
  PARAMSHARD_CHECK(target.filled_bytes + static_cast<int64_t>(bytes.size()) <= run.size_bytes());
  uint8_t* const begin = DataOf(target.file) + run.offset_bytes;
  std::memcpy(begin + target.filled_bytes, bytes.data(), bytes.size());
  target.filled_bytes += static_cast<int64_t>(bytes.size());
  const int64_t whole_rows = target.filled_bytes / run.row_bytes;
  const int64_t rows_per_chunk = checkpoint::RowsPerChunk(run.row_bytes);
  while (target.hashed_rows < whole_rows) {
    const int64_t chunk = target.hashed_rows / rows_per_chunk;
    const int64_t end = std::min(whole_rows, (chunk + 1) * rows_per_chunk);
    const auto rows =
        absl::MakeConstSpan(begin + target.hashed_rows * run.row_bytes, (end - target.hashed_rows) * run.row_bytes);
    chunk_sums_[target.file][target.first_chunk + chunk] +=
        checkpoint::HashRows(run.first_row + target.hashed_rows, run.row_bytes, rows).sum;
    target.hashed_rows = end;
  }
}

void StateImage::AddClientState(absl::string_view client_state) {
  if (client_state.empty()) return;
  const int last = file_count() - 1;
  PARAMSHARD_CHECK(file(last).takes_client_state());
  std::memcpy(DataOf(last) + file(last).state_bytes(), client_state.data(), client_state.size());
  const auto bytes = Bytes(last).subspan(file(last).state_bytes());
  chunk_sums_[last].push_back(checkpoint::HashRows(0, client_state_bytes_, bytes).sum);
}

absl::Span<const uint8_t> StateImage::Bytes(int index) const {
  return absl::MakeConstSpan(DataOf(index), file(index).size_bytes(client_state_bytes_));
}

absl::Status StateImage::AddTo(checkpoint::Part& part) const {
  PARAMSHARD_CHECK(is_filled_);
  std::vector<absl::Span<const uint8_t>> images;
  std::vector<checkpoint::FileEntry> entries;
  for (int i = 0; i < file_count(); ++i) {
    images.push_back(Bytes(i));
    entries.push_back(checkpoint::EntryOf(file(i), images[i], client_state_bytes_, chunk_sums_[i]));
  }
  checkpoint::AddContentHashes(layout_.spec(), plan_, images, entries, part.tensors);
  part.files.insert(part.files.end(), entries.begin(), entries.end());
  for (const auto& [name, count] : step_counts_) {
    const int64_t known = part.step_counts.emplace(name, count).first->second;
    if (known != count) {
      return absl::InternalError(absl::StrCat("save rank ", rank_, ": parameter ", DisplayName(name), ": ", known,
                                              " steps expected as on other ranks, got ", count));
    }
  }
  return absl::OkStatus();
}

}  // namespace paramshard::server
