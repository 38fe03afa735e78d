#include "kernels/formats/format.h"

#include <iterator>

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

const FormatTraits* FindFormat(Format format) {
  for (const FormatTraits& traits : kFormats) {
    if (traits.format == format) return &traits;
  }
  return nullptr;
}

bool ElementFits(ElementTypes types, ElementType element) {
  switch (types) {
    case ElementTypes::kAny:
      return true;
    case ElementTypes::kFloat8:
      return element == ElementType::kE4M3 || element == ElementType::kE5M2;
    case ElementTypes::kFloat4:
      return element == ElementType::kE2M1;
  }
  return false;
}

int64_t BytesOf(ScaleType type) {
  switch (type) {
    case ScaleType::kNone:
      return 0;
    case ScaleType::kFloat32:
      return 4;
    case ScaleType::kE8M0:
    case ScaleType::kE4M3:
      return 1;
  }
  return 0;
}

int64_t CeilDivide(int64_t size, int64_t block) { return size / block + (size % block != 0 ? 1 : 0); }

}  // namespace

const FormatTraits& TraitsOf(Format format) {
  const FormatTraits* traits = FindFormat(format);
  PARAMSHARD_CHECK(traits != nullptr);
  return *traits;
}

absl::string_view FormatName(Format format) {
  const FormatTraits* traits = FindFormat(format);
  return traits == nullptr ? "UNKNOWN" : traits->name;
}

std::string FormatNames() {
  std::string names;
  for (const FormatTraits& traits : kFormats) {
    const bool is_last = &traits == std::end(kFormats) - 1;
    absl::StrAppend(&names, names.empty() ? "" : is_last ? " or " : ", ", traits.name);
  }
  return names;
}

absl::string_view ElementTypeName(ElementType element) {
  for (const ElementInfo& info : kElements) {
    if (info.element == element) return info.name;
  }
  return "UNKNOWN";
}

absl::StatusOr<Format> ParseFormat(absl::string_view name) {
  for (const FormatTraits& traits : kFormats) {
    if (traits.name == name) return traits.format;
  }
  return absl::InvalidArgumentError(absl::StrCat("format: want ", FormatNames(), ", got \"", name, "\""));
}

absl::StatusOr<ElementType> ParseElementType(absl::string_view name) {
  for (const ElementInfo& info : kElements) {
    if (info.name == name) return info.element;
  }
  return absl::InvalidArgumentError(absl::StrCat("element type: want E4M3, E5M2 or E2M1, got \"", name, "\""));
}

absl::Status CheckEncodable(const Encoding& encoding) {
  const FormatTraits* traits = FindFormat(encoding.format);
  if (traits == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("format: want ", FormatNames(), ", got number ", static_cast<int>(encoding.format)));
  }
  if (!ElementFits(traits->elements, encoding.element)) {
    return absl::InvalidArgumentError(
        absl::StrCat("format ", traits->name, " has no element type ", ElementTypeName(encoding.element)));
  }
  return absl::OkStatus();
}

ElementType DefaultElement(Format format) {
  return TraitsOf(format).elements == ElementTypes::kFloat4 ? ElementType::kE2M1 : ElementType::kE4M3;
}

bool ReadsPowerOfTwoScales(Format format) { return TraitsOf(format).power_of_two_scales != PowerOfTwoScales::kNever; }

bool DefaultPowerOfTwoScales(Format format) {
  return TraitsOf(format).power_of_two_scales != PowerOfTwoScales::kOnRequest;
}

int64_t GranuleRows(Format format) { return TraitsOf(format).granule_rows; }

bool NeedsAmax(Format format) { return TraitsOf(format).amax_use != AmaxUse::kNone; }

bool EncodesAfterAmax(Format format) { return TraitsOf(format).amax_use == AmaxUse::kBeforeEncoding; }

bool HasColumnPlane(Format format) { return TraitsOf(format).column_wise_block.rows != 0; }

int64_t DataBytes(const Encoding& encoding, int64_t rows, int64_t cols) {
  return rows * CeilDivide(cols * TraitsOf(encoding.format).element_bits, 8);
}

MatrixShape ScaleShape(const Encoding& encoding, Plane plane, int64_t rows, int64_t cols) {
  const FormatTraits& traits = TraitsOf(encoding.format);
  const MatrixShape block = plane == Plane::kRowWise ? traits.row_wise_block : traits.column_wise_block;
  if (block.rows == 0) return {0, 0};
  // A scale of the whole tensor belongs to every extent, an empty one too.
  if (block.rows == kUnbounded) return {1, 1};
  return {CeilDivide(rows, block.rows), CeilDivide(cols, block.cols)};
}

int64_t ScaleBytes(const Encoding& encoding, Plane plane, int64_t rows, int64_t cols) {
  const MatrixShape shape = ScaleShape(encoding, plane, rows, cols);
  return shape.rows * shape.cols * BytesOf(TraitsOf(encoding.format).scale_type);
}

MatrixShape ScaleBlock(const Encoding& encoding, Plane plane) {
  const FormatTraits& traits = TraitsOf(encoding.format);
  const MatrixShape block = plane == Plane::kRowWise ? traits.row_wise_block : traits.column_wise_block;
  return block.rows == 0 ? MatrixShape{1, 1} : block;
}

int64_t ScaleOffset(const Encoding& encoding, Plane plane, int64_t row, int64_t col, int64_t cols) {
  const MatrixShape block = ScaleBlock(encoding, plane);
  const int64_t before = row / block.rows * ScaleShape(encoding, plane, 1, cols).cols + col / block.cols;
  return before * ScaleBytes(encoding, plane, 1, 1);
}

int64_t AmaxBytes(Format format) { return TraitsOf(format).amax_bytes; }

}  // namespace paramshard
