#include "client/ctl/conversion.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <map>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/ctl/conversion_rules.h"
#include "client/ctl/encoding.h"
#include "kernels/base/status_macros.h"
#include "kernels/formats/codec.h"
#include "proto/safetensors/checkpoint.h"
#include "proto/safetensors/conversion.h"
#include "proto/safetensors/replacing_file.h"

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
using weights::ParseEncodings;
using weights::Part;
using weights::PartTensor;
using weights::PartTensors;
using weights::QuantizedTensor;
using weights::RowBand;
using Bytes = std::vector<uint8_t>;

constexpr char kConversionVersion[] = "1";
constexpr int64_t kBandElements = 4 << 20;
constexpr int64_t kCopyBytes = 16 << 20;

// Floats of less than 16 bits: what another program has quantized.
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

// The tensors that a quantized tensor's parts are read from.
using Parts = std::map<Part, const TensorInfo*>;

// One tensor of the input, and what is done with it.
struct Step {
  enum class Kind { kCarry, kEncode, kDecode };
  Kind kind = Kind::kCarry;
  const SafetensorsFile* file = nullptr;
  const TensorInfo* source = nullptr;  // to decode: the data
  QuantizedTensor tensor;              // not to carry
  Parts parts;                         // to decode
};

struct OutputFile {
  std::string path;
  std::vector<Step> steps;
  Metadata metadata;
};

// --- Doing one file's steps ---

class FileConversion {
 public:
  FileConversion(const ConversionOptions& options, const std::function<void(int64_t, absl::string_view)>& advance,
                 ConversionReport& report)
      : options_(options), advance_(advance), report_(report) {}

  absl::Status Run(const OutputFile& output);
  // The tensors of the file that Run has written.
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

  const ConversionOptions& options_;
  const std::function<void(int64_t, absl::string_view)>& advance_;
  ConversionReport& report_;
  std::vector<SafetensorsWriter::Tensor> tensors_;
};

std::vector<SafetensorsWriter::Tensor> FileConversion::TensorsOf(const Step& step) const {
  if (step.kind == Step::Kind::kCarry) return {{step.source->name, step.source->dtype, step.source->shape}};
  QuantizedTensor tensor = step.tensor;
  if (step.kind == Step::Kind::kDecode) tensor = {tensor.name, tensor.shape, {*options_.dequantized_format}, false};
  std::vector<SafetensorsWriter::Tensor> tensors;
  for (PartTensor& part : PartTensors(tensor)) tensors.push_back(std::move(part.tensor));
  return tensors;
}

absl::Status FileConversion::Run(const OutputFile& output) {
  tensors_.clear();
  for (const Step& step : output.steps) {
    for (SafetensorsWriter::Tensor& tensor : TensorsOf(step)) tensors_.push_back(std::move(tensor));
  }
  ASSIGN_OR_RETURN(SafetensorsWriter writer, SafetensorsWriter::Create(output.path, tensors_, output.metadata));
  for (const Step& step : output.steps) RETURN_IF_ERROR(Do(step, writer));
  return writer.Commit();
}

absl::Status FileConversion::Do(const Step& step, SafetensorsWriter& writer) {
  ConvertedTensor converted{step.tensor, step.source->size_bytes, 0, {}};
  for (const SafetensorsWriter::Tensor& tensor : TensorsOf(step)) {
    converted.bytes += *safetensors::TensorBytes(tensor.dtype, tensor.shape);
  }
  for (const auto& [part, info] : step.parts) {
    if (part != Part::kData) converted.source_bytes += info->size_bytes;
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

// Reads the whole tensor once more than the others are.
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
  const QuantizedTensor& tensor = step.tensor;
  const int64_t cols = MatrixOf(tensor.shape).cols;
  const Encoding plain{*options_.dequantized_format};
  return ForEachBand(MatrixOf(tensor.shape), GranuleRows(tensor.encoding.format), [&](RowBand band) -> absl::Status {
    std::map<Part, Bytes> bytes;
    int64_t read_bytes = 0;
    for (const Part part : {Part::kData, Part::kScales, Part::kAmax}) {
      const auto source = step.parts.find(part);
      if (source == step.parts.end()) continue;
      const weights::ByteRange range = BandBytes(tensor, part, band);
      bytes[part].resize(range.size);
      RETURN_IF_ERROR(step.file->Read(*source->second, range.begin, absl::MakeSpan(bytes[part])));
      read_bytes += range.size;
    }
    std::vector<float> values(band.size() * cols);
    DecodePlane(tensor.encoding, Plane::kRowWise,
                {bytes[Part::kData].data(), bytes[Part::kScales].data(), bytes[Part::kAmax].data()}, band.size(), cols,
                values.data());
    Bytes out(DataBytes(plain, band.size(), cols));
    EncodePlanes(plain, values.data(), band.size(), cols, {out.data()}, {});
    RETURN_IF_ERROR(writer.Append(tensor.name, out));
    advance_(read_bytes, tensor.name);
    return absl::OkStatus();
  });
}

// --- Planning ---

class Conversion {
 public:
  Conversion(const ConversionOptions& options, Checkpoint input) : options_(options), input_(std::move(input)) {}

  absl::StatusOr<ConversionReport> Run(const ConversionProgress& progress);

 private:
  absl::StatusOr<std::vector<Step>> Steps(const SafetensorsFile& file) const;
  absl::StatusOr<std::vector<Step>> EncodingSteps(const SafetensorsFile& file) const;
  absl::StatusOr<std::vector<Step>> DecodingSteps(const SafetensorsFile& file) const;
  absl::StatusOr<std::optional<Encoding>> EncodingOf(const SafetensorsFile& file, const TensorInfo& info) const;
  absl::Status ReadRules();
  absl::Status CheckSource(const SafetensorsFile& file) const;
  bool HasOneOutput() const { return absl::EndsWith(options_.output, ".safetensors"); }
  fs::path OutputOf(const SafetensorsFile& file) const;
  absl::StatusOr<std::vector<OutputFile>> Plan() const;
  void AddMetadata(OutputFile& output) const;
  absl::Status CheckOutput(const std::string& path) const;
  absl::Status WriteIndex(const std::map<std::string, std::string>& weight_map, int64_t bytes) const;

  const ConversionOptions& options_;
  const Checkpoint input_;
  ConversionRules rules_;
};

absl::Status Conversion::ReadRules() {
  if (options_.rules_path.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(rules_, ConversionRules::Read(options_.rules_path));
  std::vector<std::string> names;
  for (const auto& [name, tensor] : input_.tensors()) names.push_back(name);
  return rules_.CheckAllMatch(names);
}

absl::Status Conversion::CheckSource(const SafetensorsFile& file) const {
  if (!safetensors::HasQuantizedValues(file.metadata())) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      file.path(), ": values that were never quantized expected, got a file that a conversion has written"));
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
                 absl::StrCat("F32, BF16 or F16 expected, got ", safetensors::DtypeName(info.dtype),
                              ", which is quantized already; a rule KEEP carries it as it is"));
  }
  if (!weights::PlainFormatOf(info.dtype).has_value() || info.size_bytes == 0) encoding.reset();
  return encoding;
}

absl::StatusOr<std::vector<Step>> Conversion::EncodingSteps(const SafetensorsFile& file) const {
  RETURN_IF_ERROR(CheckSource(file));
  std::vector<Step> steps;
  for (const TensorInfo* const info : input_.TensorsOf(file)) {
    Step step{.kind = Step::Kind::kCarry, .file = &file, .source = info, .tensor = {}, .parts = {}};
    ASSIGN_OR_RETURN(const std::optional<Encoding> encoding, EncodingOf(file, *info));
    if (encoding.has_value()) {
      step.kind = Step::Kind::kEncode;
      step.tensor = {info->name, info->shape, *encoding, options_.has_columns && HasColumnPlane(encoding->format)};
    }
    steps.push_back(std::move(step));
  }
  return steps;
}

absl::StatusOr<std::vector<Step>> Conversion::DecodingSteps(const SafetensorsFile& file) const {
  const auto encodings = file.metadata().find(safetensors::kEncodingsKey);
  std::vector<QuantizedTensor> tensors;
  if (encodings != file.metadata().end()) {
    auto parsed = ParseEncodings(encodings->second);
    if (!parsed.ok()) {
      return absl::Status(parsed.status().code(), absl::StrCat(file.path(), ": ", parsed.status().message()));
    }
    tensors = *std::move(parsed);
  }
  std::map<absl::string_view, const TensorInfo*> left;
  for (const TensorInfo* const info : input_.TensorsOf(file)) left[info->name] = info;
  std::vector<Step> steps;
  for (QuantizedTensor& tensor : tensors) {
    Step step{.kind = Step::Kind::kDecode, .file = &file, .source = nullptr, .tensor = {}, .parts = {}};
    for (const auto& [part, expected] : PartTensors(tensor)) {
      const auto found = left.find(expected.name);
      if (found == left.end() || found->second->dtype != expected.dtype || found->second->shape != expected.shape) {
        return About(file, expected.name,
                     absl::StrCat(safetensors::DtypeName(expected.dtype), " [", absl::StrJoin(expected.shape, ", "),
                                  "] expected for ", EncodingText(tensor.encoding), ", got another or none"));
      }
      step.parts[part] = found->second;
      left.erase(found);
    }
    step.source = step.parts[Part::kData];
    step.tensor = std::move(tensor);
    steps.push_back(std::move(step));
  }
  for (const auto& [name, info] : left) {
    steps.push_back({.kind = Step::Kind::kCarry, .file = &file, .source = info, .tensor = {}, .parts = {}});
  }
  return steps;
}

absl::StatusOr<std::vector<Step>> Conversion::Steps(const SafetensorsFile& file) const {
  return options_.dequantized_format.has_value() ? DecodingSteps(file) : EncodingSteps(file);
}

// Beside the index, or the file itself, as in the input.
fs::path Conversion::OutputOf(const SafetensorsFile& file) const {
  if (HasOneOutput()) return options_.output;
  const fs::path source(file.path());
  if (input_.index_path().empty()) return fs::path(options_.output) / source.filename();
  return fs::path(options_.output) / source.lexically_relative(fs::path(input_.index_path()).parent_path());
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
  for (const SafetensorsFile& file : input_.files()) {
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
  return absl::InvalidArgumentError(
      absl::StrCat(options_.input, ": tensors that a conversion has encoded expected, got none (no metadata ",
                   safetensors::kEncodingsKey, ")"));
}

absl::Status Conversion::CheckOutput(const std::string& path) const {
  for (const SafetensorsFile& file : input_.files()) {
    std::error_code error;
    if (!fs::equivalent(path, file.path(), error)) continue;
    return absl::InvalidArgumentError(absl::StrCat("another file than the input expected, got ", path, " for both"));
  }
  return absl::OkStatus();
}

absl::Status CreateFolderOf(const std::string& path) {
  const fs::path folder = fs::path(path).parent_path();
  std::error_code error;
  if (!folder.empty()) fs::create_directories(folder, error);
  if (!error) return absl::OkStatus();
  return absl::ErrnoToStatus(error.value(), absl::StrCat(folder.string(), ": create failed"));
}

absl::Status Conversion::WriteIndex(const std::map<std::string, std::string>& weight_map, int64_t bytes) const {
  const std::string text = safetensors::SerializeIndex(weight_map, bytes);
  ASSIGN_OR_RETURN(ReplacingFile file,
                   ReplacingFile::Create((fs::path(options_.output) / safetensors::kIndexFileName).string()));
  RETURN_IF_ERROR(file.WriteAt(0, absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(text.data()), text.size())));
  return file.Commit();
}

absl::StatusOr<ConversionReport> Conversion::Run(const ConversionProgress& progress) {
  RETURN_IF_ERROR(ReadRules());
  ASSIGN_OR_RETURN(const std::vector<OutputFile> plan, Plan());
  int64_t all_bytes = 0;
  for (const auto& [name, tensor] : input_.tensors()) all_bytes += tensor.info->size_bytes;
  int64_t done_bytes = 0;
  const std::function<void(int64_t, absl::string_view)> advance = [&](int64_t bytes, absl::string_view tensor) {
    done_bytes += bytes;
    if (progress) progress(done_bytes, all_bytes, tensor);
  };
  ConversionReport report;
  std::map<std::string, std::string> weight_map;
  for (const OutputFile& output : plan) {
    RETURN_IF_ERROR(CreateFolderOf(output.path));
    FileConversion file(options_, advance, report);
    RETURN_IF_ERROR(file.Run(output));
    const std::string name = fs::path(output.path).lexically_relative(options_.output).string();
    for (const SafetensorsWriter::Tensor& tensor : file.tensors()) weight_map[tensor.name] = name;
  }
  if (!HasOneOutput() && !input_.index_path().empty()) RETURN_IF_ERROR(WriteIndex(weight_map, report.bytes));
  return report;
}

}  // namespace

absl::StatusOr<ConversionReport> Convert(const ConversionOptions& options, const ConversionProgress& progress) {
  if (options.encoding.has_value()) RETURN_IF_ERROR(weights::CheckFileEncoding(*options.encoding));
  ASSIGN_OR_RETURN(Checkpoint input, Checkpoint::Open(options.input));
  if (input.is_sharded()) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.input,
                     ": whole tensors in one file or with an index expected, got tensors in parts: import takes them"));
  }
  return Conversion(options, std::move(input)).Run(progress);
}

}  // namespace paramshard::ctl
