#include "common/model/layout_fingerprint.h"

// Inlined in this file alone, so the library has no link dependency on xxHash.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <vector>

#include "common/model/model_spec_difference.h"

namespace paramshard {
namespace {

// Serializes numbers in a fixed order, with the length before each list.
class Numbers {
 public:
  void Add(int64_t number) { numbers_.push_back(number); }
  void Add(const std::vector<int64_t>& list) {
    Add(static_cast<int64_t>(list.size()));
    numbers_.insert(numbers_.end(), list.begin(), list.end());
  }
  void Add(const PlaneLayout& plane) {
    for (const int64_t number :
         {plane.data_stride, plane.arena_offset, plane.small_data_offset, plane.scale_offset, plane.amax_offset}) {
      Add(number);
    }
    for (const Phase phase : kPhases) Add(plane.slot_offset[phase].value_or(-1));
  }
  void Add(const ParameterLayout& parameter) {
    Add(parameter.rows_per_rank);
    Add(parameter.owner.value_or(-1));
    Add(parameter.row_wise);
    Add(parameter.column_wise.value_or(PlaneLayout()));
    Add(parameter.gradient_offset);
    Add(parameter.landing_offset);
  }
  void Add(const OwnedExtent& extent) {
    for (const int64_t number : {int64_t{extent.rank}, extent.rows.begin, extent.rows.end, extent.row_wise_offset,
                                 extent.column_wise_offset, extent.landing_offset}) {
      Add(number);
    }
  }
  void Add(const UnitLayout& unit) {
    Add(static_cast<int64_t>(unit.parameters.size()));
    for (const ParameterLayout& parameter : unit.parameters) Add(parameter);
    for (const int64_t number : {unit.arena_offset, unit.small_extent_offset, unit.arena_bytes, unit.gradient_bytes}) {
      Add(number);
    }
    for (const Phase phase : kPhases) {
      const SmallRun& small = unit.small[phase];
      for (const int64_t number : {small.begin, small.bytes, small.slot_offset, unit.slot_bytes[phase]}) Add(number);
    }
    Add(unit.resident_slot.value_or(-1));
  }

  uint64_t Hash() const { return XXH3_64bits(numbers_.data(), numbers_.size() * sizeof(int64_t)); }

 private:
  std::vector<int64_t> numbers_;
};

}  // namespace

uint64_t LayoutFingerprint(const Layout& layout) {
  Numbers numbers;
  numbers.Add(static_cast<int64_t>(ModelSpecFingerprint(layout.spec())));
  numbers.Add(layout.ranks());
  numbers.Add(static_cast<int64_t>(layout.units().size()));
  for (const UnitLayout& unit : layout.units()) numbers.Add(unit);
  numbers.Add(layout.arena_bytes(0));
  numbers.Add(layout.slot_offsets());
  numbers.Add(layout.slot_bytes());
  numbers.Add(layout.gradient_slot_offsets());
  numbers.Add(layout.gradient_slot_bytes());
  numbers.Add(layout.slots_bytes());
  numbers.Add(layout.landing_bytes(0));
  // Nothing in a model without owned parameters, whose fingerprint stays.
  for (const UnitLayout& unit : layout.units()) {
    for (const ParameterLayout& parameter : unit.parameters) {
      for (const OwnedExtent& extent : parameter.owned) numbers.Add(extent);
    }
  }
  return numbers.Hash();
}

}  // namespace paramshard
