#include "common/weights/quantized_tensor.h"

#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/safetensors/shallow_json.h"
#include "kernels/base/status_macros.h"
#include "kernels/formats/format.h"
#include "nlohmann/json.hpp"

namespace paramshard::weights {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;
using safetensors::Dtype;

// An object of objects with lists of numbers.
constexpr int kEntryDepth = 3;

Plane PlaneOf(Part part) {
  return part == Part::kColumnData || part == Part::kColumnScales ? Plane::kColumnWise : Plane::kRowWise;
}

bool IsData(Part part) { return part == Part::kData || part == Part::kColumnData; }

Dtype DataDtype(const Encoding& encoding) {
  switch (encoding.format) {
    case Format::kFP32:
      return Dtype::kF32;
    case Format::kBF16:
      return Dtype::kBF16;
    case Format::kFP16:
      return Dtype::kF16;
    case Format::kNVFP4_2D:
      return Dtype::kU8;
    case Format::kFP8TensorCurrent:
    case Format::kFP8TensorDelayed:
    case Format::kFP8Block128x128:
    case Format::kMXFP8:
    case Format::kMXFP8_2D:
      break;
  }
  return encoding.element == ElementType::kE4M3 ? Dtype::kF8E4M3 : Dtype::kF8E5M2;
}

// E8M0 scales are U8, a type that older readers of safetensors support too.
Dtype ScaleDtype(Format format) {
  switch (TraitsOf(format).scale_type) {
    case ScaleType::kFloat32:
      return Dtype::kF32;
    case ScaleType::kE4M3:
      return Dtype::kF8E4M3;
    case ScaleType::kNone:
    case ScaleType::kE8M0:
      break;
  }
  return Dtype::kU8;
}

std::string NameOf(const QuantizedTensor& tensor, Part part) {
  const Format format = tensor.encoding.format;
  switch (part) {
    case Part::kData:
      return format == Format::kNVFP4_2D ? tensor.name + "_packed" : tensor.name;
    case Part::kScales:
      return tensor.name + (format == Format::kFP8Block128x128 ? "_scale_inv" : "_scale");
    case Part::kAmax:
      return tensor.name + "_amax";
    case Part::kColumnData:
      return tensor.name + "_column";
    case Part::kColumnScales:
      return tensor.name + "_column_scale";
  }
  return "";
}

std::vector<int64_t> DataShape(const QuantizedTensor& tensor) {
  std::vector<int64_t> shape = tensor.shape;
  if (tensor.encoding.format != Format::kNVFP4_2D) return shape;
  if (shape.empty()) shape.push_back(1);
  shape.back() = shape.back() / 2 + shape.back() % 2;
  return shape;
}

std::vector<int64_t> ScaleShapeOf(const QuantizedTensor& tensor, Part part) {
  if (IsOfWholeTensor(tensor, part)) return {1};
  const MatrixShape matrix = MatrixOf(tensor.shape);
  const MatrixShape scales = ScaleShape(tensor.encoding, PlaneOf(part), matrix.rows, matrix.cols);
  return {scales.rows, scales.cols};
}

PartTensor MakePart(const QuantizedTensor& tensor, Part part) {
  if (IsData(part)) return {part, {NameOf(tensor, part), DataDtype(tensor.encoding), DataShape(tensor)}};
  if (part == Part::kAmax) return {part, {NameOf(tensor, part), Dtype::kF32, {1}}};
  return {part, {NameOf(tensor, part), ScaleDtype(tensor.encoding.format), ScaleShapeOf(tensor, part)}};
}

int64_t BytesOfRows(const QuantizedTensor& tensor, Part part, int64_t rows) {
  const int64_t cols = MatrixOf(tensor.shape).cols;
  return IsData(part) ? DataBytes(tensor.encoding, rows, cols) : ScaleBytes(tensor.encoding, PlaneOf(part), rows, cols);
}

// Returns one entry of the metadata. scale_shape is for other readers of the file; ParseEntry does not need it.
ordered_json EntryOf(const QuantizedTensor& tensor) {
  const Encoding& encoding = tensor.encoding;
  ordered_json entry = {{"format", std::string(FormatName(encoding.format))},
                        {"element", std::string(ElementTypeName(encoding.element))},
                        {"power_of_two_scales", encoding.power_of_two_scales},
                        {"shape", tensor.shape},
                        {"has_columns", tensor.has_columns}};
  for (const PartTensor& part : PartTensors(tensor)) {
    if (part.part == Part::kScales) entry["scale_shape"] = part.tensor.shape;
  }
  return entry;
}

template <typename Value>
std::optional<Value> Member(const json& entry, const char* name) {
  const auto found = entry.find(name);
  if (found == entry.end()) return std::nullopt;
  if constexpr (std::is_same_v<Value, bool>) {
    if (!found->is_boolean()) return std::nullopt;
  } else if constexpr (std::is_same_v<Value, std::string>) {
    if (!found->is_string()) return std::nullopt;
  } else {
    if (!found->is_array()) return std::nullopt;
    for (const json& extent : *found) {
      if (!extent.is_number_unsigned()) return std::nullopt;
    }
  }
  return found->get<Value>();
}

absl::StatusOr<QuantizedTensor> ParseEntry(const std::string& name, const json& entry) {
  const auto format = Member<std::string>(entry, "format");
  const auto element = Member<std::string>(entry, "element");
  const auto power_of_two_scales = Member<bool>(entry, "power_of_two_scales");
  auto shape = Member<std::vector<int64_t>>(entry, "shape");
  const auto has_columns = Member<bool>(entry, "has_columns");
  if (!format || !element || !power_of_two_scales || !shape || !has_columns) {
    return absl::InvalidArgumentError("want format, element, power_of_two_scales, shape and has_columns");
  }
  QuantizedTensor tensor{name, *std::move(shape), {}, *has_columns};
  ASSIGN_OR_RETURN(tensor.encoding.format, ParseFormat(*format));
  ASSIGN_OR_RETURN(tensor.encoding.element, ParseElementType(*element));
  tensor.encoding.power_of_two_scales = *power_of_two_scales;
  RETURN_IF_ERROR(CheckFileEncoding(tensor.encoding));
  const std::optional<int64_t> size_bytes = safetensors::TensorBytes(Dtype::kF32, tensor.shape);
  if (size_bytes.value_or(0) > 0 && (!tensor.has_columns || HasColumnPlane(tensor.encoding.format))) return tensor;
  return absl::InvalidArgumentError("want a shape with elements, and columns for MXFP8 alone");
}

}  // namespace

bool IsPlain(Format format) { return format == Format::kFP32 || format == Format::kBF16 || format == Format::kFP16; }

std::optional<Format> PlainFormatOf(Dtype dtype) {
  if (dtype == Dtype::kF32) return Format::kFP32;
  if (dtype == Dtype::kBF16) return Format::kBF16;
  if (dtype == Dtype::kF16) return Format::kFP16;
  return std::nullopt;
}

absl::Status CheckFileEncoding(const Encoding& encoding) {
  if (encoding.format == Format::kFP8TensorDelayed) {
    return absl::InvalidArgumentError(
        "FP8_TENSOR_DELAYED is not supported in files, which have no history of amaxes: use FP8_TENSOR_CURRENT");
  }
  return CheckEncodable(encoding);
}

MatrixShape MatrixOf(absl::Span<const int64_t> shape) {
  MatrixShape matrix{1, shape.empty() ? 1 : shape.back()};
  for (size_t i = 0; i + 1 < shape.size(); ++i) matrix.rows *= shape[i];
  return matrix;
}

std::vector<PartTensor> PartTensors(const QuantizedTensor& tensor) {
  std::vector<PartTensor> parts = {MakePart(tensor, Part::kData)};
  if (IsPlain(tensor.encoding.format)) return parts;
  parts.push_back(MakePart(tensor, Part::kScales));
  if (AmaxBytes(tensor.encoding.format) > 0) parts.push_back(MakePart(tensor, Part::kAmax));
  if (!tensor.has_columns) return parts;
  parts.push_back(MakePart(tensor, Part::kColumnData));
  parts.push_back(MakePart(tensor, Part::kColumnScales));
  return parts;
}

bool IsOfWholeTensor(const QuantizedTensor& tensor, Part part) {
  return part == Part::kAmax || (part == Part::kScales && tensor.encoding.format == Format::kFP8TensorCurrent);
}

ByteRange BandBytes(const QuantizedTensor& tensor, Part part, RowBand band) {
  if (IsOfWholeTensor(tensor, part)) return {0, sizeof(float)};
  const int64_t begin = BytesOfRows(tensor, part, band.begin);
  return {begin, BytesOfRows(tensor, part, band.end) - begin};
}

std::string SerializeEncodings(const std::vector<QuantizedTensor>& tensors) {
  // Written member by member: an ordered_json searches all members whenever one is added.
  std::string text;
  for (const QuantizedTensor& tensor : tensors) {
    absl::StrAppend(&text, text.empty() ? "{" : ",", safetensors::JsonText(tensor.name), ":",
                    EntryOf(tensor).dump(-1, ' ', false, ordered_json::error_handler_t::replace));
  }
  return text.empty() ? "{}" : text + "}";
}

absl::StatusOr<std::vector<QuantizedTensor>> ParseEncodings(absl::string_view text) {
  std::vector<QuantizedTensor> tensors;
  absl::Status first;
  const json entries = safetensors::ParseShallowJson(text, kEntryDepth, [&](const safetensors::JsonMember& member) {
    if (member.depth != 1) return false;
    absl::StatusOr<QuantizedTensor> tensor = ParseEntry(member.name, member.value);
    if (tensor.ok()) {
      tensors.push_back(*std::move(tensor));
    } else {
      first.Update(absl::Status(tensor.status().code(), absl::StrCat("encoding of ", safetensors::NameText(member.name),
                                                                     ": ", tensor.status().message())));
    }
    return true;
  });
  if (!entries.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat("want a JSON object of encodings in the metadata, got ", safetensors::NameText(text)));
  }
  if (!first.ok()) return first;
  return tensors;
}

}  // namespace paramshard::weights
