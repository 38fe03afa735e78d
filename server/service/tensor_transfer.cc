#include "server/service/tensor_transfer.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/status_macros.h"
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

// A tensor whose rows of this daemon are collected before any is applied.
struct StagedTensor {
  ParameterIndex index;
  StateTensor tensor = StateTensor::kMaster;
  std::optional<int64_t> step;
  std::vector<std::vector<float>> rows;  // by rank of this daemon
  int64_t expected_bytes = 0;            // of the whole tensor
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
  const ParameterSpec& Spec(const StagedTensor& staged) const {
    return model_.spec().units[staged.index.unit].parameters[staged.index.parameter];
  }
  absl::Status CheckFits(const StagedTensor& staged) const;
  void CopyOwnedRows(StagedTensor& staged, const v1::TensorChunk& chunk) const;

  Model& model_;
  const std::map<std::string, ParameterIndex> index_;
  std::vector<StagedTensor> staged_;
  std::set<std::pair<std::string, int>> seen_;
};

absl::Status Import::CheckComplete() const {
  if (staged_.empty() || staged_.back().received_bytes == staged_.back().expected_bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("import ", Spec(staged_.back()).name, ": ",
                                                 staged_.back().expected_bytes, " bytes expected, got ",
                                                 staged_.back().received_bytes));
}

absl::Status Import::Begin(const v1::TensorHeader& header) {
  RETURN_IF_ERROR(CheckComplete());
  const auto found = index_.find(header.parameter());
  if (found == index_.end()) {
    return absl::NotFoundError(absl::StrCat("import into ", model_.spec().name, ": no parameter is named ",
                                            header.parameter().substr(0, kMaxNameBytes)));
  }
  const ParameterSpec& spec = model_.spec().units[found->second.unit].parameters[found->second.parameter];
  const std::optional<StateTensor> tensor = TensorOf(header.kind());
  if (!tensor.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("import ", spec.name, ": a tensor kind expected, got ", header.kind()));
  }
  if (!std::equal(spec.shape.begin(), spec.shape.end(), header.shape().begin(), header.shape().end())) {
    return absl::InvalidArgumentError(absl::StrCat("import ", spec.name, ": shape [", absl::StrJoin(spec.shape, ", "),
                                                   "] expected, got [", absl::StrJoin(header.shape(), ", "), "]"));
  }
  if (header.first_row() != 0 || header.rows() != spec.rows) {
    return absl::InvalidArgumentError(absl::StrCat("import ", spec.name, ": rows [0, ", spec.rows, ") expected, got ",
                                                   header.rows(), " rows from ", header.first_row()));
  }
  if (!seen_.emplace(spec.name, header.kind()).second) {
    return absl::InvalidArgumentError(absl::StrCat("import ", spec.name, ": each tensor once expected, got it twice"));
  }
  if (header.has_step() && (header.step() < 0 || header.step() >= kNumberLimit)) {
    return absl::InvalidArgumentError(
        absl::StrCat("import ", spec.name, ": 0 <= step < ", kNumberLimit, " expected, got ", header.step()));
  }
  StagedTensor staged{.index = found->second, .tensor = *tensor, .step = std::nullopt, .rows = {}};
  if (header.has_step()) staged.step = header.step();
  staged.expected_bytes = spec.rows * spec.columns * kFloatBytes;
  RETURN_IF_ERROR(CheckFits(staged));
  for (const auto& shard : model_.shards()) {
    const ShardExtent* extent = shard->Find(staged.index.unit, staged.index.parameter);
    staged.rows.emplace_back(extent == nullptr ? 0 : extent->elements);
  }
  staged_.push_back(std::move(staged));
  return absl::OkStatus();
}

// What is staged already counts as used.
absl::Status Import::CheckFits(const StagedTensor& staged) const {
  const int64_t available = AvailableHostBytes();
  if (staged.expected_bytes <= available) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("import ", Spec(staged).name, ": ", staged.expected_bytes,
                                                   " bytes needed to stage it, ", available, " bytes free"));
}

absl::Status Import::Take(const v1::TensorChunk& chunk) {
  if (staged_.empty()) return absl::InvalidArgumentError("import: a tensor header expected, got a chunk");
  StagedTensor& staged = staged_.back();
  const std::string& name = Spec(staged).name;
  const auto size = static_cast<int64_t>(chunk.data().size());
  if (chunk.offset_bytes() != staged.received_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("import ", name, ": a chunk at offset ", staged.received_bytes,
                                                   " expected, got ", chunk.offset_bytes()));
  }
  if (size == 0 || size > kMaxChunkBytes || size % kFloatBytes != 0 ||
      staged.received_bytes + size > staged.expected_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("import ", name, ": a chunk of whole floats, at most ", kMaxChunkBytes, " bytes and ",
                     staged.expected_bytes, " in all, expected, got ", size, " at offset ", chunk.offset_bytes()));
  }
  if (wire::Crc32c(chunk.data()) != chunk.crc32c()) {
    return absl::DataLossError(absl::StrCat("import ", name, ": the chunk at offset ", chunk.offset_bytes(),
                                            " does not have the checksum that came with it"));
  }
  CopyOwnedRows(staged, chunk);
  staged.received_bytes += size;
  return absl::OkStatus();
}

// The overlap of the chunk with every local rank's extent.
void Import::CopyOwnedRows(StagedTensor& staged, const v1::TensorChunk& chunk) const {
  const int64_t begin = chunk.offset_bytes();
  const int64_t end = begin + static_cast<int64_t>(chunk.data().size());
  for (size_t rank = 0; rank < staged.rows.size(); ++rank) {
    const ShardExtent* extent = model_.shards()[rank]->Find(staged.index.unit, staged.index.parameter);
    if (extent == nullptr) continue;
    const int64_t first = extent->rows.begin * Spec(staged).columns * kFloatBytes;
    const int64_t from = std::max(begin, first);
    const int64_t to = std::min(end, first + extent->elements * kFloatBytes);
    if (from >= to) continue;
    std::memcpy(reinterpret_cast<char*>(staged.rows[rank].data()) + (from - first),
                chunk.data().data() + (from - begin), to - from);
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
    for (const StagedTensor& staged : staged_) {
      for (size_t rank = 0; rank < staged.rows.size(); ++rank) {
        Shard& shard = *model_.shards()[rank];
        const ShardExtent* extent = shard.Find(staged.index.unit, staged.index.parameter);
        if (extent == nullptr) continue;
        RETURN_IF_ERROR(shard.Write(*extent, staged.tensor, staged.rows[rank]));
        if (staged.step.has_value()) shard.SetStep(*extent, *staged.step);
      }
    }
    return absl::OkStatus();
  });
}

v1::ImportResponse Import::Response() const {
  v1::ImportResponse response;
  response.set_tensor_count(static_cast<int64_t>(staged_.size()));
  for (const StagedTensor& staged : staged_) response.set_byte_count(response.byte_count() + staged.received_bytes);
  return response;
}

}  // namespace

absl::StatusOr<v1::ImportResponse> ImportTensors(const ModelStore& store, const grpc::ServerContext& context,
                                                 grpc::ServerReader<v1::ImportRequest>* reader) {
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
  Export(const Model& model, grpc::ServerWriter<v1::ExportResponse>* writer)
      : model_(model), pinned_(model.commit_log().numbers()), writer_(writer) {}

  absl::Status Run(const v1::ExportRequest& request) {
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
  grpc::ServerWriter<v1::ExportResponse>* writer_;
};

}  // namespace

absl::Status ExportTensors(const ModelStore& store, const v1::ExportRequest& request,
                           grpc::ServerWriter<v1::ExportResponse>* writer) {
  ASSIGN_OR_RETURN(const std::shared_ptr<Model> model, store.Find(request.model()));
  return Export(*model, writer).Run(request);
}

}  // namespace paramshard::server
