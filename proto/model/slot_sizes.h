// Sizes of the slots that units share in turn.
#ifndef PARAMSHARD_PROTO_MODEL_SLOT_SIZES_H_
#define PARAMSHARD_PROTO_MODEL_SLOT_SIZES_H_

#include <cstdint>
#include <vector>

namespace paramshard {

// Slots in two size classes. Units that need more than twice the median (the lower one of an even
// number) are large: they share the last `large_slots` slots, which hold the largest of them; the other
// slots hold the largest other unit. All slots are equal when no unit is large or all slots are for large ones,
// so that every unit always fits at least one slot, and every unit that is not large fits all.
// Zeros without units. Requires 1 <= large_slots <= slots.
std::vector<int64_t> SlotSizes(const std::vector<int64_t>& unit_bytes, int slots, int large_slots = 1);

}  // namespace paramshard

#endif  // PARAMSHARD_PROTO_MODEL_SLOT_SIZES_H_
