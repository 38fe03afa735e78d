#include "kernels/optim/moved_state.h"

#include "kernels/optim/state_bands.h"

namespace paramshard {

void IdleState::Add(const OptimizerState& state, int64_t columns, int64_t first_row, int64_t rows) {
  int array = 0;
  const auto add = [&](void* extent, int64_t row_bytes) { AddTo(array++, extent, row_bytes, first_row, rows); };
  add(state.master, columns * static_cast<int64_t>(sizeof(float)));
  add(state.remainder, columns * static_cast<int64_t>(sizeof(int16_t)));
  add(state.weights, columns * static_cast<int64_t>(sizeof(uint16_t)));
  for (const MutableMoment& moment : state.moments) {
    add(moment.data, columns * MomentBytes(moment.type));
    add(moment.scales, MomentScaleCount(moment.type, 1, columns) * static_cast<int64_t>(sizeof(float)));
  }
}

void IdleState::AddTo(int array, void* extent, int64_t row_bytes, int64_t first_row, int64_t rows) {
  if (extent == nullptr || rows * row_bytes == 0) return;
  uint8_t* const begin = static_cast<uint8_t*>(extent) + first_row * row_bytes;
  const int64_t size_bytes = rows * row_bytes;
  int64_t& open = open_[array];
  if (open != kNone) {
    Range& range = ranges_[open];
    // Subtracts numbers, not pointers: the ranges may belong to different allocations.
    const auto gap = static_cast<int64_t>(reinterpret_cast<uintptr_t>(begin) -
                                          reinterpret_cast<uintptr_t>(range.begin + range.size_bytes));
    if (gap >= 0 && gap < kMoveUnit) {
      range.size_bytes += gap + size_bytes;
      return;
    }
  }
  open = static_cast<int64_t>(ranges_.size());
  ranges_.push_back({begin, size_bytes});
}

}  // namespace paramshard
