#include "kernels/formats/scale_layout.h"

#include <algorithm>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/formats/format.h"

namespace paramshard {
namespace {

bool HasByteBlocks(Format format) {
  switch (TraitsOf(format).scale_type) {
    case ScaleType::kE8M0:
    case ScaleType::kE4M3:
      return true;
    case ScaleType::kNone:
    case ScaleType::kFloat32:
      return false;
  }
  return false;
}

absl::string_view PlaneName(Plane plane) { return plane == Plane::kRowWise ? "row-wise" : "column-wise"; }

absl::Status CheckLayout(const Encoding& encoding, Plane plane, Plane operand, ScaleLayout layout) {
  if (layout < ScaleLayout::kCompact || layout > ScaleLayout::kSwizzled128x4) {
    return absl::InvalidArgumentError(
        absl::StrCat("scale layout: want compact, padded or swizzled, got number ", static_cast<int>(layout)));
  }
  const absl::string_view format = FormatName(encoding.format);
  if (layout != ScaleLayout::kCompact && !HasByteBlocks(encoding.format)) {
    return absl::InvalidArgumentError(
        absl::StrCat("scale layout: want a format with block scales of one byte, got ", format));
  }
  // MXFP8 has a plane for each operand; in other formats blocks are square.
  if (operand != plane && (plane != Plane::kRowWise || HasColumnPlane(encoding.format))) {
    return absl::InvalidArgumentError(absl::StrCat("scale layout: want the ", PlaneName(plane),
                                                   " operand of a plane of format ", format, ", got the ",
                                                   PlaneName(operand), " operand"));
  }
  return absl::OkStatus();
}

absl::StatusOr<ScaleArrangement> CompactArrangement(const Encoding& encoding, Plane plane, int64_t rows, int64_t cols) {
  const int64_t bytes = ScaleBytes(encoding, plane, rows, cols);
  if (bytes == 0 && rows > 0 && cols > 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("scale layout: want a format with scales, got ", FormatName(encoding.format)));
  }
  return ScaleArrangement{.layout = ScaleLayout::kCompact, .rows = 1, .cols = bytes, .col_stride = 1};
}

}  // namespace

absl::StatusOr<ScaleArrangement> FindScaleArrangement(const Encoding& encoding, Plane plane, Plane operand,
                                                      int64_t rows, int64_t cols, ScaleLayout layout) {
  RETURN_IF_ERROR(CheckLayout(encoding, plane, operand, layout));
  if (layout == ScaleLayout::kCompact) return CompactArrangement(encoding, plane, rows, cols);
  const MatrixShape compact = ScaleShape(encoding, plane, rows, cols);
  const int64_t row_block = HasColumnPlane(encoding.format) ? 1 : GranuleRows(encoding.format);
  ScaleArrangement arrangement{.layout = layout, .row_block = row_block};
  if (operand == Plane::kRowWise) {
    arrangement.rows = rows;
    arrangement.cols = compact.cols;
    arrangement.row_stride = compact.cols;
    arrangement.col_stride = 1;
  } else {
    arrangement.rows = cols;
    arrangement.cols = compact.rows;
    arrangement.row_stride = 1;
    arrangement.col_stride = compact.cols;
  }
  return arrangement;
}

void ArrangeScales(const ScaleArrangement& arrangement, const uint8_t* compact, uint8_t* out) {
  if (arrangement.bytes() == 0) return;
  if (arrangement.layout == ScaleLayout::kCompact) {
    std::memcpy(out, compact, arrangement.bytes());
    return;
  }
  std::memset(out, 0, arrangement.bytes());
  for (int64_t row = 0; row < arrangement.rows; ++row) {
    for (int64_t col = 0; col < arrangement.cols; ++col) {
      out[arrangement.Target(row, col)] = compact[arrangement.Source(row, col)];
    }
  }
}

}  // namespace paramshard
