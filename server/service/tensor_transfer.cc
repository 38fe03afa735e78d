#include "server/service/tensor_transfer.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/status_macros.h"
#include "kernels/formats/bfloat16.h"
#include "kernels/formats/float16.h"
#include "proto/wire/crc32c.h"
#include "server/device/memory.h"

namespace paramshard::server {
namespace {

constexpr int64_t kFloatBytes = sizeof(float);
// Of steps and commits: they are counted up from here without overflow.
constexpr int64_t kNumberLimit = int64_t{1} << 62;

// A parameter's place in its model.
struct ParameterIndex {
  int unit = 0;
  int parameter = 0;
};

std::map<std::string, ParameterIndex> IndexParameters(const ModelSpec& spec) {
  std::map<std::string, ParameterIndex> index;
  for (int unit = 0; unit < static_cast<int>(spec.units.size()); ++unit) {
    const auto& parameters = spec.units[unit].parameters;
    for (int i = 0; i < static_cast<int>(parameters.size()); ++i) index[parameters[i].name] = {unit, i};
  }
  return index;
}

std::optional<StateTensor> TensorOf(v1::TensorKind kind) {
  if (kind < v1::TENSOR_KIND_MASTER || kind > v1::TENSOR_KIND_EXP_AVG_SQ) return std::nullopt;
  return static_cast<StateTensor>(kind - v1::TENSOR_KIND_MASTER);
}

// Bytes of an element; 0 for no type.
int64_t ElementBytes(v1::TensorType type) {
  switch (type) {
    case v1::TENSOR_TYPE_UNSPECIFIED:
    case v1::TENSOR_TYPE_FP32:
      return kFloatBytes;
    case v1::TENSOR_TYPE_BF16:
    case v1::TENSOR_TYPE_FP16:
      return sizeof(uint16_t);
    default:
      return 0;
  }
}

// `count` elements of the type, at any alignment.
void ToFloats(v1::TensorType type, const char* source, int64_t count, float* values) {
  if (ElementBytes(type) == kFloatBytes) {
    std::memcpy(values, source, count * kFloatBytes);
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    uint16_t bits;
    std::memcpy(&bits, source + i * sizeof(bits), sizeof(bits));
    values[i] = type == v1::TENSOR_TYPE_BF16 ? DecodeBFloat16(bits) : DecodeFloat16(bits);
  }
}

// A tensor whose rows of this daemon are collected before any is applied.
struct StagedTensor {
  ParameterIndex index;
  StateTensor tensor = StateTensor::kMaster;
  std::optional<int64_t> step;
  std::vector<std::vector<float>> extents;  // by rank of this daemon: whole, with what is given so far
  std::map<int64_t, int64_t> given;         // rows: end by begin, disjoint
};

// The rows that are being received.
struct Slice {
  StagedTensor* staged = nullptr;
  v1::TensorType type = v1::TENSOR_TYPE_FP32;
  RowRange rows;
  int64_t expected_bytes = 0;
  int64_t received_bytes = 0;
};

class Import {
 public:
  explicit Import(Model& model) : model_(model), index_(IndexParameters(model.spec())) {}

  absl::Status Begin(const v1::TensorHeader& header);
  absl::Status Take(const v1::TensorChunk& chunk);
  absl::Status CheckComplete() const;
  absl::Status Apply(const v1::ImportHeader& header);
  v1::ImportResponse Response() const;

 private:
  const ParameterSpec& Spec(const ParameterIndex& index) const {
    return model_.spec().units[index.unit].parameters[index.parameter];
  }
  absl::StatusOr<StagedTensor*> Stage(const ParameterIndex& index, StateTensor tensor);
  absl::Status CheckFits(const ParameterSpec& spec) const;
  void CopyOwnedRows(const v1::TensorChunk& chunk);
  absl::Status WriteExtent(Shard& shard, const ShardExtent& extent, StagedTensor& staged, size_t rank);

  Model& model_;
  const std::map<std::string, ParameterIndex> index_;
  std::map<std::tuple<int, int, StateTensor>, StagedTensor> staged_;  // by unit, parameter and tensor
  std::optional<Slice> slice_;
  int64_t received_bytes_ = 0;
};

absl::Status Import::CheckComplete() const {
  if (!slice_.has_value() || slice_->received_bytes == slice_->expected_bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("import ", Spec(slice_->staged->index).name, ": ",
                                                 slice_->expected_bytes, " bytes expected, got ",
                                                 slice_->received_bytes));
}

absl::Status CheckHeader(const v1::TensorHeader& header, const ParameterSpec& spec) {
  if (!std::equal(spec.shape.begin(), spec.shape.end(), header.shape().begin(), header.shape().end())) {
    return absl::InvalidArgumentError(absl::StrCat("import ", spec.name, ": shape [", absl::StrJoin(spec.shape, ", "),
                                                   "] expected, got [", absl::StrJoin(header.shape(), ", "), "]"));
  }
  if (header.first_row() < 0 || header.rows() < 1 || header.rows() > spec.rows ||
      header.first_row() > spec.rows - header.rows()) {
    return absl::InvalidArgumentError(absl::StrCat("import ", spec.name, ": rows of [0, ", spec.rows,
                                                   ") expected, got ", header.rows(), " rows from ",
                                                   header.first_row()));
  }
  if (ElementBytes(header.type()) == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("import ", spec.name, ": type FP32, BF16 or FP16 expected, got ", header.type()));
  }
  if (header.has_step() && (header.step() < 0 || header.step() >= kNumberLimit)) {
    return absl::InvalidArgumentError(
        absl::StrCat("import ", spec.name, ": 0 <= step < ", kNumberLimit, " expected, got ", header.step()));
  }
  return absl::OkStatus();
}

// Whether the rows are none of those that came before; then they count as given.
absl::Status AddRows(StagedTensor& staged, const ParameterSpec& spec, RowRange rows) {
  const auto after = staged.given.lower_bound(rows.begin);
  const bool overlaps = (after != staged.given.end() && after->first < rows.end) ||
                        (after != staged.given.begin() && std::prev(after)->second > rows.begin);
  if (overlaps) {
    return absl::InvalidArgumentError(absl::StrCat("import ", spec.name, ": each row of a tensor once expected, got [",
                                                   rows.begin, ", ", rows.end, ") again"));
  }
  staged.given.emplace(rows.begin, rows.end);
  return absl::OkStatus();
}

absl::Status Import::Begin(const v1::TensorHeader& header) {
  RETURN_IF_ERROR(CheckComplete());
  const auto found = index_.find(header.parameter());
  if (found == index_.end()) {
    return absl::NotFoundError(absl::StrCat("import into ", model_.spec().name, ": no parameter is named ",
                                            header.parameter().substr(0, kMaxNameBytes)));
  }
  const ParameterSpec& spec = Spec(found->second);
  const std::optional<StateTensor> tensor = TensorOf(header.kind());
  if (!tensor.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("import ", spec.name, ": a tensor kind expected, got ", header.kind()));
  }
  RETURN_IF_ERROR(CheckHeader(header, spec));
  ASSIGN_OR_RETURN(StagedTensor * staged, Stage(found->second, *tensor));
  const RowRange rows{header.first_row(), header.first_row() + header.rows()};
  RETURN_IF_ERROR(AddRows(*staged, spec, rows));
  if (header.has_step()) staged->step = header.step();
  slice_ = Slice{.staged = staged, .type = header.type(), .rows = rows};
  slice_->expected_bytes = rows.size() * spec.columns * ElementBytes(header.type());
  return absl::OkStatus();
}

absl::StatusOr<StagedTensor*> Import::Stage(const ParameterIndex& index, StateTensor tensor) {
  const auto [found, is_new] = staged_.try_emplace({index.unit, index.parameter, tensor});
  StagedTensor& staged = found->second;
  if (!is_new) return &staged;
  RETURN_IF_ERROR(CheckFits(Spec(index)));
  staged.index = index;
  staged.tensor = tensor;
  for (const auto& shard : model_.shards()) {
    const ShardExtent* extent = shard->Find(index.unit, index.parameter);
    staged.extents.emplace_back(extent == nullptr ? 0 : extent->elements);
  }
  return &staged;
}

// What is staged already counts as used.
absl::Status Import::CheckFits(const ParameterSpec& spec) const {
  const int64_t needed = spec.rows * spec.columns * kFloatBytes;
  const int64_t available = AvailableHostBytes();
  if (needed <= available) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("import ", spec.name, ": ", needed, " bytes needed to stage it, ", available, " bytes free"));
}

absl::Status Import::Take(const v1::TensorChunk& chunk) {
  if (!slice_.has_value()) return absl::InvalidArgumentError("import: a tensor header expected, got a chunk");
  const std::string& name = Spec(slice_->staged->index).name;
  const auto size = static_cast<int64_t>(chunk.data().size());
  if (chunk.offset_bytes() != slice_->received_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("import ", name, ": a chunk at offset ", slice_->received_bytes,
                                                   " expected, got ", chunk.offset_bytes()));
  }
  if (size == 0 || size > kMaxChunkBytes || size % ElementBytes(slice_->type) != 0 ||
      slice_->received_bytes + size > slice_->expected_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("import ", name, ": a chunk of whole elements, at most ", kMaxChunkBytes, " bytes and ",
                     slice_->expected_bytes, " in all, expected, got ", size, " at offset ", chunk.offset_bytes()));
  }
  if (wire::Crc32c(chunk.data()) != chunk.crc32c()) {
    return absl::DataLossError(absl::StrCat("import ", name, ": the chunk at offset ", chunk.offset_bytes(),
                                            " does not have the checksum that came with it"));
  }
  CopyOwnedRows(chunk);
  slice_->received_bytes += size;
  received_bytes_ += size;
  return absl::OkStatus();
}

// The overlap of the chunk with every local rank's extent, counted in elements of the whole tensor.
void Import::CopyOwnedRows(const v1::TensorChunk& chunk) {
  StagedTensor& staged = *slice_->staged;
  const int64_t columns = Spec(staged.index).columns;
  const int64_t element_bytes = ElementBytes(slice_->type);
  const int64_t begin = slice_->rows.begin * columns + chunk.offset_bytes() / element_bytes;
  const int64_t end = begin + static_cast<int64_t>(chunk.data().size()) / element_bytes;
  for (size_t rank = 0; rank < staged.extents.size(); ++rank) {
    const ShardExtent* extent = model_.shards()[rank]->Find(staged.index.unit, staged.index.parameter);
    if (extent == nullptr) continue;
    const int64_t first = extent->rows.begin * columns;
    const int64_t from = std::max(begin, first);
    const int64_t to = std::min(end, first + extent->elements);
    if (from >= to) continue;
    ToFloats(slice_->type, chunk.data().data() + (from - begin) * element_bytes, to - from,
             staged.extents[rank].data() + (from - first));
  }
}

absl::Status Import::Apply(const v1::ImportHeader& header) {
  RETURN_IF_ERROR(CheckComplete());
  const CommitLog::Numbers numbers = model_.commit_log().numbers();
  const int64_t commit_number = header.has_commit_number() ? header.commit_number() : numbers.commit_number;
  const int64_t version = header.has_version() ? header.version() : numbers.version;
  if (version < 0 || commit_number < version || commit_number >= kNumberLimit) {
    return absl::InvalidArgumentError(
        absl::StrCat("import into ", model_.spec().name, ": 0 <= version <= commit number < ", kNumberLimit,
                     " expected, got version ", version, " and commit number ", commit_number));
  }
  return model_.Change(commit_number, version, [&]() -> absl::Status {
    for (auto& [key, staged] : staged_) {
      for (size_t rank = 0; rank < staged.extents.size(); ++rank) {
        Shard& shard = *model_.shards()[rank];
        const ShardExtent* extent = shard.Find(staged.index.unit, staged.index.parameter);
        if (extent == nullptr) continue;
        RETURN_IF_ERROR(WriteExtent(shard, *extent, staged, rank));
        if (staged.step.has_value()) shard.SetStep(*extent, *staged.step);
      }
    }
    return absl::OkStatus();
  });
}

// The rows of `all` that were not given, in order.
std::vector<RowRange> MissingRows(const StagedTensor& staged, RowRange all) {
  std::vector<RowRange> missing;
  int64_t next = all.begin;
  for (const auto& [begin, end] : staged.given) {
    if (std::min(begin, all.end) > next) missing.push_back({next, std::min(begin, all.end)});
    next = std::max(next, end);
  }
  if (next < all.end) missing.push_back({next, all.end});
  return missing;
}

// Rows that were not given are those that are there.
absl::Status Import::WriteExtent(Shard& shard, const ShardExtent& extent, StagedTensor& staged, size_t rank) {
  std::vector<float>& values = staged.extents[rank];
  const std::vector<RowRange> missing = MissingRows(staged, extent.rows);
  if (missing.size() == 1 && missing[0].size() == extent.rows.size()) return absl::OkStatus();
  if (!missing.empty()) {
    absl::ReaderMutexLock lock(&shard.mutex());
    ASSIGN_OR_RETURN(const std::vector<float> present, shard.Read(extent, staged.tensor));
    const int64_t columns = Spec(staged.index).columns;
    for (const RowRange& rows : missing) {
      const int64_t first = (rows.begin - extent.rows.begin) * columns;
      std::copy_n(present.begin() + first, rows.size() * columns, values.begin() + first);
    }
  }
  return shard.Write(extent, staged.tensor, values);
}

v1::ImportResponse Import::Response() const {
  v1::ImportResponse response;
  response.set_tensor_count(static_cast<int64_t>(staged_.size()));
  response.set_byte_count(received_bytes_);
  return response;
}

}  // namespace

absl::StatusOr<v1::ImportResponse> ImportTensors(const ModelStore& store, const Call& context,
                                                 MessageReader<v1::ImportRequest>* reader) {
  v1::ImportRequest request;
  if (!reader->Read(&request) || !request.has_header()) {
    return absl::InvalidArgumentError("import: the header expected as the first message, got another one or none");
  }
  const v1::ImportHeader header = request.header();
  ASSIGN_OR_RETURN(const std::shared_ptr<Model> model, store.Find(header.model()));
  Import import(*model);
  while (reader->Read(&request)) {
    if (request.has_header()) return absl::InvalidArgumentError("import: one header expected, got a second");
    RETURN_IF_ERROR(request.has_tensor() ? import.Begin(request.tensor()) : import.Take(request.chunk()));
  }
  if (context.IsCancelled()) return absl::AbortedError("import: the stream broke off; nothing was changed");
  RETURN_IF_ERROR(import.Apply(header));
  return import.Response();
}

// --- Export ---

namespace {

struct ExportPlan {
  std::vector<ParameterIndex> parameters;
  std::vector<StateTensor> tensors;
};

absl::StatusOr<ExportPlan> PlanExport(const Model& model, const v1::ExportRequest& request) {
  ExportPlan plan;
  const std::map<std::string, ParameterIndex> index = IndexParameters(model.spec());
  for (const std::string& name : request.parameters()) {
    const auto found = index.find(name);
    if (found == index.end()) {
      return absl::NotFoundError(
          absl::StrCat("export ", model.spec().name, ": no parameter is named ", name.substr(0, kMaxNameBytes)));
    }
    plan.parameters.push_back(found->second);
  }
  if (request.parameters().empty()) {
    for (int unit = 0; unit < static_cast<int>(model.spec().units.size()); ++unit) {
      const int count = static_cast<int>(model.spec().units[unit].parameters.size());
      for (int i = 0; i < count; ++i) plan.parameters.push_back({unit, i});
    }
  }
  for (const int kind : request.kinds()) {
    const std::optional<StateTensor> tensor = TensorOf(static_cast<v1::TensorKind>(kind));
    if (!tensor.has_value()) {
      return absl::InvalidArgumentError(
          absl::StrCat("export ", model.spec().name, ": a tensor kind expected, got ", kind));
    }
    plan.tensors.push_back(*tensor);
  }
  if (plan.tensors.empty()) plan.tensors = {StateTensor::kMaster};
  return plan;
}

class Export {
 public:
  Export(const Model& model, MessageWriter<v1::ExportResponse>* writer)
      : model_(model), pinned_(model.commit_log().numbers()), writer_(writer) {}

  absl::Status Run(const v1::ExportRequest& request) {
    RETURN_IF_ERROR(model_.usable());
    if (request.has_version() && request.version() != pinned_.version) {
      return absl::FailedPreconditionError(absl::StrCat("export ", model_.spec().name, ": version ", request.version(),
                                                        " expected, the present one is ", pinned_.version));
    }
    ASSIGN_OR_RETURN(const ExportPlan plan, PlanExport(model_, request));
    v1::ExportResponse response;
    response.mutable_header()->set_version(pinned_.version);
    response.mutable_header()->set_commit_number(pinned_.commit_number);
    RETURN_IF_ERROR(Send(response));
    for (const ParameterIndex& index : plan.parameters) {
      for (const auto& shard : model_.shards()) {
        const ShardExtent* extent = shard->Find(index.unit, index.parameter);
        if (extent == nullptr) continue;
        for (StateTensor tensor : plan.tensors) RETURN_IF_ERROR(SendTensor(*shard, *extent, tensor));
      }
    }
    return absl::OkStatus();
  }

 private:
  absl::Status SendTensor(const Shard& shard, const ShardExtent& extent, StateTensor tensor) {
    const ParameterSpec& spec = shard.Spec(extent);
    v1::ExportResponse response;
    v1::TensorHeader& header = *response.mutable_tensor();
    header.set_parameter(spec.name);
    header.set_kind(static_cast<v1::TensorKind>(v1::TENSOR_KIND_MASTER + static_cast<int>(tensor)));
    header.mutable_shape()->Assign(spec.shape.begin(), spec.shape.end());
    header.set_first_row(extent.rows.begin);
    header.set_rows(extent.rows.size());
    header.set_type(v1::TENSOR_TYPE_FP32);
    std::vector<float> values;
    {
      absl::ReaderMutexLock lock(&shard.mutex());
      RETURN_IF_ERROR(CheckVersion(shard.version()));
      header.set_step(extent.step);
      ASSIGN_OR_RETURN(values, shard.Read(extent, tensor));
    }
    RETURN_IF_ERROR(Send(response));
    return SendChunks(absl::string_view(reinterpret_cast<const char*>(values.data()), values.size() * kFloatBytes));
  }

  absl::Status SendChunks(absl::string_view bytes) {
    for (size_t offset = 0; offset < bytes.size(); offset += kMaxChunkBytes) {
      const absl::string_view data = bytes.substr(offset, kMaxChunkBytes);
      v1::ExportResponse response;
      response.mutable_chunk()->set_offset_bytes(static_cast<int64_t>(offset));
      response.mutable_chunk()->set_data(std::string(data));
      response.mutable_chunk()->set_crc32c(wire::Crc32c(data));
      RETURN_IF_ERROR(Send(response));
    }
    return absl::OkStatus();
  }

  absl::Status CheckVersion(int64_t version) const {
    if (version == pinned_.version) return absl::OkStatus();
    return absl::AbortedError(absl::StrCat("export ", model_.spec().name, ": version ", pinned_.version,
                                           " expected to stay, got ", version, "; export again"));
  }

  absl::Status Send(const v1::ExportResponse& response) {
    if (writer_->Write(response)) return absl::OkStatus();
    return absl::AbortedError("export: the caller has gone");
  }

  const Model& model_;
  const CommitLog::Numbers pinned_;
  MessageWriter<v1::ExportResponse>* writer_;
};

}  // namespace

absl::Status ExportTensors(const ModelStore& store, const v1::ExportRequest& request,
                           MessageWriter<v1::ExportResponse>* writer) {
  ASSIGN_OR_RETURN(const std::shared_ptr<Model> model, store.Find(request.model()));
  return Export(*model, writer).Run(request);
}

}  // namespace paramshard::server
