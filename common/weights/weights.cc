#include "common/weights/weights.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <initializer_list>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "common/safetensors/conversion.h"
#include "common/safetensors/header.h"
#include "kernels/base/status_macros.h"
#include "kernels/formats/codec.h"
#include "kernels/formats/float4.h"
#include "kernels/formats/float8.h"
#include "kernels/formats/format.h"
#include "kernels/formats/scale_math.h"

namespace paramshard::weights {
namespace {

namespace fs = std::filesystem;
using safetensors::Checkpoint;
using safetensors::Dtype;
using safetensors::NameText;
using safetensors::TensorInfo;
using Bytes = std::vector<uint8_t>;

// Largest number of elements that are decoded at once.
constexpr int64_t kBandElements = int64_t{4} << 20;
// An MXFP4 block of gpt-oss: 32 elements in 16 bytes, the first in the low half of a byte.
constexpr int64_t kMxfp4Elements = 32;
constexpr int64_t kMxfp4Bytes = 16;
constexpr MatrixShape kDefaultBlock = {128, 128};
constexpr absl::string_view kHelp = "save it in BF16 with the program that wrote it";

int64_t CeilDiv(int64_t a, int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

MatrixShape GridOf(MatrixShape matrix, MatrixShape block) {
  return {CeilDiv(matrix.rows, block.rows), CeilDiv(matrix.cols, block.cols)};
}

std::string ShapeText(absl::Span<const int64_t> shape) { return absl::StrCat("[", absl::StrJoin(shape, ", "), "]"); }

bool IsFloat8(Dtype dtype) { return dtype == Dtype::kF8E4M3 || dtype == Dtype::kF8E5M2; }

// Returns true for floats of less than 16 bits.
bool IsSmallFloat(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF4:
    case Dtype::kF6E2M3:
    case Dtype::kF6E3M2:
    case Dtype::kF8E4M3:
    case Dtype::kF8E5M2:
    case Dtype::kF8E8M0:
    case Dtype::kF8E4M3FNUZ:
    case Dtype::kF8E5M2FNUZ:
      return true;
    default:
      return false;
  }
}

bool IsInteger(Dtype dtype) {
  return dtype == Dtype::kU8 || dtype == Dtype::kI8 || dtype == Dtype::kI16 || dtype == Dtype::kU16 ||
         dtype == Dtype::kI32 || dtype == Dtype::kU32 || dtype == Dtype::kI64 || dtype == Dtype::kU64;
}

Weights::Tensor TensorOf(const Checkpoint::Tensor& data, Weights::Kind kind) {
  Weights::Tensor tensor;
  tensor.name = data.info->name;
  tensor.shape = data.info->shape;
  tensor.dtype = data.info->dtype;
  tensor.kind = kind;
  tensor.encoding = std::string(safetensors::DtypeName(tensor.dtype));
  tensor.data = &data;
  return tensor;
}

Weights::Tensor Refused(const Checkpoint::Tensor& data, const std::string& name, absl::string_view message) {
  Weights::Tensor tensor = TensorOf(data, Weights::Kind::kRefused);
  tensor.name = name;
  tensor.refusal =
      absl::InvalidArgumentError(absl::StrCat(data.file->path(), ": tensor ", NameText(name), ": ", message));
  return tensor;
}

float DecodeCode(Dtype dtype, uint8_t code) {
  return dtype == Dtype::kF8E4M3 ? E4M3::Decode(code) : E5M2::Decode(code);
}

// Returns scales of any supported type as float32.
absl::StatusOr<std::vector<float>> ReadScales(const Checkpoint::Tensor& scales, int64_t begin, int64_t count) {
  const Dtype dtype = scales.info->dtype;
  const int64_t element_bytes = safetensors::DtypeBits(dtype) / 8;
  Bytes bytes(count * element_bytes);
  RETURN_IF_ERROR(scales.Read(begin * element_bytes, absl::MakeSpan(bytes)));
  std::vector<float> values(count);
  if (const std::optional<Format> format = PlainFormatOf(dtype); format.has_value()) {
    DecodePlane({*format}, Plane::kRowWise, {bytes.data()}, 1, count, values.data());
  } else {
    std::transform(bytes.begin(), bytes.end(), values.begin(), DecodeE8M0);
  }
  return values;
}

absl::Status ReadPlain(const Weights::Tensor& tensor, RowBand rows, float* out) {
  const int64_t cols = tensor.matrix().cols;
  const Encoding encoding{*PlainFormatOf(tensor.dtype)};
  const int64_t band_rows = std::max<int64_t>(kBandElements / std::max<int64_t>(cols, 1), 1);
  Bytes bytes;
  for (int64_t row = rows.begin; row < rows.end; row += band_rows) {
    const int64_t count = std::min(band_rows, rows.end - row);
    bytes.resize(DataBytes(encoding, count, cols));
    RETURN_IF_ERROR(tensor.data->Read(DataBytes(encoding, row, cols), absl::MakeSpan(bytes)));
    DecodePlane(encoding, Plane::kRowWise, {bytes.data()}, count, cols, out + (row - rows.begin) * cols);
  }
  return absl::OkStatus();
}

// Decodes one band of rows, which may begin and end inside of a block.
absl::Status ReadScaledBand(const Weights::Tensor& tensor, RowBand rows, const std::array<float, 256>& values,
                            float* out) {
  const MatrixShape grid = GridOf(tensor.scaled, tensor.block);
  const int64_t cols = tensor.matrix().cols;
  const auto grid_row = [&](int64_t row) {
    return row / tensor.scaled.rows * grid.rows + row % tensor.scaled.rows / tensor.block.rows;
  };
  Bytes codes(rows.size() * cols);
  RETURN_IF_ERROR(tensor.data->Read(rows.begin * cols, absl::MakeSpan(codes)));
  const int64_t first = grid_row(rows.begin);
  ASSIGN_OR_RETURN(const std::vector<float> scales,
                   ReadScales(*tensor.scales, first * grid.cols, (grid_row(rows.end - 1) + 1 - first) * grid.cols));
  const uint8_t* code = codes.data();
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    const float* const of_row = scales.data() + (grid_row(row) - first) * grid.cols;
    for (int64_t block = 0; block < grid.cols; ++block) {
      const float scale = of_row[block];
      const int64_t end = std::min(cols, (block + 1) * tensor.block.cols);
      for (int64_t col = block * tensor.block.cols; col < end; ++col) *out++ = values[*code++] * scale;
    }
  }
  return absl::OkStatus();
}

absl::Status ReadScaled(const Weights::Tensor& tensor, RowBand rows, float* out) {
  std::array<float, 256> values;
  for (int code = 0; code < 256; ++code) values[code] = DecodeCode(tensor.dtype, static_cast<uint8_t>(code));
  const int64_t cols = tensor.matrix().cols;
  const int64_t band_rows = std::max<int64_t>(kBandElements / std::max<int64_t>(cols, 1), 1);
  for (int64_t row = rows.begin; row < rows.end; row += band_rows) {
    const RowBand band{row, std::min(rows.end, row + band_rows)};
    RETURN_IF_ERROR(ReadScaledBand(tensor, band, values, out + (row - rows.begin) * cols));
  }
  return absl::OkStatus();
}

// Decodes `rows` of the transpose of a matrix [N, K] of the stack, into out [rows, N].
absl::Status ReadMxfp4Matrix(const Weights::Tensor& tensor, int64_t matrix, RowBand rows, float* out) {
  const int64_t k = tensor.shape[1];
  const int64_t n = tensor.shape[2];
  const int64_t groups = k / kMxfp4Elements;
  Bytes codes(n * groups * kMxfp4Bytes);
  RETURN_IF_ERROR(tensor.data->Read(matrix * static_cast<int64_t>(codes.size()), absl::MakeSpan(codes)));
  Bytes scales(n * groups);
  RETURN_IF_ERROR(tensor.scales->Read(matrix * static_cast<int64_t>(scales.size()), absl::MakeSpan(scales)));
  for (int64_t group = rows.begin / kMxfp4Elements; group * kMxfp4Elements < rows.end; ++group) {
    const int64_t first = group * kMxfp4Elements;
    const RowBand wanted{std::max(rows.begin, first), std::min(rows.end, first + kMxfp4Elements)};
    for (int64_t column = 0; column < n; ++column) {
      const uint8_t* const block = codes.data() + (column * groups + group) * kMxfp4Bytes;
      const float scale = DecodeE8M0(scales[column * groups + group]);
      for (int64_t row = wanted.begin; row < wanted.end; ++row) {
        const int64_t element = row - first;
        const auto code = static_cast<uint8_t>(block[element / 2] >> (element % 2 * 4) & 0xf);
        out[(row - rows.begin) * n + column] = E2M1::Decode(code) * scale;
      }
    }
  }
  return absl::OkStatus();
}

absl::Status ReadMxfp4(const Weights::Tensor& tensor, RowBand rows, float* out) {
  const int64_t k = tensor.shape[1];
  for (int64_t row = rows.begin; row < rows.end;) {
    const int64_t matrix = row / k;
    const RowBand inside{row - matrix * k, std::min(k, rows.end - matrix * k)};
    RETURN_IF_ERROR(ReadMxfp4Matrix(tensor, matrix, inside, out + (row - rows.begin) * tensor.shape[2]));
    row += inside.size();
  }
  return absl::OkStatus();
}

absl::Status ReadEncodedBand(const Weights::Tensor& tensor, RowBand band, float* out) {
  std::map<Part, Bytes> bytes;
  for (const Part part : {Part::kData, Part::kScales, Part::kAmax}) {
    const auto source = tensor.parts.find(part);
    if (source == tensor.parts.end()) continue;
    const ByteRange range = BandBytes(tensor.quantized, part, band);
    bytes[part].resize(range.size);
    RETURN_IF_ERROR(source->second->Read(range.begin, absl::MakeSpan(bytes[part])));
  }
  DecodePlane(tensor.quantized.encoding, Plane::kRowWise,
              {bytes[Part::kData].data(), bytes[Part::kScales].data(), bytes[Part::kAmax].data()}, band.size(),
              tensor.matrix().cols, out);
  return absl::OkStatus();
}

// Bands begin where blocks begin, so rows before and after `rows` may be decoded too.
absl::Status ReadEncoded(const Weights::Tensor& tensor, RowBand rows, float* out) {
  const MatrixShape matrix = tensor.matrix();
  const int64_t granule = GranuleRows(tensor.quantized.encoding.format);
  const int64_t band_rows = std::max<int64_t>(kBandElements / matrix.cols / granule, 1) * granule;
  std::vector<float> values;
  for (int64_t row = rows.begin / granule * granule; row < rows.end; row += band_rows) {
    const RowBand band{row, std::min(matrix.rows, row + band_rows)};
    const RowBand wanted{std::max(rows.begin, band.begin), std::min(rows.end, band.end)};
    float* const place = out + (wanted.begin - rows.begin) * matrix.cols;
    if (wanted.begin == band.begin && wanted.end == band.end) {
      RETURN_IF_ERROR(ReadEncodedBand(tensor, band, place));
      continue;
    }
    values.resize(band.size() * matrix.cols);
    RETURN_IF_ERROR(ReadEncodedBand(tensor, band, values.data()));
    std::memcpy(place, values.data() + (wanted.begin - band.begin) * matrix.cols,
                wanted.size() * matrix.cols * sizeof(float));
  }
  return absl::OkStatus();
}

// Returns a name without the prefixes that wrappers of modules put into it.
std::string UnwrappedName(absl::string_view name) {
  std::string unwrapped = absl::StrReplaceAll(absl::StrCat(".", name), {{"._orig_mod.", "."}, {".module.", "."}});
  return std::string(absl::StripPrefix(unwrapped, "."));
}

}  // namespace

int64_t Weights::Tensor::granule_rows() const {
  if (kind == Kind::kMxfp4) return shape[1];
  return kind == Kind::kEncoded ? GranuleRows(quantized.encoding.format) : 1;
}

absl::StatusOr<Weights> Weights::Open(const std::string& path) {
  ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::Open(path));
  Weights weights;
  weights.checkpoint_ = std::make_unique<Checkpoint>(std::move(checkpoint));
  const Checkpoint& opened = *weights.checkpoint_;
  const std::string& first = opened.index_path().empty() ? opened.files().front().path() : opened.index_path();
  ASSIGN_OR_RETURN(weights.config_, ReadQuantizationConfig(fs::path(first).parent_path().string()));
  Left left;
  for (const auto& [name, tensor] : opened.tensors()) left[name] = &tensor;
  for (const safetensors::SafetensorsFile& file : opened.files()) RETURN_IF_ERROR(weights.TakeEncoded(file, left));
  if (weights.config_.unknown.empty()) {
    weights.TakeMxfp4(left);
    weights.TakeScaled(left);
    weights.TakePacked(left);
  }
  weights.TakeRest(left);
  return weights;
}

absl::Status Weights::TakeEncoded(const safetensors::SafetensorsFile& file, Left& left) {
  const auto text = file.metadata().find(safetensors::kEncodingsKey);
  if (text == file.metadata().end()) return absl::OkStatus();
  auto encodings = ParseEncodings(text->second);
  if (!encodings.ok()) {
    return absl::Status(encodings.status().code(), absl::StrCat(file.path(), ": ", encodings.status().message()));
  }
  for (QuantizedTensor& quantized : *encodings) {
    Tensor tensor;
    for (const auto& [part, want] : PartTensors(quantized)) {
      const auto found = left.find(want.name);
      const TensorInfo* const got = found == left.end() ? nullptr : found->second->info;
      if (got == nullptr || got->dtype != want.dtype || got->shape != want.shape) {
        return absl::InvalidArgumentError(absl::StrCat(
            file.path(), ": tensor ", NameText(want.name), ": want ", safetensors::DtypeName(want.dtype), " ",
            ShapeText(want.shape), " for ", FormatName(quantized.encoding.format), ", got ",
            got == nullptr ? "none" : absl::StrCat(safetensors::DtypeName(got->dtype), " ", ShapeText(got->shape))));
      }
      if (part == Part::kData) tensor = TensorOf(*found->second, Kind::kEncoded);
      tensor.parts[part] = found->second;
      left.erase(found);
    }
    tensor.name = quantized.name;
    tensor.shape = quantized.shape;
    tensor.encoding = std::string(FormatName(quantized.encoding.format));
    tensor.quantized = std::move(quantized);
    Add(std::move(tensor));
  }
  return absl::OkStatus();
}

void Weights::TakeMxfp4(Left& left) {
  constexpr absl::string_view kBlocks = "_blocks";
  std::vector<Tensor> taken;
  for (const auto& [name, data] : left) {
    if (!absl::EndsWith(name, kBlocks)) continue;
    const std::string logical(name.substr(0, name.size() - kBlocks.size()));
    const auto scales = left.find(absl::StrCat(logical, "_scales"));
    if (scales == left.end()) continue;
    const std::vector<int64_t>& shape = data->info->shape;
    const std::vector<int64_t>& of_scales = scales->second->info->shape;
    const bool fits = data->info->dtype == Dtype::kU8 && scales->second->info->dtype == Dtype::kU8 &&
                      shape.size() == 4 && shape[3] == kMxfp4Bytes && of_scales.size() == 3 &&
                      std::equal(of_scales.begin(), of_scales.end(), shape.begin());
    if (!fits || left.count(logical) != 0) {
      taken.push_back(Refused(*data, logical,
                              absl::StrCat("want U8 [E, N, K/32, 16] and scales [E, N, K/32] of MXFP4, got ",
                                           ShapeText(shape), " and ", ShapeText(of_scales), "; ", kHelp)));
    } else {
      Tensor tensor = TensorOf(*data, Kind::kMxfp4);
      tensor.name = logical;
      tensor.shape = {shape[0], shape[2] * kMxfp4Elements, shape[1]};
      tensor.encoding = "MXFP4";
      taken.push_back(std::move(tensor));
    }
    taken.back().scales = scales->second;
  }
  for (Tensor& tensor : taken) {
    left.erase(tensor.data->info->name);
    left.erase(tensor.scales->info->name);
    Add(std::move(tensor));
  }
}

Weights::Tensor Weights::ScaledTensor(const Checkpoint::Tensor& data, const Checkpoint::Tensor& scales) const {
  const std::string& name = data.info->name;
  const Dtype scale_dtype = scales.info->dtype;
  const bool is_scale = PlainFormatOf(scale_dtype).has_value() || scale_dtype == Dtype::kF8E8M0 ||
                        (scale_dtype == Dtype::kU8 && config_.scales_are_e8m0);
  if (!is_scale) {
    return Refused(
        data, name,
        absl::StrCat("want scales of F32, BF16, F16 or F8_E8M0 for ", safetensors::DtypeName(data.info->dtype),
                     ", got ", safetensors::DtypeName(scale_dtype), "; ", kHelp));
  }
  Tensor tensor = TensorOf(data, Kind::kScaled);
  tensor.scales = &scales;
  const std::vector<int64_t>& of_scales = scales.info->shape;
  if (std::all_of(of_scales.begin(), of_scales.end(), [](int64_t extent) { return extent == 1; })) {
    tensor.scaled = tensor.block = tensor.matrix();
    absl::StrAppend(&tensor.encoding, " by tensor");
    return tensor;
  }
  const size_t stacked = tensor.shape.size() < 2 ? 0 : tensor.shape.size() - 2;
  const bool has_grids = tensor.shape.size() >= 2 && of_scales.size() == tensor.shape.size() &&
                         std::equal(tensor.shape.begin(), tensor.shape.begin() + stacked, of_scales.begin());
  const MatrixShape grid = has_grids ? MatrixShape{of_scales[stacked], of_scales[stacked + 1]} : MatrixShape{};
  tensor.scaled = has_grids ? MatrixShape{tensor.shape[stacked], tensor.shape[stacked + 1]} : MatrixShape{1, 1};
  const MatrixShape blocks = config_.block.value_or(kDefaultBlock);
  for (const MatrixShape block : {tensor.scaled, MatrixShape{1, tensor.scaled.cols}, blocks}) {
    if (grid != GridOf(tensor.scaled, block)) continue;
    tensor.block = block;
    absl::StrAppend(&tensor.encoding, " by ", block.rows, " x ", block.cols);
    return tensor;
  }
  return Refused(data, name,
                 absl::StrCat("want one scale for the tensor, for each row, or for each ", blocks.rows, " x ",
                              blocks.cols, " of ", safetensors::DtypeName(tensor.dtype), " ", ShapeText(tensor.shape),
                              ", got ", ShapeText(of_scales), "; ", kHelp));
}

void Weights::TakeScaled(Left& left) {
  std::vector<std::string> used;
  for (const auto& entry : left) {
    const auto& [name, data] = entry;
    if (!IsFloat8(data->info->dtype) || data->info->size_bytes == 0) continue;
    const auto beside = [&](absl::string_view suffix) { return left.find(absl::StrCat(entry.first, suffix)); };
    auto scales = beside("_scale_inv");
    if (scales == left.end()) scales = beside("_scale");
    if (scales == left.end()) continue;
    std::string other;
    for (const char* const suffix : {"_zero_point", "_g_idx", "_scale_2", "_global_scale"}) {
      if (beside(suffix) != left.end()) other = absl::StrCat(name, suffix);
    }
    if (other.empty()) {
      Add(ScaledTensor(*data, *scales->second));
    } else {
      Add(Refused(*data, std::string(name),
                  absl::StrCat("want ", safetensors::DtypeName(data->info->dtype), " codes with scales alone, got ",
                               NameText(other), " too: ", kHelp)));
    }
    used.insert(used.end(), {std::string(name), scales->second->info->name});
    // Scales of a layer's inputs are not values of the model.
    const absl::string_view layer = absl::StripSuffix(name, "weight");
    for (const char* const suffix : {"input_scale", "activation_scale"}) used.push_back(absl::StrCat(layer, suffix));
  }
  for (const std::string& name : used) left.erase(name);
}

// Refuses codes under other names than the tensor's: their layouts are not known.
void Weights::TakePacked(Left& left) {
  std::vector<std::pair<std::string, std::string>> packed;  // its name, the tensor's
  for (const auto& [name, data] : left) {
    if (!IsInteger(data->info->dtype)) continue;
    if (absl::EndsWith(name, "_packed")) packed.emplace_back(name, absl::StripSuffix(name, "_packed"));
    if (absl::EndsWith(name, ".qweight"))
      packed.emplace_back(name, absl::StrCat(absl::StripSuffix(name, "qweight"), "weight"));
  }
  for (const auto& [name, logical] : packed) {
    const Checkpoint::Tensor& data = *left.find(name)->second;
    Add(Refused(data, logical,
                absl::StrCat("want F32, BF16, F16 or FP8 with scales, got packed codes of ",
                             safetensors::DtypeName(data.info->dtype), " in ", NameText(name), "; ", kHelp)));
    left.erase(name);
  }
}

// Returns the reason why the tensor's bytes are not its values; empty if they are.
std::string Weights::WhyNotPlain(const TensorInfo& info) const {
  if (!config_.unknown.empty()) {
    return absl::StrCat("want weights that are not quantized or of a known method, got ",
                        safetensors::DtypeName(info.dtype), " under ", config_.unknown, "; ", kHelp);
  }
  if (IsSmallFloat(info.dtype) && !IsFloat8(info.dtype)) {
    return absl::StrCat("want F32, BF16, F16, or F8_E4M3 or F8_E5M2 with scales, got ",
                        safetensors::DtypeName(info.dtype), "; ", kHelp);
  }
  if (IsFloat8(info.dtype)) {
    return absl::StrCat("want F32, BF16, F16 or FP8 with ", NameText(info.name + "_scale_inv"), " or ",
                        NameText(info.name + "_scale"), ", got ", safetensors::DtypeName(info.dtype), " alone; ",
                        kHelp);
  }
  const bool is_plain = PlainFormatOf(info.dtype).has_value();
  const bool is_integer = IsInteger(info.dtype);
  for (const char* const suffix : {"_scale_inv", "_scale"}) {
    const std::string scales = info.name + suffix;
    if (checkpoint_->Find(scales) == nullptr) continue;
    const bool is_inverse = absl::EndsWith(suffix, "_inv");
    const bool is_of_codes = is_inverse || (!config_.method.empty() && config_.is_compressed);
    if (is_integer || (is_plain && is_of_codes)) {
      return absl::StrCat("want codes of FP8 for the scales ", NameText(scales), ", got ",
                          safetensors::DtypeName(info.dtype), "; ", kHelp);
    }
  }
  if (!is_integer || !absl::EndsWith(info.name, ".weight")) return "";
  return absl::StrCat("want F32, BF16, F16 or FP8 with scales, got ", safetensors::DtypeName(info.dtype), "; ", kHelp);
}

void Weights::TakeRest(const Left& left) {
  for (const auto& [name, data] : left) {
    const std::string refusal = WhyNotPlain(*data->info);
    if (refusal.empty()) {
      Add(TensorOf(*data, PlainFormatOf(data->info->dtype).has_value() ? Kind::kPlain : Kind::kCarried));
    } else {
      Add(Refused(*data, std::string(name), refusal));
    }
  }
}

const Weights::Tensor* Weights::Find(absl::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

absl::Status Weights::CheckNumber(const Tensor& tensor) const {
  if (tensor.is_number() || !tensor.refusal.ok()) return tensor.refusal;
  return absl::InvalidArgumentError(absl::StrCat(tensor.data->file->path(), ": tensor ", NameText(tensor.name),
                                                 ": want F32, BF16, F16 or FP8 with scales, got ",
                                                 safetensors::DtypeName(tensor.dtype)));
}

absl::Status Weights::ReadRows(const Tensor& tensor, RowBand rows, float* out) const {
  if (rows.size() == 0 || tensor.matrix().cols == 0) return CheckNumber(tensor);
  switch (tensor.kind) {
    case Kind::kPlain:
      return ReadPlain(tensor, rows, out);
    case Kind::kEncoded:
      return ReadEncoded(tensor, rows, out);
    case Kind::kScaled:
      return ReadScaled(tensor, rows, out);
    case Kind::kMxfp4:
      return ReadMxfp4(tensor, rows, out);
    case Kind::kCarried:
    case Kind::kRefused:
      break;
  }
  return CheckNumber(tensor);
}

std::string Weights::SimilarName(absl::string_view name) const {
  const std::string wanted = UnwrappedName(name);
  for (const auto& [other, tensor] : tensors_) {
    const std::string unwrapped = UnwrappedName(other);
    if (unwrapped == wanted || absl::EndsWith(unwrapped, absl::StrCat(".", wanted)) ||
        absl::EndsWith(wanted, absl::StrCat(".", unwrapped))) {
      return other;
    }
  }
  return "";
}

}  // namespace paramshard::weights
