// Placer of the parameters of one unit in arena, slots and gradient slots.
#ifndef PARAMSHARD_COMMON_MODEL_UNIT_PLACER_H_
#define PARAMSHARD_COMMON_MODEL_UNIT_PLACER_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "common/model/layout.h"
#include "common/model/row_range.h"
#include "common/model/small_extent.h"

namespace paramshard {

// Places one unit after the other; between units it keeps only scratch memory.
class UnitPlacer {
 public:
  explicit UnitPlacer(int ranks) : ranks_(ranks), small_(ranks) {}

  // Returns a unit's layout without its place among other units: arena_offset and resident_slot.
  // `owners` has the rank of each small parameter of the unit, -1 for large ones; `owned` the rows of each large
  // parameter that is not cut.
  UnitLayout Place(const UnitSpec& spec, absl::Span<const int> owners, absl::Span<const std::vector<OwnedRows>> owned);

 private:
  void PlaceLarge(const ParameterSpec& spec, ParameterLayout& parameter);
  void PlaceOwned(const ParameterSpec& spec, absl::Span<const OwnedRows> owned, ParameterLayout& parameter);
  // Appends a region to the slot of each phase that brings the plane.
  void PlaceRegions(const ParameterSpec& spec, Plane plane, int64_t bytes, PlaneLayout& layout);
  // Adds the scales of `rows` rows, and the amax behind them, to the small extent of every rank or of the owner.
  void PlaceScales(const ParameterSpec& spec, Plane plane, int64_t rows, std::optional<int> owner, PlaneLayout& layout);
  void PlaceLargePlane(const ParameterSpec& spec, Plane plane, int64_t extent_rows, PlaneLayout& layout);
  void PlaceSmall(const ParameterSpec& spec, ParameterLayout& parameter);
  void PlaceGradients(const UnitSpec& spec);
  void PlaceSmallExtent(const UnitSpec& spec);

  int ranks_;
  SmallExtentPacker small_;
  UnitLayout unit_;  // the unit that is being placed
};

}  // namespace paramshard

#endif  // PARAMSHARD_COMMON_MODEL_UNIT_PLACER_H_
