#include "common/checkpoint/rank_file.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/model/limits.h"
#include "common/safetensors/shallow_json.h"
#include "common/safetensors/sharding_info.h"
#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"

namespace paramshard::checkpoint {
namespace {

using safetensors::Dtype;
using safetensors::Header;
using safetensors::Metadata;
using safetensors::TensorInfo;

// Two numbers of a shape and four of offsets, names of members, braces and commas: in the list of tensors and in the
// sharding info.
constexpr int64_t kMaxEntryBytes = 400;

// Returns all arrays of which a rank saves rows, in the order of the model. Runs have no offset yet.
std::vector<PlannedTensor> TensorsOf(const Layout& layout, const World& world, int rank) {
  std::vector<PlannedTensor> tensors;
  const int replicas = world.size / world.shard_size;
  const auto& units = layout.spec().units;
  for (int unit = 0; unit < static_cast<int>(units.size()); ++unit) {
    for (int parameter = 0; parameter < static_cast<int>(units[unit].parameters.size()); ++parameter) {
      const ParameterSpec& spec = units[unit].parameters[parameter];
      const RowRange extent = layout.Extent(unit, parameter, rank % world.shard_size);
      const RowRange share = ShareOf(extent, SavedGranule(spec), rank / world.shard_size, replicas);
      if (share.size() == 0) continue;
      for (const ArrayKind kind : ArraysOf(spec)) {
        const ArrayShape shape = *ShapeOf(spec, kind);
        const RowRange rows = shape.RowsOf(share);
        if (rows.size() == 0) continue;
        tensors.push_back({.kind = kind,
                           .unit = unit,
                           .parameter = parameter,
                           .key = TensorKey(spec, kind),
                           .dtype = shape.dtype,
                           .columns = shape.columns,
                           .parameter_rows = share,
                           .run = {.first_row = rows.begin, .rows = rows.size(), .row_bytes = shape.row_bytes()}});
      }
    }
  }
  return tensors;
}

absl::Status Invalid(absl::string_view key, absl::string_view message) {
  return absl::InvalidArgumentError(absl::StrCat("tensor ", safetensors::NameText(key), ": ", message));
}

}  // namespace

RowRange ShareOf(const RowRange& extent, int64_t granule, int replica, int replicas) {
  const int64_t granules = (extent.size() + granule - 1) / granule;
  const auto row = [&](int64_t index) {
    return std::min(extent.begin + granules * index / replicas * granule, extent.end);
  };
  return {.begin = row(replica), .end = row(replica + 1)};
}

int64_t MaxEntryBytes(const std::string& key) {
  // The header has the name twice, once as a JSON text within a JSON text.
  const std::string once = safetensors::JsonText(key);
  return kMaxEntryBytes + static_cast<int64_t>(once.size() + safetensors::JsonText(once).size());
}

std::string RankFileName(int rank, int world_size, int index) {
  const std::string stem = absl::StrFormat("rank-%05d-of-%05d", rank, world_size);
  return index == 0 ? absl::StrCat(stem, ".safetensors") : absl::StrCat(stem, "-", index, ".safetensors");
}

Metadata FileMetadata(const std::vector<SavedOffset>& offsets) {
  safetensors::SavedOffsets info;
  for (const SavedOffset& offset : offsets) {
    std::vector<int64_t>& saved = info[offset.key];
    saved.assign(offset.dimensions, 0);
    saved[0] = offset.first_row;
  }
  return {{safetensors::kShardingInfoKey, safetensors::SerializeShardingInfo(info)}, {"format", "pt"}};
}

absl::StatusOr<std::vector<RowRun>> RunsOf(const Header& header, int64_t header_bytes, int64_t chunk_bytes) {
  ASSIGN_OR_RETURN(const std::vector<std::vector<int64_t>> offsets, safetensors::ParseShardingInfo(header));
  std::vector<RowRun> runs;
  for (size_t i = 0; i < header.tensors.size(); ++i) {
    const TensorInfo& tensor = header.tensors[i];
    const size_t dimensions = tensor.shape.size();
    if (dimensions < 1 || dimensions > 2 || tensor.size_bytes == 0) {
      return Invalid(tensor.name, absl::StrCat("want 1 or 2 dimensions with elements, got ", dimensions));
    }
    const std::vector<int64_t>& saved = offsets[i];
    if (saved.back() != 0) return Invalid(tensor.name, "want saved_offsets of whole rows");
    const int64_t first_row = saved.front();
    const int64_t rows = dimensions == 1 ? 1 : tensor.shape[0];
    runs.push_back({.first_row = first_row,
                    .rows = rows,
                    .row_bytes = tensor.size_bytes / rows,
                    .offset_bytes = header_bytes + tensor.offset_bytes,
                    .chunk_bytes = chunk_bytes});
  }
  return runs;
}

Header PlannedFile::MakeHeader(int64_t client_state_bytes) const {
  safetensors::Header header;
  std::vector<SavedOffset> offsets;
  int64_t offset = 0;
  for (const PlannedTensor& tensor : tensors_) {
    header.tensors.push_back(
        {tensor.key, tensor.dtype, {tensor.run.rows, tensor.columns}, offset, tensor.run.size_bytes()});
    offsets.push_back({tensor.key, tensor.run.first_row});
    offset += tensor.run.size_bytes();
  }
  if (takes_client_state_ && client_state_bytes > 0) {
    const std::string key = ClientStateKey(world_rank_);
    header.tensors.push_back({key, Dtype::kU8, {client_state_bytes}, offset, client_state_bytes});
    offsets.push_back({key, 0, 1});
  }
  header.metadata = FileMetadata(offsets);
  return header;
}

// The header is sized for the longest client state; a shorter one leaves room that spaces fill.
void PlannedFile::Place() {
  std::stable_sort(tensors_.begin(), tensors_.end(), [](const PlannedTensor& a, const PlannedTensor& b) {
    return safetensors::DtypeBits(a.dtype) > safetensors::DtypeBits(b.dtype);
  });
  header_bytes_ = static_cast<int64_t>(safetensors::SerializeHeader(MakeHeader(kMaxClientStateBytes)).size());
  state_bytes_ = header_bytes_;
  for (PlannedTensor& tensor : tensors_) {
    tensor.run.offset_bytes = state_bytes_;
    state_bytes_ += tensor.run.size_bytes();
  }
  for (PlannedTensor& tensor : tensors_) tensor.run.chunk_bytes = chunk_bytes();
}

std::string PlannedFile::Header(int64_t client_state_bytes) const {
  PARAMSHARD_CHECK(client_state_bytes >= 0 && client_state_bytes <= static_cast<int64_t>(kMaxClientStateBytes));
  return safetensors::SerializeHeader(MakeHeader(client_state_bytes), header_bytes_);
}

std::vector<RowRun> PlannedFile::Chunks(int64_t client_state_bytes) const {
  std::vector<RowRun> chunks;
  for (const PlannedTensor& tensor : tensors_) {
    const std::vector<RowRun> more = ChunksOf(tensor.run);
    chunks.insert(chunks.end(), more.begin(), more.end());
  }
  if (takes_client_state_ && client_state_bytes > 0) {
    chunks.push_back({.rows = 1, .row_bytes = client_state_bytes, .offset_bytes = state_bytes_});
  }
  return chunks;
}

absl::StatusOr<RankFilePlan> RankFilePlan::Create(const Layout& layout, const World& world, int rank,
                                                  int64_t max_header_bytes) {
  if (world.size < 1 || world.shard_size < 1 || world.size % world.shard_size != 0 ||
      layout.ranks() != world.shard_size || rank < 0 || rank >= world.size) {
    return absl::InvalidArgumentError(absl::StrCat("plan files of rank ", rank, ": want a world of whole groups of ",
                                                   layout.ranks(), " ranks, got ", world.size, " ranks in groups of ",
                                                   world.shard_size));
  }
  RankFilePlan plan;
  int64_t header_bytes = max_header_bytes;  // so that the first tensor begins a file
  for (PlannedTensor& tensor : TensorsOf(layout, world, rank)) {
    const int64_t entry_bytes = MaxEntryBytes(tensor.key);
    if (header_bytes + entry_bytes > max_header_bytes) {
      plan.files_.emplace_back();
      // The client state's entry, and what every header has.
      header_bytes = MaxEntryBytes(ClientStateKey(rank));
    }
    header_bytes += entry_bytes;
    plan.files_.back().tensors_.push_back(std::move(tensor));
  }
  if (plan.files_.empty()) plan.files_.emplace_back();
  plan.files_.back().takes_client_state_ = true;
  for (size_t i = 0; i < plan.files_.size(); ++i) {
    plan.files_[i].name_ = RankFileName(rank, world.size, static_cast<int>(i));
    plan.files_[i].world_rank_ = rank;
    plan.files_[i].Place();
  }
  return plan;
}

int64_t RankFilePlan::state_bytes() const {
  int64_t bytes = 0;
  for (const PlannedFile& file : files_) bytes += file.state_bytes();
  return bytes;
}

}  // namespace paramshard::checkpoint
