#include "server/edge/file_import.h"

#include <unistd.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/checkpoint/content_hash.h"
#include "common/weights/weights.h"
#include "kernels/base/status_macros.h"
#include "server/models/staged_import.h"

namespace paramshard::server {
namespace {

using safetensors::Dtype;
using safetensors::NameText;
using weights::Weights;

// Bytes that are read between two checks whether the caller is still there.
constexpr int64_t kReadBytes = 8 << 20;
constexpr size_t kNamesInMessage = 10;

using Cancelled = absl::FunctionRef<bool()>;

// Returns the type in which a tensor of masters is passed on: as it is stored, or decoded.
TensorType SourceType(const Weights::Tensor& tensor) {
  if (tensor.kind != Weights::Kind::kPlain || tensor.dtype == Dtype::kF32) return TensorType::kFP32;
  return tensor.dtype == Dtype::kBF16 ? TensorType::kBF16 : TensorType::kFP16;
}

std::string NamesText(const std::vector<std::string>& names) {
  const size_t shown = std::min(names.size(), kNamesInMessage);
  const std::string text =
      absl::StrJoin(names.begin(), names.begin() + shown, ", ",
                    [](std::string* out, const std::string& name) { absl::StrAppend(out, NameText(name)); });
  return shown == names.size() ? text : absl::StrCat(text, " and ", names.size() - shown, " more");
}

class FileImport {
 public:
  FileImport(const Model& model, const v1::ImportFileRequest& request, const Weights& weights)
      : model_(model), request_(request), weights_(weights) {}

  // Finds every parameter's tensor and checks it.
  absl::Status Plan();
  // Reads this daemon's rows if the request names the history that begins. Otherwise reads all rows: daemons that own
  // different rows of a tensor would begin different histories from one file.
  absl::Status Read(Cancelled cancelled, StagedImport& staged) const;
  v1::ImportFileResponse Response(const StagedImport& staged, const History& history) const;

 private:
  // A parameter and the tensor that it takes.
  struct Source {
    int unit = 0;
    int parameter = 0;
    const Weights::Tensor* tensor = nullptr;
  };

  absl::Status ReadRequestedNames();
  absl::Status PlanParameter(int unit, int parameter);
  absl::Status CheckTensor(const ParameterSpec& spec, const Weights::Tensor& tensor) const;
  absl::Status CheckMissing() const;
  absl::Status CheckAllTensorsTaken();
  void WarnOfDecoded();
  std::vector<RowRange> RowsOf(const Source& source) const;
  absl::Status ReadRows(const Source& source, RowRange rows, Cancelled cancelled, StagedImport& staged) const;
  absl::Status ReadPiece(const Source& source, RowRange rows, std::vector<uint8_t>& bytes) const;
  const ParameterSpec& Spec(const Source& source) const {
    return model_.spec().units[source.unit].parameters[source.parameter];
  }
  absl::Status Invalid(absl::string_view message) const {
    return absl::InvalidArgumentError(absl::StrCat("import ", request_.path(), ": ", message));
  }
  absl::Status NotFound(absl::string_view message) const {
    return absl::NotFoundError(absl::StrCat("import ", request_.path(), ": ", message));
  }

  const Model& model_;
  const v1::ImportFileRequest& request_;
  const Weights& weights_;
  // By parameter; views into the request.
  std::map<absl::string_view, const Weights::Tensor*> renamed_;
  std::set<absl::string_view> ignored_;  // tensors; views into the request
  std::vector<Source> sources_;
  std::vector<std::string> missing_;
  std::vector<std::string> warnings_;
};

absl::Status FileImport::Plan() {
  warnings_ = weights_.checkpoint().notes();
  RETURN_IF_ERROR(ReadRequestedNames());
  for (int unit = 0; unit < static_cast<int>(model_.spec().units.size()); ++unit) {
    const int count = static_cast<int>(model_.spec().units[unit].parameters.size());
    for (int parameter = 0; parameter < count; ++parameter) RETURN_IF_ERROR(PlanParameter(unit, parameter));
  }
  RETURN_IF_ERROR(CheckMissing());
  RETURN_IF_ERROR(CheckAllTensorsTaken());
  WarnOfDecoded();
  return absl::OkStatus();
}

absl::Status FileImport::CheckMissing() const {
  if (missing_.empty() || (request_.partial() && !sources_.empty())) return absl::OkStatus();
  // If a tensor of the same name was left out, no similar name is the cause.
  const std::string similar = ignored_.count(missing_.front()) > 0 ? "" : weights_.SimilarName(missing_.front());
  return NotFound(absl::StrCat("no tensor for ", NamesText(missing_), " of ", model_.spec().name,
                               similar.empty() ? "" : absl::StrCat("; the files have ", NameText(similar)),
                               "; name the tensor of each parameter with a map of names (paramshardctl import --map)"));
}

// Reads the names of the request. Unknown names are mistakes.
absl::Status FileImport::ReadRequestedNames() {
  std::set<absl::string_view> parameters;
  for (const UnitSpec& unit : model_.spec().units) {
    for (const ParameterSpec& parameter : unit.parameters) parameters.insert(parameter.name);
  }
  for (const v1::ParameterTensor& pair : request_.tensors()) {
    if (parameters.count(pair.parameter()) == 0) {
      return NotFound(absl::StrCat("no parameter of ", model_.spec().name, " is named ", NameText(pair.parameter())));
    }
    const Weights::Tensor* tensor = weights_.Find(pair.tensor());
    if (tensor == nullptr) return NotFound(absl::StrCat("no tensor is named ", NameText(pair.tensor())));
    if (!renamed_.emplace(pair.parameter(), tensor).second) {
      return Invalid(absl::StrCat("tensors: duplicate parameter ", pair.parameter()));
    }
  }
  for (const std::string& tensor : request_.ignored_tensors()) {
    if (weights_.Find(tensor) == nullptr) return NotFound(absl::StrCat("no tensor is named ", NameText(tensor)));
    ignored_.insert(tensor);
  }
  for (const auto& [parameter, tensor] : renamed_) {
    if (ignored_.count(tensor->name) == 0) continue;
    return Invalid(absl::StrCat("tensor ", NameText(tensor->name), " is left out, and is mapped to ", parameter));
  }
  return absl::OkStatus();
}

absl::Status FileImport::PlanParameter(int unit, int parameter) {
  const ParameterSpec& spec = model_.spec().units[unit].parameters[parameter];
  const auto renamed = renamed_.find(spec.name);
  const Weights::Tensor* tensor = renamed == renamed_.end() ? weights_.Find(spec.name) : renamed->second;
  if (tensor == nullptr || ignored_.count(tensor->name) > 0) {
    missing_.push_back(spec.name);
    return absl::OkStatus();
  }
  sources_.push_back({unit, parameter, tensor});
  return CheckTensor(spec, *tensor);
}

absl::Status FileImport::CheckTensor(const ParameterSpec& spec, const Weights::Tensor& tensor) const {
  const std::string name = NameText(tensor.name);
  if (const absl::Status status = weights_.CheckNumber(tensor); !status.ok()) return Invalid(status.message());
  if (tensor.shape == spec.shape) return absl::OkStatus();
  return Invalid(absl::StrCat("tensor ", name, ": want shape [", absl::StrJoin(spec.shape, ", "), "] for ", spec.name,
                              ", got [", absl::StrJoin(tensor.shape, ", "), "]"));
}

// Unused tensors are only a warning if no parameter is missing. Otherwise they are a sign of other names.
absl::Status FileImport::CheckAllTensorsTaken() {
  std::set<absl::string_view> taken = ignored_;
  for (const Source& source : sources_) taken.insert(source.tensor->name);
  std::vector<std::string> unknown;
  for (const auto& [name, tensor] : weights_.tensors()) {
    if (taken.count(name) == 0) unknown.push_back(name);
  }
  if (unknown.empty()) return absl::OkStatus();
  if (missing_.empty()) {
    warnings_.push_back(absl::StrCat("no parameter of ", model_.spec().name, " takes ", NamesText(unknown)));
    return absl::OkStatus();
  }
  return Invalid(absl::StrCat("no parameter of ", model_.spec().name, " takes ", NamesText(unknown)));
}

void FileImport::WarnOfDecoded() {
  std::vector<std::string> decoded;
  for (const Source& source : sources_) {
    if (source.tensor->kind != Weights::Kind::kPlain) decoded.push_back(source.tensor->name);
  }
  if (!decoded.empty()) warnings_.push_back(absl::StrCat("quantized values were decoded: ", NamesText(decoded)));
}

absl::Status FileImport::Read(Cancelled cancelled, StagedImport& staged) const {
  for (const Source& source : sources_) {
    for (const RowRange& rows : RowsOf(source)) RETURN_IF_ERROR(ReadRows(source, rows, cancelled, staged));
  }
  return absl::OkStatus();
}

std::vector<RowRange> FileImport::RowsOf(const Source& source) const {
  if (!request_.has_history_id()) return {{0, Spec(source).rows()}};
  std::vector<RowRange> rows;
  for (const auto& shard : model_.committed().shards) {
    const ShardExtent* extent = shard->extents().Find(source.unit, source.parameter);
    if (extent != nullptr) rows.push_back(extent->rows);
  }
  return rows;
}

absl::Status FileImport::ReadRows(const Source& source, RowRange rows, Cancelled cancelled,
                                  StagedImport& staged) const {
  const TensorType type = SourceType(*source.tensor);
  RETURN_IF_ERROR(staged.BeginSlice({.unit = source.unit, .parameter = source.parameter, .type = type, .rows = rows}));
  const int64_t row_bytes = std::max<int64_t>(Spec(source).columns() * ElementBytes(type), 1);
  const int64_t granule = source.tensor->granule_rows();
  const int64_t piece_rows = std::max<int64_t>(kReadBytes / row_bytes / granule, 1) * granule;
  std::vector<uint8_t> bytes;
  for (int64_t row = rows.begin; row < rows.end; row += piece_rows) {
    if (cancelled()) return absl::AbortedError("import: the caller disconnected; nothing was changed");
    RETURN_IF_ERROR(ReadPiece(source, {row, std::min(rows.end, row + piece_rows)}, bytes));
    RETURN_IF_ERROR(staged.Add(bytes));
  }
  return absl::OkStatus();
}

absl::Status FileImport::ReadPiece(const Source& source, RowRange rows, std::vector<uint8_t>& bytes) const {
  const int64_t row_bytes = Spec(source).columns() * ElementBytes(SourceType(*source.tensor));
  bytes.resize(rows.size() * row_bytes);
  if (source.tensor->kind == Weights::Kind::kPlain) {
    return source.tensor->data->Read(rows.begin * row_bytes, absl::MakeSpan(bytes));
  }
  return weights_.ReadRows(*source.tensor, {rows.begin, rows.end}, reinterpret_cast<float*>(bytes.data()));
}

v1::ImportFileResponse FileImport::Response(const StagedImport& staged, const History& history) const {
  v1::ImportFileResponse response;
  response.set_parameter_count(static_cast<int64_t>(sources_.size()));
  response.set_size_bytes(staged.kept_bytes());
  response.mutable_missing_parameters()->Assign(missing_.begin(), missing_.end());
  response.mutable_warnings()->Assign(warnings_.begin(), warnings_.end());
  response.set_history_id(history.id.ToString());
  response.set_lineage(history.lineage.ToString());
  return response;
}

absl::StatusOr<Weights> OpenFiles(const v1::ImportFileRequest& request) {
  if (absl::StartsWith(request.path(), "/")) return Weights::Open(request.path());
  return absl::InvalidArgumentError(
      absl::StrCat("import a file: want an absolute path, got ", NameText(request.path())));
}

// ImportLock::Begin, or BeginAgain.
using TakeLock = absl::StatusOr<ImportLock> (*)(std::shared_ptr<Model> model);

// Length of the hash in a record of an import. The next server repeats the import from the record: the hash of the
// bytes, as HashText writes it, and the request.
constexpr size_t kDigits = 32;

std::string SourceText(const ImportedContent& content, const v1::ImportFileRequest& request) {
  return checkpoint::HashText(content.digest) + request.SerializeAsString();
}

// `digits`, if set, is the hash of an import that is repeated.
absl::StatusOr<v1::ImportFileResponse> Import(const std::shared_ptr<Model>& model, const v1::ImportFileRequest& request,
                                              TakeLock take_lock, Cancelled cancelled, absl::string_view digits = {}) {
  ASSIGN_OR_RETURN(const Weights weights, OpenFiles(request));
  StagedImport::Numbers numbers;
  if (request.has_history_id()) {
    ASSIGN_OR_RETURN(numbers.history, HistoryId::Parse(request.history_id()));
  }
  FileImport import(*model, request, weights);
  RETURN_IF_ERROR(import.Plan());
  ASSIGN_OR_RETURN(ImportLock lock, take_lock(model));
  StagedImport staged(std::move(lock));
  RETURN_IF_ERROR(import.Read(cancelled, staged));
  const ChangeSource source{.kind = ChangeSource::Kind::kFiles, .text = SourceText(staged.Content(numbers), request)};
  if (!digits.empty() && !absl::StartsWith(source.text, digits)) {
    return absl::DataLossError(
        absl::StrCat("import a file: ", NameText(request.path()),
                     " has changed since the import began, and a part of the old bytes is written"));
  }
  ASSIGN_OR_RETURN(const History history, staged.Apply(numbers, source));
  return import.Response(staged, history);
}

}  // namespace

absl::Status CheckMayImportFile(uid_t caller) {
  if (HasDaemonsRights(caller)) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat("import a file: want user ", geteuid(), " or root, got user ", caller));
}

absl::StatusOr<v1::ImportFileResponse> ImportFile(const ModelStore& store, const v1::ImportFileRequest& request,
                                                  const Call& context) {
  ASSIGN_OR_RETURN(const std::shared_ptr<Model> model, store.Find(request.model()));
  return ImportFile(model, request, [&] { return context.IsCancelled(); });
}

absl::StatusOr<v1::ImportFileResponse> ImportFile(const std::shared_ptr<Model>& model,
                                                  const v1::ImportFileRequest& request,
                                                  absl::FunctionRef<bool()> cancelled) {
  return Import(model, request, &ImportLock::Begin, cancelled);
}

absl::Status ImportFileAgain(const std::shared_ptr<Model>& model, const std::string& source,
                             absl::FunctionRef<bool()> cancelled) {
  v1::ImportFileRequest request;
  if (source.size() < kDigits || !request.ParseFromString(source.substr(kDigits))) {
    return absl::DataLossError("journal: cannot parse the request to import files");
  }
  return Import(model, request, &ImportLock::BeginAgain, cancelled, absl::string_view(source).substr(0, kDigits))
      .status();
}

}  // namespace paramshard::server
