#include "client/ctl/hugging_face_export.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/ctl/conversion_rules.h"
#include "client/ctl/transformers_config.h"
#include "common/checkpoint/reader.h"
#include "common/checkpoint/saved_values.h"
#include "common/checkpoint/tensor_key.h"
#include "common/model/model_spec.h"
#include "common/model/name_index.h"
#include "common/model/state_tensor.h"
#include "common/safetensors/header.h"
#include "common/safetensors/regular_file.h"
#include "common/safetensors/replacing_file.h"
#include "common/safetensors/safetensors_writer.h"
#include "common/shared_memory/file_descriptor.h"
#include "common/weights/weights.h"
#include "kernels/base/status_macros.h"
#include "kernels/formats/codec.h"
#include "kernels/formats/format.h"
#include "nlohmann/json.hpp"

namespace paramshard::ctl {
namespace {

namespace fs = std::filesystem;
using checkpoint::ArrayKind;
using checkpoint::Reader;
using safetensors::Checkpoint;
using safetensors::Dtype;
using safetensors::NameText;
using safetensors::ReplacingFile;
using safetensors::SafetensorsFile;
using safetensors::SafetensorsWriter;
using weights::Weights;

// Extensions of files that describe a model beside its weights.
const std::set<std::string> kCarriedExtensions = {".jinja", ".json", ".model", ".py", ".spm", ".tiktoken", ".txt"};
constexpr int64_t kMaxCarriedBytes = int64_t{1} << 30;
// Rows that are read at once begin where every format's blocks of scales begin.
constexpr int64_t kBandRows = 128;
constexpr int64_t kBandElements = int64_t{16} << 20;

absl::Status FileSystemError(const std::string& path, absl::string_view what, const std::error_code& error) {
  return absl::ErrnoToStatus(error.value(), absl::StrCat(path, ": ", what));
}

absl::string_view ConfigDtype(Dtype dtype) {
  if (dtype == Dtype::kBF16) return "bfloat16";
  return dtype == Dtype::kF16 ? "float16" : "float32";
}

std::string ShapeText(const std::vector<int64_t>& shape) { return absl::StrCat("[", absl::StrJoin(shape, ", "), "]"); }

// An unfinished folder, beside its place. The destructor removes it unless it was published.
class StagingDirectory {
 public:
  static absl::StatusOr<std::unique_ptr<StagingDirectory>> Create(const fs::path& place) {
    std::error_code error;
    const fs::file_type type = fs::symlink_status(place, error).type();
    if (type == fs::file_type::none) return FileSystemError(place.string(), "looking for the folder failed", error);
    if (type != fs::file_type::not_found) {
      return absl::AlreadyExistsError(absl::StrCat(place.string(), ": already exists"));
    }
    auto made = std::unique_ptr<StagingDirectory>(new StagingDirectory(place));
    const bool created = fs::create_directory(made->path_, error);
    if (error) return FileSystemError(made->path_.string(), "creating the folder failed", error);
    if (created) return made;
    // Another process has created it: it stays.
    const std::string path = std::exchange(made->path_, fs::path()).string();
    return absl::AlreadyExistsError(absl::StrCat(path, ": already exists"));
  }
  StagingDirectory(const StagingDirectory&) = delete;
  StagingDirectory& operator=(const StagingDirectory&) = delete;
  ~StagingDirectory() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove_all(path_, ignored);
  }

  const fs::path& path() const { return path_; }

  // Renames the folder to its place. Every file in it must be on the disk.
  absl::Status Publish() {
    std::error_code error;
    for (fs::recursive_directory_iterator entry(path_, error), end; !error && entry != end; entry.increment(error)) {
      if (entry->is_directory()) RETURN_IF_ERROR(Sync(entry->path()));
    }
    if (error) return FileSystemError(path_.string(), "reading the folder failed", error);
    RETURN_IF_ERROR(Sync(path_));
    RETURN_IF_ERROR(Rename());
    path_.clear();
    return Sync(place_.parent_path());
  }

 private:
  explicit StagingDirectory(const fs::path& place)
      : place_(place), path_(absl::StrCat(place.string(), ".tmp-", getpid())) {}

  static absl::Status Sync(const fs::path& folder) {
    const wire::FileDescriptor fd(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (fd.valid() && fsync(fd.get()) == 0) return absl::OkStatus();
    return absl::ErrnoToStatus(errno, absl::StrCat(folder.string(), ": fsync failed"));
  }

  // Does not replace an empty folder that was created meanwhile, where the file system supports that.
  absl::Status Rename() {
    int result = renameat2(AT_FDCWD, path_.c_str(), AT_FDCWD, place_.c_str(), RENAME_NOREPLACE);
    if (result != 0 && (errno == EINVAL || errno == ENOSYS)) result = rename(path_.c_str(), place_.c_str());
    if (result == 0) return absl::OkStatus();
    return absl::ErrnoToStatus(errno, absl::StrCat(place_.string(), ": renaming ", path_.string(), " to it failed"));
  }

  const fs::path place_;
  fs::path path_;  // empty: published
};

absl::Status WriteWhole(const fs::path& path, absl::string_view text) {
  ASSIGN_OR_RETURN(ReplacingFile file, ReplacingFile::Create(path.string()));
  RETURN_IF_ERROR(file.WriteAt(0, absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(text.data()), text.size())));
  return file.Commit();
}

// One tensor of the export.
struct Target {
  const Weights::Tensor* tensor = nullptr;  // in `like`
  ParameterPlace place;
  Dtype dtype = Dtype::kF32;

  int64_t size_bytes() const { return *safetensors::TensorBytes(dtype, tensor->shape); }
};

struct TargetFile {
  std::string name;  // relative to the folder
  std::vector<Target> targets;
};

class HuggingFaceExport {
 public:
  HuggingFaceExport(const HuggingFaceExportOptions& options, const HuggingFaceExportProgress& progress,
                    const Reader& source, const Weights& like, nlohmann::ordered_json config)
      : options_(options),
        progress_(progress),
        source_(source),
        like_(like),
        config_(std::move(config)),
        config_in_like_(config_) {}

  absl::StatusOr<HuggingFaceExportReport> Run();

 private:
  absl::Status Plan();
  absl::StatusOr<Target> TargetOf(const Weights::Tensor& tensor) const;
  absl::StatusOr<Dtype> DtypeOf(const Weights::Tensor& tensor) const;
  absl::StatusOr<ParameterPlace> PlaceOf(const Weights::Tensor& tensor) const;
  absl::StatusOr<bool> IsEqual(const Weights::Tensor& a, const Weights::Tensor& b) const;
  absl::Status CheckRest();
  bool TiesWords() const;
  bool IsTied(const ParameterSpec& parameter) const;

  absl::Status WriteFile(const fs::path& folder, const TargetFile& file);
  absl::Status WriteTensor(const Target& target, SafetensorsWriter& writer);
  absl::Status WriteIndex(const fs::path& folder) const;
  absl::Status CarryTexts(const fs::path& folder);
  absl::StatusOr<std::string> TextOf(const fs::path& source) const;

  const ParameterSpec& Spec(const ParameterPlace& place) const {
    return source_.spec().units[place.unit].parameters[place.parameter];
  }

  const HuggingFaceExportOptions& options_;
  const HuggingFaceExportProgress& progress_;
  const Reader& source_;
  const Weights& like_;
  nlohmann::ordered_json config_;  // of the export
  const nlohmann::ordered_json config_in_like_;

  ConversionRules rules_;
  std::vector<TargetFile> files_;
  std::set<std::string> exported_;         // parameters that tensors of `like` take
  std::set<std::string> exported_hashes_;  // content hashes of masters, with their shapes
  int64_t all_bytes_ = 0;
  int64_t done_bytes_ = 0;
  HuggingFaceExportReport report_;
};

// --- Planning

absl::StatusOr<Target> HuggingFaceExport::TargetOf(const Weights::Tensor& tensor) const {
  ASSIGN_OR_RETURN(const ParameterPlace place, PlaceOf(tensor));
  const std::string& path = tensor.data->file->path();
  const ParameterSpec& parameter = Spec(place);
  if (parameter.shape != tensor.shape) {
    return absl::InvalidArgumentError(absl::StrCat(source_.folder(), ": tensor ", NameText(tensor.name), ": want ",
                                                   ShapeText(tensor.shape), " as in ", path, ", got ",
                                                   ShapeText(parameter.shape)));
  }
  ASSIGN_OR_RETURN(const Dtype dtype, DtypeOf(tensor));
  if (weights::PlainFormatOf(dtype).has_value()) return Target{.tensor = &tensor, .place = place, .dtype = dtype};
  return absl::InvalidArgumentError(absl::StrCat(path, ": tensor ", NameText(tensor.name),
                                                 ": want F32, BF16 or F16, got ", safetensors::DtypeName(dtype)));
}

// Returns the parameter of the tensor's name. In a model that ties its words, and has the tied parameter under one
// name, also the parameter tied to the tensor: the only one of its shape that `like` lacks, or else has with equal
// values.
absl::StatusOr<ParameterPlace> HuggingFaceExport::PlaceOf(const Weights::Tensor& tensor) const {
  const std::optional<ParameterPlace> named = source_.names().PlaceOf(tensor.name);
  if (named.has_value()) return *named;
  std::vector<ParameterPlace> absent;
  std::vector<ParameterPlace> equal;
  for (int unit = 0; TiesWords() && unit < static_cast<int>(source_.spec().units.size()); ++unit) {
    const std::vector<ParameterSpec>& parameters = source_.spec().units[unit].parameters;
    for (int parameter = 0; parameter < static_cast<int>(parameters.size()); ++parameter) {
      if (parameters[parameter].shape != tensor.shape) continue;
      const Weights::Tensor* const other = like_.Find(parameters[parameter].name);
      if (other == nullptr) {
        absent.push_back({unit, parameter});
        continue;
      }
      ASSIGN_OR_RETURN(const bool is_equal, IsEqual(tensor, *other));
      if (is_equal) equal.push_back({unit, parameter});
    }
  }
  const std::vector<ParameterPlace>& tied = absent.empty() ? equal : absent;
  if (tied.size() == 1) return tied.front();
  return absl::NotFoundError(absl::StrCat(source_.folder(), ": model ", source_.manifest().model, " has no parameter ",
                                          NameText(tensor.name), ", which ", tensor.data->file->path(), " has"));
}

absl::StatusOr<bool> HuggingFaceExport::IsEqual(const Weights::Tensor& a, const Weights::Tensor& b) const {
  if (a.shape != b.shape || !a.is_number() || !b.is_number()) return false;
  const MatrixShape matrix = a.matrix();
  const int64_t band_rows = std::max<int64_t>(kBandElements / std::max<int64_t>(matrix.cols, 1), 1);
  std::vector<float> values;
  std::vector<float> others;
  for (int64_t row = 0; row < matrix.rows; row += band_rows) {
    const weights::RowBand band{row, std::min(matrix.rows, row + band_rows)};
    values.resize(band.size() * matrix.cols);
    others.resize(values.size());
    RETURN_IF_ERROR(like_.ReadRows(a, band, values.data()));
    RETURN_IF_ERROR(like_.ReadRows(b, band, others.data()));
    if (std::memcmp(values.data(), others.data(), values.size() * sizeof(float)) != 0) return false;
  }
  return true;
}

// Returns the tensor's type in the export. Quantized tensors become BF16.
absl::StatusOr<Dtype> HuggingFaceExport::DtypeOf(const Weights::Tensor& tensor) const {
  const bool is_quantized = tensor.is_number() && tensor.kind != Weights::Kind::kPlain;
  const ConversionRule* const rule = rules_.Find(tensor.name);
  if (rule == nullptr || !rule->encoding.has_value()) {
    return options_.dtype.value_or(is_quantized ? Dtype::kBF16 : tensor.dtype);
  }
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16, Dtype::kF16}) {
    if (rule->encoding->format == weights::PlainFormatOf(dtype)) return dtype;
  }
  return absl::InvalidArgumentError(
      absl::StrCat(rule->place, ": want FP32, BF16, FP16 or KEEP, got ", FormatName(rule->encoding->format)));
}

// Returns a key that is equal for equal masters. Empty where there is none.
std::string MasterOf(const Reader& reader, const ParameterSpec& parameter) {
  if (checkpoint::PlanesAreState(parameter)) return "";
  const auto hash = reader.manifest().tensors.find(checkpoint::TensorKey(parameter, ArrayKind::kMaster));
  if (hash == reader.manifest().tensors.end()) return "";
  return absl::StrCat(checkpoint::HashText(hash->second.sum), " ", ShapeText(parameter.shape));
}

bool HuggingFaceExport::TiesWords() const {
  const auto ties = config_.find("tie_word_embeddings");
  return ties != config_.end() && ties->is_boolean() && ties->get<bool>();
}

bool HuggingFaceExport::IsTied(const ParameterSpec& parameter) const {
  return TiesWords() && exported_hashes_.count(MasterOf(source_, parameter)) != 0;
}

absl::Status HuggingFaceExport::CheckRest() {
  for (const UnitSpec& unit : source_.spec().units) {
    for (const ParameterSpec& parameter : unit.parameters) {
      if (exported_.count(parameter.name) != 0) continue;
      if (!IsTied(parameter)) {
        return absl::InvalidArgumentError(absl::StrCat(options_.like, ": no tensor for parameter ",
                                                       NameText(parameter.name), " of model ", source_.manifest().model,
                                                       ", which is tied to no other"));
      }
      report_.tied_tensors.push_back(parameter.name);
    }
  }
  return absl::OkStatus();
}

absl::Status HuggingFaceExport::Plan() {
  const Checkpoint& checkpoint = like_.checkpoint();
  if (checkpoint.is_sharded()) {
    return absl::InvalidArgumentError(
        absl::StrCat(options_.like, ": want one file or ", safetensors::kIndexFileName, ", got parts of tensors"));
  }
  report_.notes = checkpoint.notes();
  // Newer versions of transformers write the second name.
  for (const char* const name : {"torch_dtype", "dtype"}) {
    if (options_.dtype.has_value() && config_.contains(name)) config_[name] = std::string(ConfigDtype(*options_.dtype));
  }
  if (!options_.rules_path.empty()) {
    ASSIGN_OR_RETURN(rules_, ConversionRules::Read(options_.rules_path));
  }
  if (RemoveQuantizationConfig(config_)) {
    report_.notes.push_back("config.json has no quantization_config, for nothing is quantized");
  }
  std::map<const SafetensorsFile*, TargetFile*> planned;
  files_.reserve(checkpoint.files().size());
  for (const SafetensorsFile& file : checkpoint.files()) {
    planned[&file] = &files_.emplace_back();
    planned[&file]->name = fs::path(file.path()).lexically_relative(options_.like).string();
  }
  std::vector<std::string> names;
  for (const auto& [name, tensor] : like_.tensors()) {
    ASSIGN_OR_RETURN(const Target target, TargetOf(tensor));
    all_bytes_ += target.size_bytes();
    exported_.insert(Spec(target.place).name);
    exported_hashes_.insert(MasterOf(source_, Spec(target.place)));
    planned[tensor.data->file]->targets.push_back(target);
    names.push_back(name);
  }
  RETURN_IF_ERROR(rules_.CheckAllMatch(names));
  exported_hashes_.erase("");
  return CheckRest();
}

// --- Writing

absl::Status HuggingFaceExport::WriteTensor(const Target& target, SafetensorsWriter& writer) {
  const ParameterSpec& parameter = Spec(target.place);
  const Encoding plain{*weights::PlainFormatOf(target.dtype)};
  const int64_t columns = parameter.columns();
  const int64_t band_rows = std::max<int64_t>(kBandElements / columns / kBandRows, 1) * kBandRows;
  std::vector<uint8_t> bytes;
  for (int64_t row = 0; row < parameter.rows(); row += band_rows) {
    const RowRange band{row, std::min(row + band_rows, parameter.rows())};
    RETURN_IF_ERROR(checkpoint::ReadValues(source_, target.place, StateTensor::kMaster, band,
                                           [&](const RowRange& rows, absl::Span<const float> values) -> absl::Status {
                                             bytes.resize(DataBytes(plain, rows.size(), columns));
                                             EncodePlanes(plain, values.data(), rows.size(), columns, {bytes.data()},
                                                          {});
                                             RETURN_IF_ERROR(writer.Append(target.tensor->name, bytes));
                                             done_bytes_ += static_cast<int64_t>(bytes.size());
                                             if (progress_ != nullptr)
                                               progress_(done_bytes_, all_bytes_, target.tensor->name);
                                             return absl::OkStatus();
                                           }));
  }
  return absl::OkStatus();
}

absl::Status HuggingFaceExport::WriteFile(const fs::path& folder, const TargetFile& file) {
  const fs::path path = folder / file.name;
  std::error_code error;
  fs::create_directories(path.parent_path(), error);
  if (error) return FileSystemError(path.parent_path().string(), "creating the folder failed", error);
  std::vector<SafetensorsWriter::Tensor> tensors;
  for (const Target& target : file.targets) {
    tensors.push_back({target.tensor->name, target.dtype, target.tensor->shape});
  }
  // transformers refuses files without a format in their metadata.
  ASSIGN_OR_RETURN(SafetensorsWriter writer, SafetensorsWriter::Create(path.string(), tensors, {{"format", "pt"}}));
  for (const Target& target : file.targets) RETURN_IF_ERROR(WriteTensor(target, writer));
  RETURN_IF_ERROR(writer.Commit());
  report_.weight_files.push_back(file.name);
  report_.tensor_count += static_cast<int64_t>(file.targets.size());
  return absl::OkStatus();
}

absl::Status HuggingFaceExport::WriteIndex(const fs::path& folder) const {
  if (like_.checkpoint().index_path().empty()) return absl::OkStatus();
  std::map<std::string, std::string> weight_map;
  for (const TargetFile& file : files_) {
    for (const Target& target : file.targets) weight_map[target.tensor->name] = file.name;
  }
  return WriteWhole(folder / safetensors::kIndexFileName, safetensors::SerializeIndex(weight_map, all_bytes_));
}

absl::StatusOr<std::string> HuggingFaceExport::TextOf(const fs::path& source) const {
  if (source.filename() != kConfigFileName || config_ == config_in_like_) {
    return safetensors::ReadWholeFile(source.string(), kMaxCarriedBytes);
  }
  return ConfigText(config_);
}

// Returns true for texts about weights that are not exported: indices, adapters, other programs' quantization.
bool IsOfOtherWeights(const std::string& name) {
  return absl::EndsWith(name, ".index.json") || name == "adapter_config.json" || name == "hf_quant_config.json" ||
         name == "quantize_config.json" || name == "quantization_config.json";
}

absl::Status HuggingFaceExport::CarryTexts(const fs::path& folder) {
  std::vector<fs::path> sources;
  std::error_code error;
  for (fs::directory_iterator entry(options_.like, error), end; !error && entry != end; entry.increment(error)) {
    std::error_code ignored;
    const std::string name = entry->path().filename().string();
    const bool is_text = kCarriedExtensions.count(entry->path().extension().string()) != 0;
    if (is_text && !IsOfOtherWeights(name) && entry->is_regular_file(ignored)) sources.push_back(entry->path());
  }
  if (error) return FileSystemError(options_.like, "reading the folder failed", error);
  std::sort(sources.begin(), sources.end());
  for (const fs::path& source : sources) {
    ASSIGN_OR_RETURN(const std::string text, TextOf(source));
    RETURN_IF_ERROR(WriteWhole(folder / source.filename(), text));
    report_.carried_files.push_back(source.filename().string());
  }
  return absl::OkStatus();
}

absl::StatusOr<HuggingFaceExportReport> HuggingFaceExport::Run() {
  RETURN_IF_ERROR(Plan());
  std::error_code error;
  const fs::path out = fs::absolute(options_.out, error);
  if (options_.out.empty() || error) {
    return absl::InvalidArgumentError(absl::StrCat("want a folder to make, got \"", options_.out, "\""));
  }
  ASSIGN_OR_RETURN(const auto folder, StagingDirectory::Create(out));
  for (const TargetFile& file : files_) RETURN_IF_ERROR(WriteFile(folder->path(), file));
  RETURN_IF_ERROR(WriteIndex(folder->path()));
  RETURN_IF_ERROR(CarryTexts(folder->path()));
  RETURN_IF_ERROR(folder->Publish());
  report_.model = source_.manifest().model;
  report_.step = source_.manifest().step;
  report_.size_bytes = all_bytes_;
  return std::move(report_);
}

// "out/" names the same folder as "out".
std::string WithoutSlashAtEnd(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

}  // namespace

absl::StatusOr<HuggingFaceExportReport> ExportToHuggingFace(const HuggingFaceExportOptions& options,
                                                            const HuggingFaceExportProgress& progress) {
  HuggingFaceExportOptions normal = options;
  normal.like = WithoutSlashAtEnd(options.like);
  normal.out = WithoutSlashAtEnd(options.out);
  ASSIGN_OR_RETURN(nlohmann::ordered_json config, ReadConfig(normal.like));
  ASSIGN_OR_RETURN(const Weights like, Weights::Open(normal.like));
  ASSIGN_OR_RETURN(const Reader source, Reader::Open(options.checkpoint, {}));
  return HuggingFaceExport(normal, progress, source, like, std::move(config)).Run();
}

}  // namespace paramshard::ctl
