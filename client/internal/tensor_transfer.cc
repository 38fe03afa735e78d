#include "client/internal/tensor_transfer.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "client/internal/grpc_status.h"
#include "kernels/base/status_macros.h"
#include "proto/wire/crc32c.h"

namespace paramshard::internal {
namespace {

constexpr size_t kMaxChunkBytes = 1 << 20;

using ImportWriter = grpc::ClientWriter<v1::ImportRequest>;
using ExportReader = grpc::ClientReader<v1::ExportResponse>;
using ParameterIndex = absl::flat_hash_map<std::string, const v1::ParameterSpec*>;

ParameterIndex IndexParameters(const v1::ModelSpec& spec) {
  ParameterIndex index;
  for (const v1::UnitSpec& unit : spec.units()) {
    for (const v1::ParameterSpec& parameter : unit.parameters()) index.emplace(parameter.name(), &parameter);
  }
  return index;
}

int64_t Elements(const v1::ParameterSpec& parameter) {
  int64_t elements = 1;
  for (int64_t size : parameter.shape()) elements *= size;
  return elements;
}

int64_t Columns(const v1::ParameterSpec& parameter) {
  return parameter.shape().empty() ? 1 : parameter.shape(parameter.shape_size() - 1);
}

int64_t Rows(const v1::ParameterSpec& parameter) { return Elements(parameter) / Columns(parameter); }

int64_t SliceRows(const v1::ParameterSpec& parameter, const ImportTensor& tensor) {
  return tensor.rows.value_or(Rows(parameter) - tensor.first_row);
}

absl::Status CheckRows(const v1::ParameterSpec& parameter, const ImportTensor& tensor) {
  const int64_t all = Rows(parameter);
  const int64_t rows = SliceRows(parameter, tensor);
  if (0 <= tensor.first_row && 1 <= rows && rows <= all && tensor.first_row <= all - rows) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("import ", tensor.parameter, ": rows of [0, ", all, ") expected, got ",
                                                 rows, " rows from ", tensor.first_row));
}

// The elements are where the type says, as many as the rows have.
absl::Status CheckElements(const v1::ParameterSpec& parameter, const ImportTensor& tensor) {
  const bool has_bits = tensor.type == TensorType::kBF16 || tensor.type == TensorType::kFP16;
  if (!has_bits && tensor.type != TensorType::kFP32) {
    return absl::InvalidArgumentError(absl::StrCat(
        "import ", tensor.parameter, ": type FP32, BF16 or FP16 expected, got type ", static_cast<int>(tensor.type)));
  }
  if (has_bits ? !tensor.values.empty() : !tensor.bits.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("import ", tensor.parameter, ": ", has_bits ? "bits" : "values",
                                                   " alone expected of a tensor of this type, got ",
                                                   has_bits ? "values" : "bits"));
  }
  const int64_t expected = SliceRows(parameter, tensor) * Columns(parameter);
  const size_t got = has_bits ? tensor.bits.size() : tensor.values.size();
  if (expected == static_cast<int64_t>(got)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("import ", tensor.parameter, ": ", expected, " values expected, got ", got));
}

absl::Status CheckFitsModel(const ParameterIndex& index, const ImportTensor& tensor) {
  const auto found = index.find(tensor.parameter);
  if (found == index.end()) {
    return absl::NotFoundError(absl::StrCat("import ", tensor.parameter, ": a parameter of the model expected"));
  }
  RETURN_IF_ERROR(CheckRows(*found->second, tensor));
  return CheckElements(*found->second, tensor);
}

v1::ImportRequest MakeHeader(const std::string& model, const ImportOptions& options) {
  v1::ImportRequest request;
  request.mutable_header()->set_model(model);
  if (options.commit_number.has_value()) request.mutable_header()->set_commit_number(*options.commit_number);
  if (options.version.has_value()) request.mutable_header()->set_version(*options.version);
  return request;
}

v1::ImportRequest MakeTensorHeader(const ImportTensor& tensor, const v1::ParameterSpec& parameter) {
  v1::ImportRequest request;
  v1::TensorHeader* header = request.mutable_tensor();
  header->set_parameter(tensor.parameter);
  header->set_kind(static_cast<v1::TensorKind>(tensor.kind));
  *header->mutable_shape() = parameter.shape();
  header->set_type(static_cast<v1::TensorType>(tensor.type));
  header->set_first_row(tensor.first_row);
  header->set_rows(SliceRows(parameter, tensor));
  if (tensor.step.has_value()) header->set_step(*tensor.step);
  return request;
}

absl::string_view BytesOf(const ImportTensor& tensor) {
  if (tensor.type == TensorType::kFP32) {
    return {reinterpret_cast<const char*>(tensor.values.data()), tensor.values.size() * sizeof(float)};
  }
  return {reinterpret_cast<const char*>(tensor.bits.data()), tensor.bits.size() * sizeof(uint16_t)};
}

bool WriteChunks(ImportWriter& writer, absl::string_view bytes) {
  v1::ImportRequest request;
  for (size_t offset = 0; offset < bytes.size(); offset += kMaxChunkBytes) {
    const absl::string_view data = bytes.substr(offset, kMaxChunkBytes);
    request.mutable_chunk()->set_offset_bytes(static_cast<int64_t>(offset));
    request.mutable_chunk()->set_data(data.data(), data.size());
    request.mutable_chunk()->set_crc32c(wire::Crc32c(data));
    if (!writer.Write(request)) return false;
  }
  return true;
}

// One extent, as its chunks arrive.
class ExtentReader {
 public:
  // INTERNAL for a header that makes no sense.
  static absl::StatusOr<ExtentReader> Create(const v1::TensorHeader& header) {
    int64_t columns = 1;
    if (header.shape_size() > 0) columns = header.shape(header.shape_size() - 1);
    if (header.rows() < 0 || columns < 1) {
      return absl::InternalError(absl::StrCat(
          "export ", header.parameter(), ": rows >= 0 and columns >= 1 expected, got ", header.rows(), " x ", columns));
    }
    ExtentReader reader;
    reader.extent_ = {.parameter = header.parameter(),
                      .kind = static_cast<TensorKind>(header.kind()),
                      .shape = {header.shape().begin(), header.shape().end()},
                      .first_row = header.first_row(),
                      .rows = header.rows(),
                      .step = header.step(),
                      .values = {}};
    reader.extent_.values.resize(header.rows() * columns);
    return reader;
  }

  absl::Status Add(const v1::TensorChunk& chunk) {
    const std::string& data = chunk.data();
    if (chunk.offset_bytes() != filled_ || static_cast<int64_t>(data.size()) > Bytes() - filled_) {
      return absl::InternalError(absl::StrCat("export ", extent_.parameter, ": a chunk at ", filled_, " of at most ",
                                              Bytes() - filled_, " bytes expected, got ", data.size(), " bytes at ",
                                              chunk.offset_bytes()));
    }
    if (const uint32_t crc = wire::Crc32c(data); crc != chunk.crc32c()) {
      return absl::DataLossError(absl::StrCat("export ", extent_.parameter, ": checksum ", chunk.crc32c(),
                                              " expected of the chunk at ", filled_, ", got ", crc));
    }
    std::memcpy(reinterpret_cast<char*>(extent_.values.data()) + filled_, data.data(), data.size());
    filled_ += static_cast<int64_t>(data.size());
    return absl::OkStatus();
  }

  bool complete() const { return filled_ == Bytes(); }
  const ExportedExtent& extent() const { return extent_; }

 private:
  int64_t Bytes() const { return static_cast<int64_t>(extent_.values.size() * sizeof(float)); }

  ExportedExtent extent_;
  int64_t filled_ = 0;
};

// An export's stream of messages, put together.
class ExportAssembler {
 public:
  explicit ExportAssembler(const std::function<absl::Status(const ExportedExtent&)>& sink) : sink_(sink) {}

  absl::Status Take(const v1::ExportResponse& response) {
    switch (response.message_case()) {
      case v1::ExportResponse::kHeader:
        summary_ = {.version = response.header().version(), .commit_number = response.header().commit_number()};
        return absl::OkStatus();
      case v1::ExportResponse::kTensor:
        return Begin(response.tensor());
      case v1::ExportResponse::kChunk:
        if (!reader_.has_value()) return absl::InternalError("export: a tensor header expected before a chunk");
        RETURN_IF_ERROR(reader_->Add(response.chunk()));
        return DeliverIfComplete();
      case v1::ExportResponse::MESSAGE_NOT_SET:
        break;
    }
    return absl::InternalError("export: header, tensor or chunk expected, got an unknown message");
  }

  absl::StatusOr<ExportSummary> Finish() const {
    if (!reader_.has_value()) return summary_;
    return absl::InternalError(
        absl::StrCat("export ", reader_->extent().parameter, ": more chunks expected, the stream has ended"));
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
  for (TensorKind kind : options.kinds) request.add_kinds(static_cast<v1::TensorKind>(kind));
  return request;
}

}  // namespace

absl::Status ImportTensors(v1::TrainerService::Stub& stub, grpc::ClientContext& context, const v1::ModelSpec& spec,
                           absl::Span<const ImportTensor> tensors, const ImportOptions& options) {
  const ParameterIndex index = IndexParameters(spec);
  for (const ImportTensor& tensor : tensors) RETURN_IF_ERROR(CheckFitsModel(index, tensor));
  v1::ImportResponse response;
  const std::unique_ptr<ImportWriter> writer = stub.Import(&context, &response);
  // A write that fails means that the daemon has ended the call: Finish says why.
  bool open = writer->Write(MakeHeader(spec.name(), options));
  for (size_t i = 0; open && i < tensors.size(); ++i) {
    open = writer->Write(MakeTensorHeader(tensors[i], *index.at(tensors[i].parameter))) &&
           WriteChunks(*writer, BytesOf(tensors[i]));
  }
  if (open) writer->WritesDone();
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
