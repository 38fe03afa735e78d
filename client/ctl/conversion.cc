#include "client/ctl/conversion.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <map>
#include <set>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "client/ctl/conversion_rules.h"
#include "client/ctl/encoding.h"
#include "client/ctl/transformers_config.h"
#include "common/safetensors/checkpoint.h"
#include "common/safetensors/conversion.h"
#include "common/safetensors/replacing_file.h"
#include "common/safetensors/sharding_info.h"
#include "common/weights/weights.h"
#include "kernels/base/status_macros.h"
#include "kernels/formats/codec.h"
#include "kernels/formats/format.h"

namespace paramshard::ctl {
namespace {

namespace fs = std::filesystem;
using safetensors::Checkpoint;
using safetensors::Dtype;
using safetensors::Metadata;
using safetensors::NameText;
using safetensors::ReplacingFile;
using safetensors::SafetensorsFile;
using safetensors::SafetensorsWriter;
using safetensors::TensorInfo;
using weights::BandBytes;
using weights::IsOfWholeTensor;
using weights::MatrixOf;
using weights::Part;
using weights::PartTensor;
using weights::PartTensors;
using weights::QuantizedTensor;
using weights::RowBand;
using weights::Weights;
using Bytes = std::vector<uint8_t>;

constexpr char kConversionVersion[] = "1";
constexpr int64_t kBandElements = 4 << 20;
constexpr int64_t kCopyBytes = 16 << 20;

// Returns true for floats of less than 16 bits: another program has quantized them.
bool IsQuantized(Dtype dtype) {
  return dtype == Dtype::kF8E4M3 || dtype == Dtype::kF8E5M2 || dtype == Dtype::kF8E8M0 || dtype == Dtype::kF6E2M3 ||
         dtype == Dtype::kF6E3M2 || dtype == Dtype::kF4 || dtype == Dtype::kF8E4M3FNUZ || dtype == Dtype::kF8E5M2FNUZ;
}

absl::Status About(const SafetensorsFile& file, absl::string_view tensor, absl::string_view message) {
  return absl::InvalidArgumentError(absl::StrCat(file.path(), ": tensor ", NameText(tensor), ": ", message));
}

// Calls visit(band) for the bands of a matrix, until one fails.
template <typename Visitor>
absl::Status ForEachBand(MatrixShape matrix, int64_t granule_rows, const Visitor& visit) {
  const int64_t granules = std::max<int64_t>(kBandElements / matrix.cols / granule_rows, 1);
  for (int64_t row = 0; row < matrix.rows; row += granules * granule_rows) {
    RETURN_IF_ERROR(visit(RowBand{row, std::min(matrix.rows, row + granules * granule_rows)}));
  }
  return absl::OkStatus();
}

// One tensor of the input, and the operation on it.
struct Step {
  enum class Kind { kCarry, kEncode, kDecode };
  Kind kind = Kind::kCarry;
  const SafetensorsFile* file = nullptr;
  const TensorInfo* source = nullptr;        // to decode: the data
  const Weights::Tensor* encoded = nullptr;  // to decode
  QuantizedTensor tensor;                    // to encode; to decode, of the plain numbers
};

// Returns the bytes of the input's tensors that the step reads.
int64_t SourceBytes(const Step& step) {
  if (step.encoded == nullptr) return step.source->size_bytes;
  int64_t bytes = 0;
  for (const auto& [part, tensor] : step.encoded->parts) bytes += tensor->info->size_bytes;
  if (!step.encoded->parts.empty()) return bytes;
  return step.source->size_bytes + (step.encoded->scales == nullptr ? 0 : step.encoded->scales->info->size_bytes);
}

struct OutputFile {
  std::string path;
  std::vector<Step> steps;
  Metadata metadata;
};

// --- Conversion of one file ---

class FileConversion {
 public:
  FileConversion(const Weights& input, const std::function<void(int64_t, absl::string_view)>& advance,
                 ConversionReport& report)
      : input_(input), advance_(advance), report_(report) {}

  absl::Status Run(OutputFile& output);
  // Tensors of the file that Run has written.
  const std::vector<SafetensorsWriter::Tensor>& tensors() const { return tensors_; }

 private:
  std::vector<SafetensorsWriter::Tensor> TensorsOf(const Step& step) const;
  absl::Status Do(const Step& step, SafetensorsWriter& writer);
  absl::Status Carry(const Step& step, SafetensorsWriter& writer) const;
  absl::Status Encode(const Step& step, SafetensorsWriter& writer, EncodingError& error) const;
  absl::Status EncodeBand(const Step& step, const std::vector<PartTensor>& parts, RowBand band,
                          const TensorScaling& scaling, SafetensorsWriter& writer, EncodingError& error) const;
  absl::Status Decode(const Step& step, SafetensorsWriter& writer) const;
  absl::StatusOr<std::vector<float>> ReadFloats(const Step& step, RowBand band) const;
  absl::StatusOr<float> ReadAmax(const Step& step) const;

  const Weights& input_;
  const std::function<void(int64_t, absl::string_view)>& advance_;
  ConversionReport& report_;
  std::vector<SafetensorsWriter::Tensor> tensors_;
};

std::vector<SafetensorsWriter::Tensor> FileConversion::TensorsOf(const Step& step) const {
  if (step.kind == Step::Kind::kCarry) return {{step.source->name, step.source->dtype, step.source->shape}};
  std::vector<SafetensorsWriter::Tensor> tensors;
  for (PartTensor& part : PartTensors(step.tensor)) tensors.push_back(std::move(part.tensor));
  return tensors;
}

absl::Status FileConversion::Run(OutputFile& output) {
  tensors_.clear();
  for (const Step& step : output.steps) {
    for (SafetensorsWriter::Tensor& tensor : TensorsOf(step)) tensors_.push_back(std::move(tensor));
  }
  // All tensors are whole: each begins at its first element.
  if (output.metadata.count(safetensors::kShardingInfoKey) != 0) {
    safetensors::SavedOffsets offsets;
    for (const SafetensorsWriter::Tensor& tensor : tensors_) offsets[tensor.name].resize(tensor.shape.size());
    output.metadata[safetensors::kShardingInfoKey] = safetensors::SerializeShardingInfo(offsets);
  }
  ASSIGN_OR_RETURN(SafetensorsWriter writer, SafetensorsWriter::Create(output.path, tensors_, output.metadata));
  for (const Step& step : output.steps) RETURN_IF_ERROR(Do(step, writer));
  return writer.Commit();
}

absl::Status FileConversion::Do(const Step& step, SafetensorsWriter& writer) {
  ConvertedTensor converted{step.tensor, "", SourceBytes(step), 0, {}};
  if (step.encoded != nullptr && step.encoded->kind == Weights::Kind::kEncoded) {
    converted.tensor = step.encoded->quantized;
  } else if (step.encoded != nullptr) {
    converted.foreign_format = step.encoded->encoding;
  }
  for (const SafetensorsWriter::Tensor& tensor : TensorsOf(step)) {
    converted.bytes += *safetensors::TensorBytes(tensor.dtype, tensor.shape);
  }
  report_.source_bytes += converted.source_bytes;
  report_.bytes += converted.bytes;
  if (step.kind == Step::Kind::kCarry) {
    ++report_.carried_count;
    return Carry(step, writer);
  }
  RETURN_IF_ERROR(step.kind == Step::Kind::kEncode ? Encode(step, writer, converted.error) : Decode(step, writer));
  report_.tensors.push_back(std::move(converted));
  return absl::OkStatus();
}

absl::Status FileConversion::Carry(const Step& step, SafetensorsWriter& writer) const {
  const TensorInfo& source = *step.source;
  Bytes bytes;
  for (int64_t offset = 0; offset < source.size_bytes; offset += kCopyBytes) {
    bytes.resize(std::min(kCopyBytes, source.size_bytes - offset));
    RETURN_IF_ERROR(step.file->Read(source, offset, absl::MakeSpan(bytes)));
    RETURN_IF_ERROR(writer.Append(source.name, bytes));
    advance_(static_cast<int64_t>(bytes.size()), source.name);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<float>> FileConversion::ReadFloats(const Step& step, RowBand band) const {
  const int64_t cols = MatrixOf(step.tensor.shape).cols;
  const Encoding plain{*weights::PlainFormatOf(step.source->dtype)};
  Bytes bytes(DataBytes(plain, band.size(), cols));
  RETURN_IF_ERROR(step.file->Read(*step.source, DataBytes(plain, band.begin, cols), absl::MakeSpan(bytes)));
  std::vector<float> values(band.size() * cols);
  DecodePlane(plain, Plane::kRowWise, {bytes.data()}, band.size(), cols, values.data());
  return values;
}

// Reads the whole tensor in an additional pass.
absl::StatusOr<float> FileConversion::ReadAmax(const Step& step) const {
  float amax = 0;
  RETURN_IF_ERROR(ForEachBand(MatrixOf(step.tensor.shape), 1, [&](RowBand band) -> absl::Status {
    ASSIGN_OR_RETURN(const std::vector<float> values, ReadFloats(step, band));
    amax = std::max(amax, Amax(values.data(), static_cast<int64_t>(values.size())));
    return absl::OkStatus();
  }));
  return amax;
}

absl::Status FileConversion::Encode(const Step& step, SafetensorsWriter& writer, EncodingError& error) const {
  const Format format = step.tensor.encoding.format;
  TensorScaling scaling;
  if (EncodesAfterAmax(format)) {
    ASSIGN_OR_RETURN(scaling.amax, ReadAmax(step));
  }
  const std::vector<PartTensor> parts = PartTensors(step.tensor);
  return ForEachBand(MatrixOf(step.tensor.shape), GranuleRows(format),
                     [&](RowBand band) { return EncodeBand(step, parts, band, scaling, writer, error); });
}

absl::Status FileConversion::EncodeBand(const Step& step, const std::vector<PartTensor>& parts, RowBand band,
                                        const TensorScaling& scaling, SafetensorsWriter& writer,
                                        EncodingError& error) const {
  const QuantizedTensor& tensor = step.tensor;
  const MatrixShape matrix{band.size(), MatrixOf(tensor.shape).cols};
  ASSIGN_OR_RETURN(const std::vector<float> values, ReadFloats(step, band));
  std::map<Part, Bytes> bytes;
  for (const PartTensor& part : parts) bytes[part.part].resize(BandBytes(tensor, part.part, band).size);
  const auto data = [&](Part part) { return bytes.count(part) != 0 ? bytes[part].data() : nullptr; };
  const MutablePlane row_wise{data(Part::kData), data(Part::kScales), data(Part::kAmax)};
  EncodePlanes(tensor.encoding, values.data(), matrix.rows, matrix.cols, row_wise,
               {data(Part::kColumnData), data(Part::kColumnScales)}, scaling);
  for (const PartTensor& part : parts) {
    if (IsOfWholeTensor(tensor, part.part) && band.begin > 0) continue;
    RETURN_IF_ERROR(writer.Append(part.tensor.name, bytes[part.part]));
  }
  std::vector<float> decoded(values.size());
  DecodePlane(tensor.encoding, Plane::kRowWise, {row_wise.data, row_wise.scales, row_wise.amax}, matrix.rows,
              matrix.cols, decoded.data());
  error.Add(tensor.encoding, matrix, values.data(), decoded.data(), row_wise.data);
  advance_(DataBytes({*weights::PlainFormatOf(step.source->dtype)}, matrix.rows, matrix.cols), tensor.name);
  return absl::OkStatus();
}

absl::Status FileConversion::Decode(const Step& step, SafetensorsWriter& writer) const {
  const MatrixShape matrix = MatrixOf(step.tensor.shape);
  const Encoding& plain = step.tensor.encoding;
  const int64_t source_bytes = SourceBytes(step);
  return ForEachBand(matrix, step.encoded->granule_rows(), [&](RowBand band) -> absl::Status {
    std::vector<float> values(band.size() * matrix.cols);
    RETURN_IF_ERROR(input_.ReadRows(*step.encoded, band, values.data()));
    Bytes out(DataBytes(plain, band.size(), matrix.cols));
    EncodePlanes(plain, values.data(), band.size(), matrix.cols, {out.data()}, {});
    RETURN_IF_ERROR(writer.Append(step.tensor.name, out));
    const auto read_bytes = [&](int64_t row) {
      return static_cast<int64_t>(static_cast<__int128>(source_bytes) * row / matrix.rows);
    };
    advance_(read_bytes(band.end) - read_bytes(band.begin), step.tensor.name);
    return absl::OkStatus();
  });
}

// --- Planning ---

class Conversion {
 public:
  Conversion(const ConversionOptions& options, Weights input)
      : options_(options), input_(std::move(input)), checkpoint_(input_.checkpoint()) {}

  absl::StatusOr<ConversionReport> Run(const ConversionProgress& progress);

 private:
  absl::Status PlanEncodings();
  absl::StatusOr<std::optional<Encoding>> EncodingOf(const SafetensorsFile& file, const TensorInfo& info) const;
  absl::Status PlanConfig();
  absl::Status KeepWhatTransformersDoesNotDecode();
  absl::StatusOr<std::vector<Step>> Steps(const SafetensorsFile& file) const;
  std::vector<Step> EncodingSteps(const SafetensorsFile& file) const;
  absl::StatusOr<std::vector<Step>> DecodingSteps(const SafetensorsFile& file) const;
  absl::Status ReadRules();
  absl::Status CheckSource(const SafetensorsFile& file) const;
  bool HasOneOutput() const { return absl::EndsWith(options_.output, ".safetensors"); }
  bool Decodes() const { return options_.dequantized_format.has_value(); }
  fs::path OutputFolder() const {
    return HasOneOutput() ? fs::path(options_.output).parent_path() : fs::path(options_.output);
  }
  std::string InputFolder() const;
  fs::path OutputOf(const SafetensorsFile& file) const;
  absl::StatusOr<std::vector<OutputFile>> Plan() const;
  void AddMetadata(OutputFile& output) const;
  absl::Status CheckOutput(const std::string& path) const;
  absl::Status CheckOutputFolder(const std::vector<OutputFile>& plan) const;
  absl::Status WriteText(const char* name, absl::string_view text) const;

  const ConversionOptions& options_;
  const Weights input_;
  const Checkpoint& checkpoint_;
  ConversionRules rules_;
  std::map<std::string, Encoding, std::less<>> encodings_;  // of tensors that are encoded
  std::optional<nlohmann::ordered_json> config_;            // to be written beside the output
  std::vector<std::string> notes_;
};

absl::Status Conversion::ReadRules() {
  if (options_.rules_path.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(rules_, ConversionRules::Read(options_.rules_path));
  std::vector<std::string> names;
  for (const auto& [name, tensor] : checkpoint_.tensors()) names.push_back(name);
  return rules_.CheckAllMatch(names);
}

absl::Status Conversion::CheckSource(const SafetensorsFile& file) const {
  if (!safetensors::HasQuantizedValues(file.metadata())) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(file.path(), ": want values that were never quantized, got a file that convert has written"));
}

absl::StatusOr<std::optional<Encoding>> Conversion::EncodingOf(const SafetensorsFile& file,
                                                               const TensorInfo& info) const {
  const ConversionRule* rule = rules_.Find(info.name);
  std::optional<Encoding> encoding;
  if (rule != nullptr) {
    encoding = rule->encoding;
  } else if (info.shape.size() >= 2) {
    encoding = options_.encoding;
  }
  if (!encoding.has_value()) return encoding;
  if (IsQuantized(info.dtype)) {
    return About(file, info.name,
                 absl::StrCat("want F32, BF16 or F16, got ", safetensors::DtypeName(info.dtype),
                              ", which is quantized already; a rule KEEP copies it unchanged"));
  }
  if (!weights::PlainFormatOf(info.dtype).has_value() || info.size_bytes == 0) return std::nullopt;
  const Weights::Tensor* const tensor = input_.Find(info.name);
  if (tensor != nullptr) RETURN_IF_ERROR(tensor->refusal);
  return encoding;
}

absl::Status Conversion::PlanEncodings() {
  for (const SafetensorsFile& file : checkpoint_.files()) {
    RETURN_IF_ERROR(CheckSource(file));
    for (const TensorInfo* const info : checkpoint_.TensorsOf(file)) {
      ASSIGN_OR_RETURN(const std::optional<Encoding> encoding, EncodingOf(file, *info));
      if (encoding.has_value()) encodings_[info->name] = *encoding;
    }
  }
  return absl::OkStatus();
}

std::string Conversion::InputFolder() const {
  const std::string& first =
      checkpoint_.index_path().empty() ? checkpoint_.files().front().path() : checkpoint_.index_path();
  return fs::path(first).parent_path().string();
}

// A config.json beside the output says how transformers reads it: without quantization_config it takes codes for
// values. The output folder's own is changed, else the input folder's is copied.
absl::Status Conversion::PlanConfig() {
  // transformers reads no file of another name.
  if (HasOneOutput() && fs::path(options_.output).filename() != safetensors::kModelFileName) return absl::OkStatus();
  std::error_code error;
  const std::string beside = OutputFolder().string();
  const bool is_beside = fs::exists(fs::path(beside) / kConfigFileName, error);
  if (!is_beside && (HasOneOutput() || !fs::exists(fs::path(InputFolder()) / kConfigFileName, error))) {
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(nlohmann::ordered_json config, ReadConfig(is_beside ? beside : InputFolder()));
  const bool carries_codes = std::any_of(input_.tensors().begin(), input_.tensors().end(), [&](const auto& tensor) {
    return !Decodes() && tensor.second.kind != Weights::Kind::kPlain && tensor.second.kind != Weights::Kind::kCarried;
  });
  bool is_quantized = false;
  bool is_known = true;
  for (const auto& [name, encoding] : encodings_) {
    if (weights::IsPlain(encoding.format)) continue;
    is_quantized = true;
    is_known &= IsKnownToTransformers(encoding);
  }
  // The input's config.json describes codes that are copied.
  if (is_beside && !is_quantized && carries_codes) return absl::OkStatus();
  if (is_quantized || !carries_codes) RemoveQuantizationConfig(config);
  config_ = std::move(config);
  if (!is_quantized) return absl::OkStatus();
  if (is_known && !carries_codes) return KeepWhatTransformersDoesNotDecode();
  notes_.push_back("transformers does not decode these formats: config.json makes it refuse the folder");
  (*config_)[weights::kQuantizationMembers[0]] = UnknownQuantizationConfig();
  return absl::OkStatus();
}

absl::Status Conversion::KeepWhatTransformersDoesNotDecode() {
  std::set<std::string> kept;  // modules
  for (const auto& [name, tensor] : checkpoint_.tensors()) {
    const std::vector<int64_t>& shape = tensor.info->shape;
    const auto encoding = encodings_.find(name);
    const bool is_encoded = encoding != encodings_.end() && !weights::IsPlain(encoding->second.format);
    const ConversionRule* const rule = rules_.Find(name);
    const bool is_of_rule = is_encoded && rule != nullptr;
    if (is_of_rule && !HasWholeBlocks(shape)) {
      return About(*tensor.file, name,
                   absl::StrCat("want a matrix of whole blocks of 128 x 128 beside a ", kConfigFileName, ", got [",
                                absl::StrJoin(shape, ", "),
                                "], which transformers would decode with blocks of another size: KEEP it"));
    }
    if (is_encoded && HasWholeBlocks(shape) && (is_of_rule || IsLinearWeight(name, shape))) continue;
    if (shape.size() >= 2) kept.insert(ModuleOf(name));
  }
  for (auto encoding = encodings_.begin(); encoding != encodings_.end();) {
    const bool is_kept = !weights::IsPlain(encoding->second.format) && kept.count(ModuleOf(encoding->first)) != 0;
    encoding = is_kept ? encodings_.erase(encoding) : std::next(encoding);
  }
  if (std::all_of(encodings_.begin(), encodings_.end(),
                  [](const auto& encoding) { return weights::IsPlain(encoding.second.format); })) {
    notes_.push_back(
        "nothing is quantized: want a matrix of a linear layer with rows and columns that are multiples of 128");
    return absl::OkStatus();
  }
  notes_.push_back(absl::StrCat("config.json has a quantization_config for transformers, with ", kept.size(),
                                " modules that are not quantized"));
  (*config_)[weights::kQuantizationMembers[0]] = Fp8QuantizationConfig({kept.begin(), kept.end()});
  return absl::OkStatus();
}

std::vector<Step> Conversion::EncodingSteps(const SafetensorsFile& file) const {
  std::vector<Step> steps;
  for (const TensorInfo* const info : checkpoint_.TensorsOf(file)) {
    Step step{.kind = Step::Kind::kCarry, .file = &file, .source = info, .encoded = nullptr, .tensor = {}};
    if (const auto encoding = encodings_.find(info->name); encoding != encodings_.end()) {
      step.kind = Step::Kind::kEncode;
      step.tensor = {info->name, info->shape, encoding->second,
                     options_.has_columns && HasColumnPlane(encoding->second.format)};
    }
    steps.push_back(std::move(step));
  }
  return steps;
}

absl::StatusOr<std::vector<Step>> Conversion::DecodingSteps(const SafetensorsFile& file) const {
  // Tensors that a conversion has copied are copied again.
  const bool is_own = file.metadata().count(safetensors::kEncodingsKey) != 0;
  std::vector<Step> steps;
  for (const auto& [name, tensor] : input_.tensors()) {
    if (tensor.data->file != &file) continue;
    Step step{.kind = Step::Kind::kCarry, .file = &file, .source = tensor.data->info, .encoded = nullptr, .tensor = {}};
    if (!is_own) RETURN_IF_ERROR(tensor.refusal);
    if (tensor.is_number() && tensor.kind != Weights::Kind::kPlain) {
      step.kind = Step::Kind::kDecode;
      step.encoded = &tensor;
      step.tensor = {name, tensor.shape, {*options_.dequantized_format}, false};
    }
    steps.push_back(std::move(step));
  }
  return steps;
}

absl::StatusOr<std::vector<Step>> Conversion::Steps(const SafetensorsFile& file) const {
  if (Decodes()) return DecodingSteps(file);
  return EncodingSteps(file);
}

// Returns the output path: relative to the index or the folder as in the input.
fs::path Conversion::OutputOf(const SafetensorsFile& file) const {
  if (HasOneOutput()) return options_.output;
  const fs::path source(file.path());
  if (checkpoint_.index_path().empty()) return fs::path(options_.output) / source.filename();
  return fs::path(options_.output) / source.lexically_relative(fs::path(checkpoint_.index_path()).parent_path());
}

void Conversion::AddMetadata(OutputFile& output) const {
  std::vector<QuantizedTensor> encoded;
  bool decoded = false;
  for (const Step& step : output.steps) {
    decoded |= step.kind == Step::Kind::kDecode;
    if (step.kind == Step::Kind::kEncode && !weights::IsPlain(step.tensor.encoding.format))
      encoded.push_back(step.tensor);
  }
  output.metadata.erase(safetensors::kEncodingsKey);
  if (encoded.empty() && !decoded) return;
  output.metadata[safetensors::kConversionVersionKey] = kConversionVersion;
  if (!encoded.empty()) output.metadata[safetensors::kEncodingsKey] = weights::SerializeEncodings(encoded);
  if (decoded) output.metadata[safetensors::kDequantizedKey] = std::string(FormatName(*options_.dequantized_format));
}

absl::StatusOr<std::vector<OutputFile>> Conversion::Plan() const {
  std::map<std::string, OutputFile> outputs;
  for (const SafetensorsFile& file : checkpoint_.files()) {
    OutputFile& output = outputs[OutputOf(file).string()];
    output.path = OutputOf(file).string();
    output.metadata.insert(file.metadata().begin(), file.metadata().end());
    ASSIGN_OR_RETURN(std::vector<Step> steps, Steps(file));
    std::move(steps.begin(), steps.end(), std::back_inserter(output.steps));
  }
  std::vector<OutputFile> plan;
  int64_t decoded_count = 0;
  for (auto& [path, output] : outputs) {
    RETURN_IF_ERROR(CheckOutput(path));
    AddMetadata(output);
    decoded_count += std::count_if(output.steps.begin(), output.steps.end(),
                                   [](const Step& step) { return step.kind == Step::Kind::kDecode; });
    plan.push_back(std::move(output));
  }
  if (decoded_count > 0 || !options_.dequantized_format.has_value()) return plan;
  return absl::InvalidArgumentError(absl::StrCat(
      options_.input, ": nothing to decode: want tensors that convert has encoded, or FP8 or MXFP4 with scales"));
}

absl::Status Conversion::CheckOutput(const std::string& path) const {
  for (const SafetensorsFile& file : checkpoint_.files()) {
    std::error_code error;
    if (!fs::equivalent(path, file.path(), error)) continue;
    return absl::InvalidArgumentError(absl::StrCat(path, " is the input: choose another output"));
  }
  return absl::OkStatus();
}

// Returns true for names of weight files and their indices.
bool IsOfWeights(absl::string_view name) {
  absl::ConsumeSuffix(&name, ".index.json");
  return absl::EndsWith(name, ".safetensors") ||
         (absl::StartsWith(name, "pytorch_model") && absl::EndsWith(name, ".bin"));
}

// Older weights that are not replaced stay, and readers of the folder may take them instead.
absl::Status Conversion::CheckOutputFolder(const std::vector<OutputFile>& plan) const {
  std::error_code error;
  if (HasOneOutput() || !fs::is_directory(options_.output, error)) return absl::OkStatus();
  std::set<fs::path> written;
  for (const OutputFile& output : plan) written.insert(output.path);
  if (!checkpoint_.index_path().empty()) written.insert(OutputFolder() / safetensors::kIndexFileName);
  for (fs::directory_iterator entry(options_.output, error), end; !error && entry != end; entry.increment(error)) {
    const fs::path& path = entry->path();
    if (!IsOfWeights(path.filename().string()) || written.count(path) != 0) continue;
    return absl::AlreadyExistsError(absl::StrCat(
        path.string(), ": already exists, and may be read instead of the output: remove it, or name another OUT"));
  }
  if (!error) return absl::OkStatus();
  return absl::ErrnoToStatus(error.value(), absl::StrCat(options_.output, ": reading the folder failed"));
}

absl::Status CreateFolderOf(const std::string& path) {
  const fs::path folder = fs::path(path).parent_path();
  std::error_code error;
  if (!folder.empty()) fs::create_directories(folder, error);
  if (!error) return absl::OkStatus();
  return absl::ErrnoToStatus(error.value(), absl::StrCat(folder.string(), ": create failed"));
}

absl::Status Conversion::WriteText(const char* name, absl::string_view text) const {
  ASSIGN_OR_RETURN(ReplacingFile file, ReplacingFile::Create((OutputFolder() / name).string()));
  RETURN_IF_ERROR(file.WriteAt(0, absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(text.data()), text.size())));
  return file.Commit();
}

absl::StatusOr<ConversionReport> Conversion::Run(const ConversionProgress& progress) {
  RETURN_IF_ERROR(ReadRules());
  if (!Decodes()) RETURN_IF_ERROR(PlanEncodings());
  RETURN_IF_ERROR(PlanConfig());
  ASSIGN_OR_RETURN(std::vector<OutputFile> plan, Plan());
  RETURN_IF_ERROR(CheckOutputFolder(plan));
  int64_t all_bytes = 0;
  for (const auto& [name, tensor] : checkpoint_.tensors()) all_bytes += tensor.info->size_bytes;
  int64_t done_bytes = 0;
  const std::function<void(int64_t, absl::string_view)> advance = [&](int64_t bytes, absl::string_view tensor) {
    done_bytes += bytes;
    if (progress) progress(done_bytes, all_bytes, tensor);
  };
  ConversionReport report;
  report.notes = checkpoint_.notes();
  report.notes.insert(report.notes.end(), notes_.begin(), notes_.end());
  if (!Decodes() && encodings_.empty()) report.notes.push_back("no tensor is converted: all are copied unchanged");
  std::map<std::string, std::string> weight_map;
  // Written before any weights: codes never lie in a folder without it.
  if (config_.has_value()) {
    RETURN_IF_ERROR(CreateFolderOf((OutputFolder() / kConfigFileName).string()));
    RETURN_IF_ERROR(WriteText(kConfigFileName, ConfigText(*config_)));
  }
  for (OutputFile& output : plan) {
    RETURN_IF_ERROR(CreateFolderOf(output.path));
    FileConversion file(input_, advance, report);
    RETURN_IF_ERROR(file.Run(output));
    const std::string name = fs::path(output.path).lexically_relative(options_.output).string();
    for (const SafetensorsWriter::Tensor& tensor : file.tensors()) weight_map[tensor.name] = name;
  }
  if (!HasOneOutput() && !checkpoint_.index_path().empty()) {
    RETURN_IF_ERROR(WriteText(safetensors::kIndexFileName, safetensors::SerializeIndex(weight_map, report.bytes)));
  }
  return report;
}

}  // namespace

absl::StatusOr<ConversionReport> Convert(const ConversionOptions& options, const ConversionProgress& progress) {
  if (options.encoding.has_value()) RETURN_IF_ERROR(weights::CheckFileEncoding(*options.encoding));
  ASSIGN_OR_RETURN(Weights input, Weights::Open(options.input));
  if (input.checkpoint().is_sharded()) {
    return absl::InvalidArgumentError(absl::StrCat(
        options.input, ": want whole tensors in one file or with an index, got tensors in parts; use import instead"));
  }
  return Conversion(options, std::move(input)).Run(progress);
}

}  // namespace paramshard::ctl
