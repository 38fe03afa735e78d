#include "server/state/state_move_record.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "kernels/base/align.h"
#include "kernels/base/status_macros.h"

namespace paramshard::server {
namespace {

// Largest number of elements of all extents. With at most 8 bytes each no number computed from a record overflows.
constexpr int64_t kMostElements = int64_t{1} << 56;
constexpr int64_t kMostElementBytes = 8;

absl::Status Expect(absl::string_view what, int64_t expected, int64_t got) {
  if (got == expected) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("record of moves: ", what, ": want ", expected, ", got ", got));
}

absl::Status Refuse(absl::string_view what, absl::string_view expected, int64_t got) {
  return absl::InvalidArgumentError(absl::StrCat("record of moves: ", what, ": want ", expected, ", got ", got));
}

std::string NameOf(size_t extent, absl::string_view what) { return absl::StrCat(what, " of extent ", extent); }

absl::Status CheckConstants(const StateMoveRecord::Constants& recorded) {
  const StateMoveRecord::Constants built;
  RETURN_IF_ERROR(Expect("extent alignment", built.extent_alignment, recorded.extent_alignment));
  RETURN_IF_ERROR(Expect("move unit", built.move_unit, recorded.move_unit));
  RETURN_IF_ERROR(Expect("band lanes", built.band_lanes, recorded.band_lanes));
  RETURN_IF_ERROR(Expect("band tile rows", built.band_tile_rows, recorded.band_tile_rows));
  return Expect("band tile elements", built.band_tile_elements, recorded.band_tile_elements);
}

absl::Status CheckRule(const BandRule& rule) {
  if (rule.most_bands <= 0) return Refuse("most bands", "a number above 0", rule.most_bands);
  if (rule.least_elements <= 0) return Refuse("least elements of a band", "a number above 0", rule.least_elements);
  return absl::OkStatus();
}

// Adds the extent's elements to those before it.
absl::Status CheckExtent(const StateMoveRecord::Extent& extent, size_t index, int64_t& elements) {
  if (extent.rows <= 0) return Refuse(NameOf(index, "rows"), "a number above 0", extent.rows);
  if (extent.columns <= 0) return Refuse(NameOf(index, "columns"), "a number above 0", extent.columns);
  if (extent.columns > (kMostElements - elements) / extent.rows) {
    return Refuse(NameOf(index, "columns"), absl::StrCat("at most ", kMostElements, " elements in all"),
                  extent.columns);
  }
  elements += extent.rows * extent.columns;
  for (const int64_t row_bytes : extent.row_bytes) {
    if (row_bytes >= 0 && row_bytes <= kMostElementBytes * extent.columns) continue;
    return Refuse(NameOf(index, "bytes of a row"), absl::StrCat("0 to ", kMostElementBytes * extent.columns),
                  row_bytes);
  }
  return absl::OkStatus();
}

std::vector<MatrixShape> ShapesOf(const StateMoveRecord& record) {
  std::vector<MatrixShape> shapes;
  for (const StateMoveRecord::Extent& extent : record.extents) shapes.push_back({extent.rows, extent.columns});
  return shapes;
}

std::vector<BandStart> BandsOf(const StateMoveRecord& record) {
  std::vector<BandStart> bands;
  for (size_t i = 0; i < record.extents.size(); ++i) {
    for (const int64_t row : record.extents[i].band_rows) bands.push_back({static_cast<int64_t>(i), row});
  }
  return bands;
}

std::vector<BandedArray> ArraysOf(const StateMoveRecord& record) {
  std::vector<ShardExtent> extents;
  for (const StateMoveRecord::Extent& extent : record.extents) {
    extents.push_back({.rows = {0, extent.rows}, .row_bytes = extent.row_bytes});
  }
  std::vector<BandedArray> arrays;
  for (int array = 0; array < kStateArrays; ++array) arrays.push_back(LayOut(extents, array));
  return arrays;
}

absl::Status CheckDistance(const StateMoveRecord& record, const std::vector<BandStart>& bands) {
  if (bands.empty()) return Expect("distance of a state that stays", 0, record.distance);
  const int64_t needed = MoveDistance(ShapesOf(record), bands, ArraysOf(record));
  if (record.distance >= needed && record.distance % kMoveUnit == 0) return absl::OkStatus();
  return Refuse("distance", absl::StrCat("a multiple of ", kMoveUnit, " from ", needed, " on"), record.distance);
}

absl::Status Compare(const StateMoveRecord::Extent& placed, const StateMoveRecord::Extent& recorded, size_t index) {
  RETURN_IF_ERROR(Expect(NameOf(index, "rows"), placed.rows, recorded.rows));
  RETURN_IF_ERROR(Expect(NameOf(index, "columns"), placed.columns, recorded.columns));
  for (int array = 0; array < kStateArrays; ++array) {
    RETURN_IF_ERROR(Expect(NameOf(index, absl::StrCat("bytes of a row in array ", array)), placed.row_bytes[array],
                           recorded.row_bytes[array]));
  }
  RETURN_IF_ERROR(Expect(NameOf(index, "number of bands"), static_cast<int64_t>(placed.band_rows.size()),
                         static_cast<int64_t>(recorded.band_rows.size())));
  for (size_t band = 0; band < placed.band_rows.size(); ++band) {
    RETURN_IF_ERROR(Expect(NameOf(index, absl::StrCat("first row of band ", band)), placed.band_rows[band],
                           recorded.band_rows[band]));
  }
  return absl::OkStatus();
}

absl::Status Compare(const StateMoveRecord& placed, const StateMoveRecord& recorded) {
  RETURN_IF_ERROR(CheckConstants(recorded.constants));
  RETURN_IF_ERROR(Expect("most bands", placed.rule.most_bands, recorded.rule.most_bands));
  RETURN_IF_ERROR(Expect("least elements of a band", placed.rule.least_elements, recorded.rule.least_elements));
  RETURN_IF_ERROR(Expect("number of extents", static_cast<int64_t>(placed.extents.size()),
                         static_cast<int64_t>(recorded.extents.size())));
  for (size_t i = 0; i < placed.extents.size(); ++i) {
    RETURN_IF_ERROR(Compare(placed.extents[i], recorded.extents[i], i));
  }
  return Expect("distance", placed.distance, recorded.distance);
}

}  // namespace

StateMoveRecord RecordMoves(const ShardPlacement& placement, int64_t position) {
  StateMoveRecord record;
  record.rule = placement.rule;
  for (int i = 0; i < placement.trainable_count; ++i) {
    const ShardExtent& extent = placement.extents[i];
    record.extents.push_back({.rows = extent.rows.size(), .columns = extent.columns(), .row_bytes = extent.row_bytes});
  }
  for (const BandStart& band : placement.moves.bands) record.extents[band.extent].band_rows.push_back(band.row);
  record.distance = placement.moves.distance;
  record.position = position;
  return record;
}

absl::StatusOr<StateMoves> RebuildMoves(const StateMoveRecord& record) {
  RETURN_IF_ERROR(CheckConstants(record.constants));
  RETURN_IF_ERROR(CheckRule(record.rule));
  int64_t elements = 0;
  for (size_t i = 0; i < record.extents.size(); ++i) RETURN_IF_ERROR(CheckExtent(record.extents[i], i, elements));
  StateMoves moves{.bands = BandsOf(record), .distance = record.distance, .position = record.position};
  RETURN_IF_ERROR(CheckBands(ShapesOf(record), moves.bands));
  RETURN_IF_ERROR(CheckDistance(record, moves.bands));
  if (moves.position == 0 || moves.position == moves.distance) return moves;
  return Refuse("position", absl::StrCat("0 or ", moves.distance), moves.position);
}

absl::StatusOr<StateMoves> RebuildMoves(const StateMoveRecord& record, const ShardPlacement& placement) {
  RETURN_IF_ERROR(Compare(RecordMoves(placement, 0), record));
  return RebuildMoves(record);
}

}  // namespace paramshard::server
