// Sizes of the slots that units share in turn.
#ifndef PARAMSHARD_COMMON_MODEL_SLOT_SIZES_H_
#define PARAMSHARD_COMMON_MODEL_SLOT_SIZES_H_

#include <cstdint>
#include <vector>

namespace paramshard {

// Returns the sizes of slots in two size classes. Units that need more than twice the median (the lower
// median of an even number) are large: they share the last `large_slots` slots, which hold the largest
// unit; the other slots hold the largest unit that is not large. All slots are equal if no unit is large
// or all slots are for large ones. So every unit fits at least one slot, and every unit that is not
// large fits all. Returns zeros without units. Requires 1 <= large_slots <= slots.
std::vector<int64_t> SlotSizes(const std::vector<int64_t>& unit_bytes, int slots, int large_slots = 1);

}  // namespace paramshard

#endif  // PARAMSHARD_COMMON_MODEL_SLOT_SIZES_H_
