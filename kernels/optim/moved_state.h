// The state of extents at another position: all of its arrays the same number of bytes further on (state_bands.h).

#ifndef PARAMSHARD_KERNELS_OPTIM_MOVED_STATE_H_
#define PARAMSHARD_KERNELS_OPTIM_MOVED_STATE_H_

#include <array>
#include <cstdint>
#include <vector>

#include "kernels/optim/fused_step.h"

namespace paramshard {

// Null stays null.
template <typename T>
T* MovedBy(T* array, int64_t bytes) {
  if (array == nullptr) return nullptr;
  return reinterpret_cast<T*>(reinterpret_cast<uint8_t*>(array) + bytes);
}
inline void* MovedBy(void* array, int64_t bytes) { return MovedBy(static_cast<uint8_t*>(array), bytes); }

inline OptimizerState MovedBy(OptimizerState state, int64_t bytes) {
  state.master = MovedBy(state.master, bytes);
  state.remainder = MovedBy(state.remainder, bytes);
  state.weights = MovedBy(state.weights, bytes);
  for (MutableMoment& moment : state.moments) {
    moment.data = MovedBy(moment.data, bytes);
    moment.scales = MovedBy(moment.scales, bytes);
  }
  return state;
}

// The parts of a band that take no step and are copied to the new position: as few ranges as possible, because a model
// may have thousands of parameters without a gradient.
//
//   IdleState idle;
//   idle.Add(state, columns, first_row, rows);  // for extents that take no step, in the order of the band
//   idle.Cut();                                 // for extents that take a step
//   for (const IdleState::Range& range : idle.ranges()) Copy(range.begin + distance, range.begin, range.size_bytes);
class IdleState {
 public:
  IdleState() { Cut(); }

  struct Range {
    uint8_t* begin;
    int64_t size_bytes;
  };

  // Adds rows of an extent. In every array they join the rows added before if less than kMoveUnit bytes lie between
  // them. These bytes are padding, and are copied too.
  void Add(const OptimizerState& state, int64_t columns, int64_t first_row, int64_t rows);
  // Keeps later rows from joining earlier ones.
  void Cut() { open_.fill(kNone); }

  const std::vector<Range>& ranges() const { return ranges_; }

 private:
  // Masters, remainders, weights; elements and scales of moments.
  static constexpr int kArrays = 3 + 2 * kMomentCount;
  static constexpr int64_t kNone = -1;

  void AddTo(int array, void* extent, int64_t row_bytes, int64_t first_row, int64_t rows);

  std::vector<Range> ranges_;
  // The range of each array that may still grow; kNone: none.
  std::array<int64_t, kArrays> open_;
};

}  // namespace paramshard

#endif  // PARAMSHARD_KERNELS_OPTIM_MOVED_STATE_H_
