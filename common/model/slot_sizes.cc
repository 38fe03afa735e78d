#include "common/model/slot_sizes.h"

#include <algorithm>

namespace paramshard {

std::vector<int64_t> SlotSizes(const std::vector<int64_t>& unit_bytes, int slots, int large_slots) {
  if (unit_bytes.empty()) return std::vector<int64_t>(slots, 0);
  std::vector<int64_t> sorted = unit_bytes;
  std::sort(sorted.begin(), sorted.end());
  const int64_t median = sorted[(sorted.size() - 1) / 2];
  const int64_t largest_ordinary = *(std::upper_bound(sorted.begin(), sorted.end(), 2 * median) - 1);
  std::vector<int64_t> sizes(slots, largest_ordinary);
  std::fill(sizes.end() - large_slots, sizes.end(), sorted.back());
  return sizes;
}

}  // namespace paramshard
