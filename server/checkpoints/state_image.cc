#include "server/checkpoints/state_image.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/checkpoint/content_hash.h"
#include "common/checkpoint/rank_image.h"
#include "common/model/limits.h"
#include "common/model/names.h"
#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"
#include "server/base/thread_pool.h"
#include "server/checkpoints/plane_piece.h"

namespace paramshard::server {
namespace {

using checkpoint::PlannedFile;
using checkpoint::PlannedTensor;
using checkpoint::RankFilePlan;

// Files begin at pages, so that they can also be written around the page cache.
constexpr int64_t kFileAlignment = 4096;

int64_t RoomOf(const PlannedFile& file) {
  const int64_t size_bytes = file.size_bytes(static_cast<int64_t>(kMaxClientStateBytes));
  return (size_bytes + kFileAlignment - 1) / kFileAlignment * kFileAlignment;
}

// Cuts rows into whole granules of about StateImage::kElementsOfAPart elements.
std::vector<RowRange> RowsOfPieces(const RowRange& rows, int64_t columns, int64_t granule) {
  const int64_t rows_of_a_piece = std::max(granule, StateImage::kElementsOfAPart / columns / granule * granule);
  std::vector<RowRange> pieces;
  for (int64_t row = rows.begin; row < rows.end; row += rows_of_a_piece) {
    pieces.push_back({row, std::min(row + rows_of_a_piece, rows.end)});
  }
  return pieces;
}

// Cuts a piece into parts: rows that are longer than a part are read row by row, in parts of a row.
std::vector<ExtentPart> PartsOf(const RowRange& rows, int64_t columns, bool may_cut_rows) {
  if (!may_cut_rows || columns <= StateImage::kElementsOfAPart)
    return {{.rows = rows, .first_column = 0, .columns = columns}};
  std::vector<ExtentPart> parts;
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    for (int64_t column = 0; column < columns; column += StateImage::kElementsOfAPart) {
      parts.push_back({.rows = {row, row + 1},
                       .first_column = column,
                       .columns = std::min(StateImage::kElementsOfAPart, columns - column)});
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
                                                               int rank, ComputeDevice& device,
                                                               int64_t max_header_bytes) {
  ASSIGN_OR_RETURN(RankFilePlan plan, RankFilePlan::Create(layout, world, rank, max_header_bytes));
  auto image = std::unique_ptr<StateImage>(new StateImage(layout, rank, device, std::move(plan)));
  const std::string name = absl::StrCat("save of ", DisplayName(layout.spec().name), ", rank ", rank);
  ASSIGN_OR_RETURN(image->memory_, Memory::Allocate(name, SizeOf(image->plan_), Sharing::kPrivate));
  // This is advice: a kernel that ignores it makes larger core dumps.
  madvise(image->memory_.data(), image->memory_.size_bytes(), MADV_DONTDUMP);
  ASSIGN_OR_RETURN(image->leave_, device.OpenHostMemory(image->memory_));
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
      share.targets.push_back({.file = i, .tensor = &tensor, .shape = *ShapeOf(parameter, tensor.kind)});
      chunk += ChunkCount(tensor.run);
    }
    chunk_counts_.push_back(chunk);
  }
  for (auto& [place, share] : shares) shares_.push_back(std::move(share));
  CutPieces();
}

void StateImage::CutPieces() {
  for (const Share& share : shares_) {
    const ParameterSpec& spec = layout_.spec().units[share.unit].parameters[share.parameter];
    for (const RowRange& rows : RowsOfPieces(share.rows, spec.columns(), checkpoint::SavedGranule(spec))) {
      pieces_.push_back({&share, PartsOf(rows, spec.columns(), !checkpoint::PlanesAreState(spec))});
    }
  }
}

absl::Status StateImage::Fill(const Shard& shard, absl::string_view client_state, Check check, int threads) {
  if (client_state.size() > kMaxClientStateBytes) {
    return absl::InvalidArgumentError(absl::StrCat("save rank ", rank_, ": want a client state of at most ",
                                                   kMaxClientStateBytes, " bytes, got ", client_state.size()));
  }
  Restart(client_state);
  RETURN_IF_ERROR(FillSteps(shard, check));
  std::vector<std::unique_ptr<DeviceQueue>> queues(threads);
  for (auto& queue : queues) {
    ASSIGN_OR_RETURN(queue, device_.MakeQueue());
  }
  ASSIGN_OR_RETURN(const auto pool, ThreadPool::Start("a copy for a save", threads));
  RETURN_IF_ERROR(pool->Run(static_cast<int64_t>(pieces_.size()), [&](int thread, int64_t index) {
    return FillPiece(shard, check, pieces_[index], *queues[thread]);
  }));
  AddClientState(client_state);
  is_filled_ = true;
  return absl::OkStatus();
}

void StateImage::Restart(absl::string_view client_state) {
  is_filled_ = false;
  is_hashed_ = false;
  client_state_bytes_ = static_cast<int64_t>(client_state.size());
  step_counts_.clear();
  chunk_sums_.resize(file_count());
  for (int i = 0; i < file_count(); ++i) {
    chunk_sums_[i].assign(chunk_counts_[i], 0);
    const std::string header = file(i).Header(file(i).takes_client_state() ? client_state_bytes_ : 0);
    std::memcpy(DataOf(i), header.data(), header.size());
  }
}

absl::Status StateImage::FillSteps(const Shard& shard, Check check) {
  absl::ReaderMutexLock lock(&shard.mutex());
  RETURN_IF_ERROR(check(shard));
  for (const ShardExtent& extent : shard.extents())
    step_counts_[shard.extents().Spec(extent).name] = shard.numbers(extent).step;
  return absl::OkStatus();
}

uint8_t* StateImage::PlaceOf(const Target& target, const RowRange& rows) const {
  const checkpoint::RowRun& run = target.tensor->run;
  return DataOf(target.file) + run.offset_bytes + (target.shape.RowsOf(rows).begin - run.first_row) * run.row_bytes;
}

absl::Status StateImage::FillPiece(const Shard& shard, Check check, const Piece& piece, DeviceQueue& queue) {
  const Share& share = *piece.share;
  const ShardExtent* const extent = shard.extents().Find(share.unit, share.parameter);
  PARAMSHARD_CHECK(extent != nullptr);
  const bool has_planes = checkpoint::PlanesAreState(shard.extents().Spec(*extent));
  const RowRange rows{piece.parts.front().rows.begin, piece.parts.back().rows.end};
  std::vector<uint8_t*> places;
  for (const Target& target : share.targets) places.push_back(PlaceOf(target, rows));
  for (const ExtentPart& part : piece.parts) {
    absl::ReaderMutexLock lock(&shard.mutex());
    RETURN_IF_ERROR(check(shard));
    RETURN_IF_ERROR(has_planes ? CopyPlanes(shard, *extent, part.rows, share, absl::MakeSpan(places))
                               : CopyRows(shard, *extent, part, share, queue, absl::MakeSpan(places)));
  }
  for (size_t i = 0; i < places.size(); ++i) {
    const Target& target = share.targets[i];
    PARAMSHARD_CHECK(places[i] ==
                     PlaceOf(target, rows) + target.shape.RowsOf(rows).size() * target.tensor->run.row_bytes);
  }
  return absl::OkStatus();
}

absl::Status StateImage::CopyRows(const Shard& shard, const ShardExtent& extent, const ExtentPart& part,
                                  const Share& share, DeviceQueue& queue, absl::Span<uint8_t*> places) {
  for (size_t i = 0; i < places.size(); ++i) {
    const checkpoint::StateForm form = *checkpoint::StateFormOf(share.targets[i].tensor->kind);
    ASSIGN_OR_RETURN(const int64_t bytes,
                     shard.arrays().CopyStored(extent, form.tensor, form.form, part, queue, places[i]));
    places[i] += bytes;
  }
  return absl::OkStatus();
}

absl::Status StateImage::CopyPlanes(const Shard& shard, const ShardExtent& extent, const RowRange& rows,
                                    const Share& share, absl::Span<uint8_t*> places) {
  ASSIGN_OR_RETURN(const std::vector<PlaneViews> planes, PlaneBytes(shard.memory(), extent, rows));
  for (size_t i = 0; i < places.size(); ++i) {
    const Target& target = share.targets[i];
    // A number of the whole tensor comes with its first row alone.
    if (target.shape.RowsOf(rows).size() == 0) continue;
    const absl::Span<const uint8_t> bytes = PieceOf(planes, *checkpoint::PlaneFormOf(target.tensor->kind)).bytes();
    places[i] = std::copy(bytes.begin(), bytes.end(), places[i]);
  }
  return absl::OkStatus();
}

absl::Status StateImage::Hash(absl::FunctionRef<absl::Status()> check) {
  PARAMSHARD_CHECK(is_filled_);
  for (int i = 0; i < file_count(); ++i) {
    size_t next = 0;
    for (const PlannedTensor& tensor : file(i).tensors()) {
      for (const checkpoint::RowRun& chunk : checkpoint::ChunksOf(tensor.run)) {
        RETURN_IF_ERROR(check());
        chunk_sums_[i][next++] =
            checkpoint::ChunkSum(chunk, absl::MakeConstSpan(DataOf(i) + chunk.offset_bytes, chunk.size_bytes()));
      }
    }
  }
  is_hashed_ = true;
  return absl::OkStatus();
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
  PARAMSHARD_CHECK(is_hashed_);
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
      return absl::InternalError(absl::StrCat("save rank ", rank_, ": parameter ", DisplayName(name), ": want ", known,
                                              " steps as on other ranks, got ", count));
    }
  }
  return absl::OkStatus();
}

}  // namespace paramshard::server
