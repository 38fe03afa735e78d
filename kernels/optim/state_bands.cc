#include "kernels/optim/state_bands.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/check.h"

namespace paramshard {
namespace {

// Returns the offset of a band's beginning in an array.
int64_t BeginOf(const BandStart& band, const BandedArray& array) {
  const BandedArray::Part& part = array.parts[band.extent];
  return part.offset + band.row * part.row_bytes;
}

// Returns the offset of the last extent's end.
int64_t EndOf(absl::Span<const MatrixShape> extents, const BandedArray& array) {
  if (extents.empty()) return 0;
  return array.parts.back().offset + extents.back().rows * array.parts.back().row_bytes;
}

}  // namespace

std::vector<BandStart> CutIntoBands(absl::Span<const MatrixShape> extents, int64_t band_elements) {
  std::vector<BandStart> bands;
  int64_t elements = 0;  // of the band so far
  for (size_t i = 0; i < extents.size(); ++i) {
    const MatrixShape& extent = extents[i];
    if (extent.rows * extent.cols == 0) continue;
    const int64_t granule = BandRows(extent.cols);
    for (int64_t row = 0; row < extent.rows;) {
      if (bands.empty()) {
        bands.push_back({0, 0});
      } else if (elements >= band_elements) {
        bands.push_back({static_cast<int64_t>(i), row});
        elements = 0;
      }
      // All that the band still lacks, at once: an extent may have 2^40 rows.
      const int64_t lacks = std::max<int64_t>(band_elements - elements, 1);
      const int64_t granules = (lacks - 1) / (granule * extent.cols) + 1;
      const int64_t end = granules > (extent.rows - row) / granule ? extent.rows : row + granules * granule;
      elements += (end - row) * extent.cols;
      row = end;
    }
  }
  return bands;
}

int64_t BandRule::BandElements(absl::Span<const MatrixShape> extents) const {
  int64_t elements = 0;
  for (const MatrixShape& extent : extents) elements += extent.rows * extent.cols;
  return std::max(elements / most_bands, least_elements);
}

absl::Status CheckBands(absl::Span<const MatrixShape> extents, absl::Span<const BandStart> bands) {
  for (size_t i = 0; i < bands.size(); ++i) {
    const auto [extent, row] = bands[i];
    const bool exists = extent >= 0 && extent < static_cast<int64_t>(extents.size());
    const bool in_order =
        i == 0 ? extent == 0 && row == 0 : std::pair(extent, row) > std::pair(bands[i - 1].extent, bands[i - 1].row);
    const bool has_row = exists && (row == 0 || (row > 0 && row < extents[extent].rows));
    if (in_order && has_row && row % BandRows(std::max<int64_t>(extents[extent].cols, 1)) == 0) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("band ", i, ": want whole tiles behind the band before, got row ", row, " of extent ", extent));
  }
  return absl::OkStatus();
}

int64_t MoveDistance(absl::Span<const MatrixShape> extents, absl::Span<const BandStart> bands,
                     absl::Span<const BandedArray> arrays) {
  PARAMSHARD_CHECK(CheckBands(extents, bands).ok());
  if (bands.empty()) return 0;
  int64_t longest = 0;
  for (const BandedArray& array : arrays) {
    PARAMSHARD_CHECK(array.parts.size() == extents.size());
    for (size_t i = 0; i < bands.size(); ++i) {
      const size_t behind = i + kBandLanes;
      const int64_t end = behind < bands.size() ? BeginOf(bands[behind], array) : EndOf(extents, array);
      longest = std::max(longest, end - BeginOf(bands[i], array));
    }
  }
  return (longest + kMoveUnit - 1) / kMoveUnit * kMoveUnit;
}

ExtentRows RowsInBand(absl::Span<const BandStart> bands, int band, int64_t extent, int64_t rows) {
  if (bands.empty()) return {.first = 0, .count = rows};
  const BandStart begin = bands[band];
  const bool is_last = band + 1 == static_cast<int>(bands.size());
  if (extent < begin.extent || (!is_last && extent > bands[band + 1].extent)) return {};
  const int64_t first = extent == begin.extent ? begin.row : 0;
  const int64_t end = !is_last && extent == bands[band + 1].extent ? bands[band + 1].row : rows;
  return {.first = first, .count = end - first};
}

}  // namespace paramshard
