#include "server/edge/tensor_transfer.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/model/name_index.h"
#include "common/model/names.h"
#include "common/model/proto_enums.h"
#include "common/model/state_tensor.h"
#include "common/shared_memory/crc32c.h"
#include "kernels/base/status_macros.h"
#include "kernels/optim/moment.h"
#include "server/models/pinned_state.h"
#include "server/models/staged_import.h"

namespace paramshard::server {
namespace {

absl::Status Invalid(absl::string_view parameter, absl::string_view message) {
  return absl::InvalidArgumentError(absl::StrCat("import ", parameter, ": ", message));
}

absl::Span<const uint8_t> BytesOf(const std::string& data) {
  return {reinterpret_cast<const uint8_t*>(data.data()), data.size()};
}

// The messages of one import.
class ImportStream {
 public:
  ImportStream(const Model& model, StagedImport* staged)
      : name_(model.spec().name), spec_(model.spec()), index_(spec_), staged_(staged) {}

  // Takes any message but the header. Returns true after the end message.
  absl::StatusOr<bool> Take(const v1::ImportRequest& request) {
    switch (request.message_case()) {
      case v1::ImportRequest::kTensor:
        RETURN_IF_ERROR(Begin(request.tensor()));
        return false;
      case v1::ImportRequest::kChunk:
        RETURN_IF_ERROR(Add(request.chunk()));
        return false;
      case v1::ImportRequest::kEnd:
        RETURN_IF_ERROR(CheckEnd(request.end()));
        return true;
      case v1::ImportRequest::kHeader:
        return absl::InvalidArgumentError("import: want one header, got a second");
      case v1::ImportRequest::MESSAGE_NOT_SET:
        break;
    }
    return absl::InvalidArgumentError(
        absl::StrCat("import into ", name_, ": want tensor, chunk or end, got an empty message"));
  }

 private:
  absl::Status Begin(const v1::TensorHeader& header);
  absl::Status Add(const v1::TensorChunk& chunk);
  absl::Status CheckEnd(const v1::ImportEnd& end);

  const std::string name_;
  const ModelSpec& spec_;
  const NameIndex index_;
  StagedImport* const staged_;
  std::string parameter_;  // parameter of the chunks that come
  uint32_t checksum_ = 0;  // of the chunks' checksums
};

absl::Status ImportStream::Begin(const v1::TensorHeader& header) {
  const std::optional<ParameterPlace> place = index_.PlaceOf(header.parameter());
  if (!place.has_value()) return UnknownParameter(absl::StrCat("import into ", name_), header.parameter());
  const ParameterSpec& spec = spec_.units[place->unit].parameters[place->parameter];
  const std::optional<TensorKind> kind = TensorKindFromProto(header.kind());
  if (!kind.has_value()) return Invalid(spec.name, absl::StrCat("unknown tensor kind ", header.kind()));
  const StateArray array = *StateArrayOf(*kind);
  const std::optional<TensorType> type = TensorTypeFromProto(header.type());
  if (!type.has_value()) return Invalid(spec.name, absl::StrCat("want a tensor type, got ", header.type()));
  if (!std::equal(spec.shape.begin(), spec.shape.end(), header.shape().begin(), header.shape().end())) {
    return Invalid(spec.name, absl::StrCat("want shape [", absl::StrJoin(spec.shape, ", "), "], got [",
                                           absl::StrJoin(header.shape(), ", "), "]"));
  }
  // Without this check the end of the range could overflow.
  if (header.first_row() < 0 || header.rows() < 0 || header.rows() > spec.rows() || header.first_row() > spec.rows()) {
    return Invalid(spec.name, absl::StrCat("want rows in [0, ", spec.rows(), "), got ", header.rows(), " rows from ",
                                           header.first_row()));
  }
  parameter_ = spec.name;
  return staged_->BeginSlice({.unit = place->unit,
                              .parameter = place->parameter,
                              .tensor = array.tensor,
                              .form = array.form,
                              .type = *type,
                              .rows = {header.first_row(), header.first_row() + header.rows()},
                              .step = header.has_step() ? std::optional<int64_t>(header.step()) : std::nullopt});
}

absl::Status ImportStream::Add(const v1::TensorChunk& chunk) {
  if (parameter_.empty()) return absl::InvalidArgumentError("import: want a tensor header, got a chunk");
  if (chunk.offset_bytes() != staged_->added_bytes()) {
    return Invalid(parameter_,
                   absl::StrCat("want a chunk at offset ", staged_->added_bytes(), ", got ", chunk.offset_bytes()));
  }
  // Empty chunks could come without an end.
  if (chunk.data().empty() || static_cast<int64_t>(chunk.data().size()) > kMaxChunkBytes) {
    return Invalid(parameter_, absl::StrCat("want a chunk of 1 to ", kMaxChunkBytes, " bytes, got ",
                                            chunk.data().size(), " at offset ", chunk.offset_bytes()));
  }
  if (wire::Crc32c(chunk.data()) != chunk.crc32c()) {
    return absl::DataLossError(absl::StrCat("import ", parameter_, ": the chunk at offset ", chunk.offset_bytes(),
                                            " does not have the checksum that came with it"));
  }
  checksum_ = wire::ExtendCrc32c(checksum_, chunk.crc32c());
  return staged_->Add(BytesOf(chunk.data()));
}

absl::Status ImportStream::CheckEnd(const v1::ImportEnd& end) {
  if (end.slice_count() != staged_->slice_count() || end.size_bytes() != staged_->size_bytes()) {
    return Invalid("into " + name_, absl::StrCat("want ", end.slice_count(), " slices of ", end.size_bytes(),
                                                 " bytes by the end message, got ", staged_->slice_count(), " of ",
                                                 staged_->size_bytes(), " bytes; nothing was changed"));
  }
  if (end.crc32c() == checksum_) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("import into ", name_,
                                          ": the chunks do not have the checksum of the end message; nothing was "
                                          "changed"));
}

// Returns the reason why a stream ended without the end message.
absl::Status BrokenOff(const Call& context) {
  if (context.IsCancelled()) return absl::AbortedError("import: the stream broke off; nothing was changed");
  return absl::InvalidArgumentError("import: the stream ended without an end message; nothing was changed");
}

absl::StatusOr<StagedImport::Numbers> NumbersOf(const v1::ImportHeader& header) {
  StagedImport::Numbers numbers;
  if (header.has_commit_number()) numbers.commit_number = header.commit_number();
  if (header.has_version()) numbers.version = header.version();
  if (header.has_history_id()) {
    ASSIGN_OR_RETURN(numbers.history, HistoryId::Parse(header.history_id()));
  }
  numbers.run = RunDigest(header.run());
  return numbers;
}

}  // namespace

absl::StatusOr<v1::ImportResponse> ImportTensors(const ModelStore& store, const Call& context,
                                                 MessageReader<v1::ImportRequest>* reader) {
  v1::ImportRequest request;
  if (!reader->Read(&request) || !request.has_header()) {
    return absl::InvalidArgumentError("import: want the header as the first message, got another message or none");
  }
  ASSIGN_OR_RETURN(const StagedImport::Numbers numbers, NumbersOf(request.header()));
  ASSIGN_OR_RETURN(std::shared_ptr<Model> model, store.Find(request.header().model()));
  ASSIGN_OR_RETURN(StagedImport staged, StagedImport::Begin(model));
  ImportStream stream(*model, &staged);
  for (bool ended = false; !ended;) {
    if (!reader->Read(&request)) return BrokenOff(context);
    ASSIGN_OR_RETURN(ended, stream.Take(request));
  }
  if (context.IsCancelled()) return BrokenOff(context);
  ASSIGN_OR_RETURN(const History history, staged.Apply(numbers));
  v1::ImportResponse response;
  response.set_tensor_count(staged.tensor_count());
  response.set_byte_count(staged.size_bytes());
  response.set_history_id(history.id.ToString());
  response.set_lineage(history.lineage.ToString());
  return response;
}

// --- Export ---

namespace {

struct ExportPlan {
  std::vector<ParameterPlace> parameters;
  std::vector<TensorKind> kinds;
};

absl::Status AskedTwice(const Model& model, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("export ", model.spec().name, ": duplicate ", what));
}

// Rejects duplicates: one request of a few MiB could otherwise ask for an endless export.
absl::StatusOr<ExportPlan> PlanExport(const Model& model, const v1::ExportRequest& request) {
  ExportPlan plan;
  std::set<absl::string_view> names;
  std::set<TensorKind> kinds;
  const NameIndex index(model.spec());
  for (const std::string& name : request.parameters()) {
    const std::optional<ParameterPlace> place = index.PlaceOf(name);
    if (!place.has_value()) return UnknownParameter(absl::StrCat("export ", model.spec().name), name);
    if (!names.insert(name).second) return AskedTwice(model, "parameter");
    plan.parameters.push_back(*place);
  }
  if (request.parameters().empty()) {
    for (int unit = 0; unit < static_cast<int>(model.spec().units.size()); ++unit) {
      const int count = static_cast<int>(model.spec().units[unit].parameters.size());
      for (int i = 0; i < count; ++i) plan.parameters.push_back({unit, i});
    }
  }
  for (const int number : request.kinds()) {
    const std::optional<TensorKind> kind = TensorKindFromProto(number);
    if (!kind.has_value()) {
      return absl::InvalidArgumentError(absl::StrCat("export ", model.spec().name, ": unknown tensor kind ", number));
    }
    if (!kinds.insert(*kind).second) return AskedTwice(model, "tensor kind");
    plan.kinds.push_back(*kind);
  }
  if (plan.kinds.empty()) plan.kinds.push_back(TensorKind::kMaster);
  return plan;
}

// Columns of a chunk of a row that is longer than a chunk, for every type: blocks of moments stay whole.
constexpr int64_t kColumnsOfChunk = kMaxChunkBytes / int64_t{sizeof(float)};
static_assert(kColumnsOfChunk % kMomentBlockSize == 0);

// Holds one chunk at a time, for tensors of any size.
class Export {
 public:
  using Send = absl::FunctionRef<absl::Status(const v1::ExportResponse&)>;

  Export(const Model& model, const PinnedState& pinned, Send send) : model_(model), pinned_(pinned), send_(send) {}

  absl::Status Run(const v1::ExportRequest& request) {
    const StateNumbers& numbers = pinned_.numbers();
    if (request.has_version() && request.version() != numbers.version) {
      return absl::FailedPreconditionError(
          absl::StrCat("export ", model_.spec().name, ": want version ", request.version(), ", got ", numbers.version));
    }
    ASSIGN_OR_RETURN(const ExportPlan plan, PlanExport(model_, request));
    v1::ExportResponse response;
    response.mutable_header()->set_version(numbers.version);
    response.mutable_header()->set_commit_number(numbers.commit_number);
    response.mutable_header()->set_history_id(numbers.history.ToString());
    RETURN_IF_ERROR(send_(response));
    for (const ParameterPlace& place : plan.parameters) {
      for (const auto& shard : model_.committed().shards) {
        const ShardExtent* extent = shard->extents().Find(place.unit, place.parameter);
        if (extent == nullptr) continue;
        for (const TensorKind kind : plan.kinds) RETURN_IF_ERROR(SendTensor(*shard, *extent, kind));
      }
    }
    return absl::OkStatus();
  }

 private:
  absl::Status SendTensor(const Shard& shard, const ShardExtent& extent, TensorKind kind) {
    const ParameterSpec& spec = shard.extents().Spec(extent);
    const StateArray array = *StateArrayOf(kind);
    const TensorRow row = RowOf(spec, array.tensor, array.form);
    if (row.elements == 0) return absl::OkStatus();
    v1::ExportResponse response;
    v1::TensorHeader& header = *response.mutable_tensor();
    header.set_parameter(spec.name);
    header.set_kind(TensorKindToProto(kind));
    header.mutable_shape()->Assign(spec.shape.begin(), spec.shape.end());
    header.set_first_row(extent.rows.begin);
    header.set_rows(extent.rows.size());
    header.set_type(TensorTypeToProto(row.type));
    {
      absl::ReaderMutexLock lock(&shard.mutex());
      RETURN_IF_ERROR(pinned_.Check(shard));
      header.set_step(shard.numbers(extent).step);
    }
    RETURN_IF_ERROR(send_(response));
    return SendChunks(shard, extent, array, row.size_bytes());
  }

  // Sends chunks of whole rows, as many as fit; if a row does not fit, parts of each row.
  absl::Status SendChunks(const Shard& shard, const ShardExtent& extent, const StateArray& array, int64_t row_bytes) {
    const int64_t columns = shard.extents().Spec(extent).columns();
    const int64_t rows_at_once = std::max<int64_t>(1, kMaxChunkBytes / row_bytes);
    const int64_t columns_at_once = row_bytes <= kMaxChunkBytes ? columns : kColumnsOfChunk;
    int64_t offset = 0;
    for (int64_t row = extent.rows.begin; row < extent.rows.end; row += rows_at_once) {
      for (int64_t column = 0; column < columns; column += columns_at_once) {
        RETURN_IF_ERROR(SendChunk(shard, extent, array,
                                  {.rows = {row, std::min(row + rows_at_once, extent.rows.end)},
                                   .first_column = column,
                                   .columns = std::min(columns_at_once, columns - column)},
                                  offset));
      }
    }
    return absl::OkStatus();
  }

  // Sends a copy that is made under the lock: a slow caller must not hold back commits.
  absl::Status SendChunk(const Shard& shard, const ShardExtent& extent, const StateArray& array, const ExtentPart& part,
                         int64_t& offset) {
    v1::ExportResponse response;
    v1::TensorChunk& chunk = *response.mutable_chunk();
    {
      absl::ReaderMutexLock lock(&shard.mutex());
      RETURN_IF_ERROR(pinned_.Check(shard));
      ASSIGN_OR_RETURN(*chunk.mutable_data(), ReadBytes(shard, extent, array, part));
    }
    chunk.set_offset_bytes(offset);
    chunk.set_crc32c(wire::Crc32c(chunk.data()));
    offset += static_cast<int64_t>(chunk.data().size());
    return send_(response);
  }

  static absl::StatusOr<std::string> ReadBytes(const Shard& shard, const ShardExtent& extent, const StateArray& array,
                                               const ExtentPart& part) {
    if (array.form == TensorForm::kValues) {
      ASSIGN_OR_RETURN(const std::vector<float> values, shard.arrays().Read(extent, array.tensor, part));
      return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
    }
    ASSIGN_OR_RETURN(const HostView stored, shard.arrays().StoredArray(extent, array.tensor, array.form, part));
    return std::string(reinterpret_cast<const char*>(stored.data()), stored.size());
  }

  const Model& model_;
  const PinnedState& pinned_;
  const Send send_;
};

}  // namespace

absl::Status ExportModel(const Model& model, const v1::ExportRequest& request,
                         absl::FunctionRef<absl::Status(const v1::ExportResponse&)> send) {
  ASSIGN_OR_RETURN(const PinnedState pinned, PinnedState::Of(model, "export"));
  return Export(model, pinned, send).Run(request);
}

absl::Status ExportTensors(const ModelStore& store, const v1::ExportRequest& request,
                           MessageWriter<v1::ExportResponse>* writer) {
  ASSIGN_OR_RETURN(const std::shared_ptr<Model> model, store.Find(request.model()));
  return ExportModel(*model, request, [&](const v1::ExportResponse& response) {
    return writer->Write(response) ? absl::OkStatus() : absl::AbortedError("export: the caller disconnected");
  });
}

}  // namespace paramshard::server
