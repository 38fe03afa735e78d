#include "kernels/formats/format.h"

#include "absl/strings/str_cat.h"
#include "kernels/base/check.h"

namespace paramshard {
namespace {

struct ElementInfo {
  ElementType element;
  absl::string_view name;
};

constexpr ElementInfo kElements[] = {
    {ElementType::kNone, "NONE"},
    {ElementType::kE4M3, "E4M3"},
    {ElementType::kE5M2, "E5M2"},
    {ElementType::kE2M1, "E2M1"},
};

// The elements that one scale serves; {0, 0} without scales. Clipped to the matrix at its edges.
using BlockShape = MatrixShape;

// Stands for the whole tensor, however large.
constexpr int64_t kUnbounded = INT64_MAX;

struct FormatInfo {
  Format format;
  absl::string_view name;
  int64_t granule_rows;
  int64_t element_bits;
  int64_t scale_bytes;
  BlockShape row_wise_block;
  BlockShape column_wise_block;
};

constexpr FormatInfo kFormats[] = {
    {Format::kFP32, "FP32", 1, 32, 0, {}, {}},
    {Format::kBF16, "BF16", 1, 16, 0, {}, {}},
    {Format::kFP16, "FP16", 1, 16, 0, {}, {}},
    {Format::kFP8TensorCurrent, "FP8_TENSOR_CURRENT", 1, 8, 4, {kUnbounded, kUnbounded}, {}},
    {Format::kFP8TensorDelayed, "FP8_TENSOR_DELAYED", 1, 8, 4, {kUnbounded, kUnbounded}, {}},
    {Format::kFP8Block128x128, "FP8_BLOCK_128X128", 128, 8, 4, {128, 128}, {}},
    {Format::kMXFP8, "MXFP8", 32, 8, 1, {1, 32}, {32, 1}},
    {Format::kMXFP8_2D, "MXFP8_2D", 32, 8, 1, {32, 32}, {}},
    {Format::kNVFP4_2D, "NVFP4_2D", 16, 4, 1, {16, 16}, {}},
};

const FormatInfo* FindFormat(Format format) {
  for (const FormatInfo& info : kFormats) {
    if (info.format == format) return &info;
  }
  return nullptr;
}

const FormatInfo& GetFormat(Format format) {
  const FormatInfo* info = FindFormat(format);
  PARAMSHARD_CHECK(info != nullptr);
  return *info;
}

bool ElementFits(Format format, ElementType element) {
  switch (format) {
    case Format::kFP32:
    case Format::kBF16:
    case Format::kFP16:
      return true;
    case Format::kNVFP4_2D:
      return element == ElementType::kE2M1;
    default:
      return element == ElementType::kE4M3 || element == ElementType::kE5M2;
  }
}

int64_t CeilDivide(int64_t size, int64_t block) { return size / block + (size % block != 0 ? 1 : 0); }

}  // namespace

absl::string_view FormatName(Format format) {
  const FormatInfo* info = FindFormat(format);
  return info == nullptr ? "UNKNOWN" : info->name;
}

absl::string_view ElementTypeName(ElementType element) {
  for (const ElementInfo& info : kElements) {
    if (info.element == element) return info.name;
  }
  return "UNKNOWN";
}

absl::StatusOr<Format> ParseFormat(absl::string_view name) {
  for (const FormatInfo& info : kFormats) {
    if (info.name == name) return info.format;
  }
  return absl::InvalidArgumentError(absl::StrCat("unknown format \"", name, "\""));
}

absl::StatusOr<ElementType> ParseElementType(absl::string_view name) {
  for (const ElementInfo& info : kElements) {
    if (info.name == name) return info.element;
  }
  return absl::InvalidArgumentError(absl::StrCat("unknown element type \"", name, "\""));
}

absl::Status CheckEncodable(const Encoding& encoding) {
  const FormatInfo* info = FindFormat(encoding.format);
  if (info == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("unknown format ", static_cast<int>(encoding.format)));
  }
  if (!ElementFits(encoding.format, encoding.element)) {
    return absl::InvalidArgumentError(
        absl::StrCat("format ", info->name, " has no element type ", ElementTypeName(encoding.element)));
  }
  return absl::OkStatus();
}

ElementType DefaultElement(Format format) {
  return format == Format::kNVFP4_2D ? ElementType::kE2M1 : ElementType::kE4M3;
}

bool ReadsPowerOfTwoScales(Format format) {
  return format == Format::kFP8TensorCurrent || format == Format::kFP8Block128x128;
}

bool DefaultPowerOfTwoScales(Format format) { return format != Format::kFP8TensorCurrent; }

int64_t GranuleRows(Format format) { return GetFormat(format).granule_rows; }

bool NeedsAmax(Format format) { return EncodesAfterAmax(format) || format == Format::kFP8TensorDelayed; }

bool EncodesAfterAmax(Format format) { return format == Format::kFP8TensorCurrent || format == Format::kNVFP4_2D; }

bool HasColumnPlane(Format format) { return GetFormat(format).column_wise_block.rows != 0; }

int64_t DataBytes(const Encoding& encoding, int64_t rows, int64_t cols) {
  return rows * CeilDivide(cols * GetFormat(encoding.format).element_bits, 8);
}

MatrixShape ScaleShape(const Encoding& encoding, Plane plane, int64_t rows, int64_t cols) {
  const FormatInfo& info = GetFormat(encoding.format);
  const BlockShape block = plane == Plane::kRowWise ? info.row_wise_block : info.column_wise_block;
  if (block.rows == 0) return {0, 0};
  // A scale of the whole tensor belongs to every extent, an empty one too.
  if (block.rows == kUnbounded) return {1, 1};
  return {CeilDivide(rows, block.rows), CeilDivide(cols, block.cols)};
}

int64_t ScaleBytes(const Encoding& encoding, Plane plane, int64_t rows, int64_t cols) {
  const MatrixShape shape = ScaleShape(encoding, plane, rows, cols);
  return shape.rows * shape.cols * GetFormat(encoding.format).scale_bytes;
}

int64_t AmaxBytes(Format format) { return format == Format::kNVFP4_2D ? 4 : 0; }

}  // namespace paramshard
