#include "client/internal/tensor_transfer.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/internal/grpc_status.h"
#include "common/model/limits.h"
#include "common/model/name_index.h"
#include "common/model/proto_enums.h"
#include "common/model/state_tensor.h"
#include "common/shared_memory/crc32c.h"
#include "kernels/base/status_macros.h"
#include "kernels/optim/moment.h"

namespace paramshard::internal {
namespace {

constexpr size_t kMaxChunkBytes = 1 << 20;

using ImportWriter = grpc::ClientWriter<v1::ImportRequest>;
using ExportReader = grpc::ClientReader<v1::ExportResponse>;

int64_t SliceRows(const ParameterSpec& parameter, const ImportTensor& tensor) {
  return tensor.rows.value_or(parameter.rows() - tensor.first_row);
}

absl::Status CheckRows(const ParameterSpec& parameter, const ImportTensor& tensor) {
  const int64_t all = parameter.rows();
  const int64_t rows = SliceRows(parameter, tensor);
  if (0 <= tensor.first_row && 1 <= rows && rows <= all && tensor.first_row <= all - rows) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("import ", tensor.parameter, ": want rows of [0, ", all, "), got ",
                                                 rows, " rows from ", tensor.first_row));
}

absl::string_view BytesOf(const ImportTensor& tensor) {
  const auto view = [](const void* data, size_t size_bytes) {
    return absl::string_view(static_cast<const char*>(data), size_bytes);
  };
  if (!tensor.values.empty()) return view(tensor.values.data(), tensor.values.size() * sizeof(float));
  if (!tensor.bits.empty()) return view(tensor.bits.data(), tensor.bits.size() * sizeof(uint16_t));
  return view(tensor.bytes.data(), tensor.bytes.size());
}

// `columns`: elements of a row of the tensor.
absl::Status CheckShape(const ParameterSpec& parameter, const ImportTensor& tensor, int64_t columns) {
  const int64_t rows = SliceRows(parameter, tensor);
  const std::vector<int64_t> flat{rows, columns};
  if (tensor.shape.empty() || tensor.shape == flat) return absl::OkStatus();
  std::vector<int64_t> own = parameter.shape;
  if (!own.empty()) own.back() = columns;
  // A slice has fewer along the first dimension.
  const int64_t in_one = own.empty() || own.front() == 0 ? 0 : parameter.rows() / own.front();
  if (own.size() > 1 && in_one > 0 && rows % in_one == 0) own.front() = rows / in_one;
  if (tensor.shape == own) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("import ", tensor.parameter, ": want shape (",
                                                 absl::StrJoin(own, ", "), ") or (", absl::StrJoin(flat, ", "),
                                                 "), got (", absl::StrJoin(tensor.shape, ", "), ")"));
}

// Checks that the elements are in the field of their type, as many as the rows have.
absl::Status CheckElements(const ParameterSpec& parameter, const ImportTensor& tensor) {
  const int64_t element_bytes = ElementBytes(tensor.type);
  if (element_bytes == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("import ", tensor.parameter, ": unknown tensor type ", static_cast<int>(tensor.type)));
  }
  const bool misplaced = (!tensor.values.empty() && tensor.type != TensorType::kFP32) ||
                         (!tensor.bits.empty() && element_bytes != sizeof(uint16_t)) ||
                         !tensor.values.empty() + !tensor.bits.empty() + !tensor.bytes.empty() > 1;
  if (misplaced) {
    const char* const place = element_bytes == 4 ? "values" : element_bytes == 2 ? "bits" : "bytes";
    return absl::InvalidArgumentError(absl::StrCat(
        "import ", tensor.parameter, ": want the elements in one field: ", place, ", by their type, or bytes"));
  }
  const std::optional<StateArray> array = StateArrayOf(tensor.kind);
  if (!array.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("import ", tensor.parameter, ": unknown tensor kind ", static_cast<int>(tensor.kind)));
  }
  const int64_t columns = RowOf(parameter, array->tensor, array->form).elements;
  if (columns == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("import ", tensor.parameter, ": the parameter has no ", TensorName(array->tensor, array->form)));
  }
  RETURN_IF_ERROR(CheckShape(parameter, tensor, columns));
  const int64_t expected = SliceRows(parameter, tensor) * columns;
  const auto got = static_cast<int64_t>(BytesOf(tensor).size());
  if (got == expected * element_bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("import ", tensor.parameter, ": want ", expected, " values, got ", got / element_bytes));
}

absl::Status CheckFitsModel(const NameIndex& names, const ImportTensor& tensor) {
  const ParameterSpec* const parameter = names.Find(tensor.parameter);
  if (parameter == nullptr) {
    return absl::NotFoundError(absl::StrCat("import ", tensor.parameter, ": not found among the model's parameters"));
  }
  RETURN_IF_ERROR(CheckRows(*parameter, tensor));
  return CheckElements(*parameter, tensor);
}

v1::ImportRequest MakeHeader(const std::string& model, const ImportOptions& options) {
  v1::ImportRequest request;
  request.mutable_header()->set_model(model);
  if (options.commit_number.has_value()) request.mutable_header()->set_commit_number(*options.commit_number);
  if (options.version.has_value()) request.mutable_header()->set_version(*options.version);
  if (!options.history_id.empty()) request.mutable_header()->set_history_id(options.history_id);
  request.mutable_header()->set_run(options.run);
  return request;
}

v1::ImportRequest MakeTensorHeader(const ImportTensor& tensor, const ParameterSpec& parameter) {
  v1::ImportRequest request;
  v1::TensorHeader* header = request.mutable_tensor();
  header->set_parameter(tensor.parameter);
  header->set_kind(TensorKindToProto(tensor.kind));
  header->mutable_shape()->Assign(parameter.shape.begin(), parameter.shape.end());
  header->set_type(TensorTypeToProto(tensor.type));
  header->set_first_row(tensor.first_row);
  header->set_rows(SliceRows(parameter, tensor));
  if (tensor.step.has_value()) header->set_step(*tensor.step);
  return request;
}

// Writes messages, and at the end their totals.
class ImportStream {
 public:
  explicit ImportStream(ImportWriter* writer) : writer_(writer) {}

  // Both return false when the daemon has ended the call.
  bool WriteTensor(const v1::ImportRequest& header, absl::string_view bytes) {
    end_.set_slice_count(end_.slice_count() + 1);
    return writer_->Write(header) && WriteChunks(bytes);
  }
  bool WriteEnd() {
    v1::ImportRequest request;
    *request.mutable_end() = end_;
    return writer_->Write(request);
  }

 private:
  bool WriteChunks(absl::string_view bytes) {
    v1::ImportRequest request;
    v1::TensorChunk& chunk = *request.mutable_chunk();
    for (size_t offset = 0; offset < bytes.size(); offset += kMaxChunkBytes) {
      const absl::string_view data = bytes.substr(offset, kMaxChunkBytes);
      chunk.set_offset_bytes(static_cast<int64_t>(offset));
      chunk.set_data(data.data(), data.size());
      chunk.set_crc32c(wire::Crc32c(data));
      end_.set_size_bytes(end_.size_bytes() + static_cast<int64_t>(data.size()));
      end_.set_crc32c(wire::ExtendCrc32c(end_.crc32c(), chunk.crc32c()));
      if (!writer_->Write(request)) return false;
    }
    return true;
  }

  ImportWriter* const writer_;
  v1::ImportEnd end_;
};

// Columns of a row of scales.
int64_t Scales(int64_t columns) { return (columns + kMomentBlockSize - 1) / kMomentBlockSize; }

bool IsScales(TensorKind kind) {
  const std::optional<StateArray> array = StateArrayOf(kind);
  return array.has_value() && array->form == TensorForm::kRest && MomentOf(array->tensor).has_value();
}

// One extent, as its chunks arrive.
class ExtentReader {
 public:
  // INTERNAL for an impossible header.
  static absl::StatusOr<ExtentReader> Create(const v1::TensorHeader& header) {
    int64_t columns = 1;
    if (header.shape_size() > 0) columns = header.shape(header.shape_size() - 1);
    const std::optional<TensorKind> kind = TensorKindFromProto(header.kind());
    if (kind.has_value() && IsScales(*kind)) columns = Scales(columns);
    const std::optional<TensorType> type = TensorTypeFromProto(header.type());
    const bool fits = header.rows() >= 0 && columns >= 1 && header.rows() <= kMaxElements / columns;
    if (!kind.has_value() || !type.has_value() || !fits) {
      return absl::InternalError(absl::StrCat(
          "export ", header.parameter(), ": want rows >= 0, columns >= 1, a tensor kind and a tensor type, got ",
          header.rows(), " x ", columns, " of kind ", header.kind(), " and type ", header.type()));
    }
    ExtentReader reader;
    reader.extent_ = {.parameter = header.parameter(),
                      .kind = *kind,
                      .shape = {header.shape().begin(), header.shape().end()},
                      .first_row = header.first_row(),
                      .rows = header.rows(),
                      .step = header.step(),
                      .values = {},
                      .type = *type,
                      .bytes = {}};
    if (*type == TensorType::kFP32) {
      reader.extent_.values.resize(header.rows() * columns);
    } else {
      reader.extent_.bytes.resize(header.rows() * columns * ElementBytes(*type));
    }
    return reader;
  }

  absl::Status Add(const v1::TensorChunk& chunk) {
    const std::string& data = chunk.data();
    if (chunk.offset_bytes() != filled_ || static_cast<int64_t>(data.size()) > Bytes() - filled_) {
      return absl::InternalError(absl::StrCat("export ", extent_.parameter, ": want a chunk at ", filled_,
                                              " of at most ", Bytes() - filled_, " bytes, got ", data.size(),
                                              " bytes at ", chunk.offset_bytes()));
    }
    if (const uint32_t crc = wire::Crc32c(data); crc != chunk.crc32c()) {
      return absl::DataLossError(absl::StrCat("export ", extent_.parameter, ": checksum mismatch in the chunk at ",
                                              filled_, ": want ", chunk.crc32c(), ", got ", crc));
    }
    uint8_t* const target =
        extent_.bytes.empty() ? reinterpret_cast<uint8_t*>(extent_.values.data()) : extent_.bytes.data();
    std::memcpy(target + filled_, data.data(), data.size());
    filled_ += static_cast<int64_t>(data.size());
    return absl::OkStatus();
  }

  bool complete() const { return filled_ == Bytes(); }
  const ExportedExtent& extent() const { return extent_; }

 private:
  int64_t Bytes() const { return static_cast<int64_t>(extent_.values.size() * sizeof(float) + extent_.bytes.size()); }

  ExportedExtent extent_;
  int64_t filled_ = 0;
};

// Assembles an export's stream of messages.
class ExportAssembler {
 public:
  explicit ExportAssembler(const std::function<absl::Status(const ExportedExtent&)>& sink) : sink_(sink) {}

  absl::Status Take(const v1::ExportResponse& response) {
    switch (response.message_case()) {
      case v1::ExportResponse::kHeader:
        summary_ = {.version = response.header().version(),
                    .commit_number = response.header().commit_number(),
                    .history_id = response.header().history_id()};
        return absl::OkStatus();
      case v1::ExportResponse::kTensor:
        return Begin(response.tensor());
      case v1::ExportResponse::kChunk:
        if (!reader_.has_value()) return absl::InternalError("export: got a chunk before a tensor header");
        RETURN_IF_ERROR(reader_->Add(response.chunk()));
        return DeliverIfComplete();
      case v1::ExportResponse::MESSAGE_NOT_SET:
        break;
    }
    return absl::InternalError("export: want header, tensor or chunk, got an unknown message");
  }

  absl::StatusOr<ExportSummary> Finish() const {
    if (!reader_.has_value()) return summary_;
    return absl::InternalError(
        absl::StrCat("export ", reader_->extent().parameter, ": the stream ended before the last chunk"));
  }

 private:
  absl::Status Begin(const v1::TensorHeader& header) {
    RETURN_IF_ERROR(Finish().status());
    ASSIGN_OR_RETURN(reader_, ExtentReader::Create(header));
    return DeliverIfComplete();
  }

  absl::Status DeliverIfComplete() {
    if (!reader_->complete()) return absl::OkStatus();
    const ExtentReader reader = *std::exchange(reader_, std::nullopt);
    return sink_(reader.extent());
  }

  const std::function<absl::Status(const ExportedExtent&)>& sink_;
  std::optional<ExtentReader> reader_;  // an extent that still misses chunks
  ExportSummary summary_;
};

v1::ExportRequest MakeExportRequest(absl::string_view model, const ExportOptions& options) {
  v1::ExportRequest request;
  request.set_model(model.data(), model.size());
  if (options.version.has_value()) request.set_version(*options.version);
  for (const std::string& parameter : options.parameters) request.add_parameters(parameter);
  for (TensorKind kind : options.kinds) request.add_kinds(TensorKindToProto(kind));
  return request;
}

}  // namespace

absl::Status ImportTensors(v1::TrainerService::Stub& stub, grpc::ClientContext& context, const ModelSpec& spec,
                           absl::Span<const ImportTensor> tensors, const ImportOptions& options) {
  const NameIndex names(spec);
  for (const ImportTensor& tensor : tensors) RETURN_IF_ERROR(CheckFitsModel(names, tensor));
  v1::ImportResponse response;
  const std::unique_ptr<ImportWriter> writer = stub.Import(&context, &response);
  // A write that fails means that the daemon has ended the call: Finish says why.
  bool open = writer->Write(MakeHeader(spec.name, options));
  ImportStream stream(writer.get());
  for (size_t i = 0; open && i < tensors.size(); ++i) {
    open = stream.WriteTensor(MakeTensorHeader(tensors[i], *names.Find(tensors[i].parameter)), BytesOf(tensors[i]));
  }
  if (open && stream.WriteEnd()) writer->WritesDone();
  return FromGrpc(writer->Finish());
}

absl::StatusOr<ExportSummary> ExportTensors(v1::TrainerService::Stub& stub, grpc::ClientContext& context,
                                            absl::string_view model, const ExportOptions& options,
                                            const std::function<absl::Status(const ExportedExtent&)>& sink) {
  const std::unique_ptr<ExportReader> reader = stub.Export(&context, MakeExportRequest(model, options));
  ExportAssembler assembler(sink);
  v1::ExportResponse response;
  absl::Status taken = absl::OkStatus();
  while (taken.ok() && reader->Read(&response)) taken = assembler.Take(response);
  if (!taken.ok()) context.TryCancel();
  const grpc::Status finished = reader->Finish();
  RETURN_IF_ERROR(taken);
  RETURN_IF_ERROR(FromGrpc(finished));
  return assembler.Finish();
}

}  // namespace paramshard::internal
