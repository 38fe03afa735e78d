// The moments that optimizers keep of every element, and containers with one value per moment.

#ifndef PARAMSHARD_KERNELS_OPTIM_MOMENT_KIND_H_
#define PARAMSHARD_KERNELS_OPTIM_MOMENT_KIND_H_

#include <cstdint>

#include "kernels/base/host_device.h"

namespace paramshard {

// A moment. Its number is its index in every PerMoment.
enum class MomentKind : uint8_t { kFirst = 0, kSecond = 1 };

struct MomentTraits {
  MomentKind kind;
  // Name of its fields in specs and messages, of its kinds of tensors in imports and exports, and of its memory in a
  // keeper: AdamW's, whatever the optimizer calls the moment (MomentName() in optimizers.h).
  const char* name;
  // Never negative, a mean of squares: types with scales hold its square roots (moment.h).
  bool is_square;
};

// All moments, by number. An optimizer keeps the first few (optimizers.h).
inline constexpr MomentTraits kMomentKinds[] = {
    {MomentKind::kFirst, "exp_avg", false},
    {MomentKind::kSecond, "exp_avg_sq", true},
};
inline constexpr int kMomentCount = sizeof(kMomentKinds) / sizeof(kMomentKinds[0]);

constexpr bool AreNumberedByPlace() {
  for (int i = 0; i < kMomentCount; ++i) {
    if (static_cast<int>(kMomentKinds[i].kind) != i) return false;
  }
  return true;
}
static_assert(AreNumberedByPlace(), "kMomentKinds: want a row for each kind, in the order of their numbers");

constexpr const MomentTraits& TraitsOf(MomentKind kind) { return kMomentKinds[static_cast<int>(kind)]; }

// An array with one value for each moment.
template <typename T>
struct PerMoment {
  T values[kMomentCount];

  PARAMSHARD_HOST_DEVICE constexpr T& operator[](MomentKind kind) { return values[static_cast<int>(kind)]; }
  PARAMSHARD_HOST_DEVICE constexpr const T& operator[](MomentKind kind) const { return values[static_cast<int>(kind)]; }

  constexpr T* begin() { return values; }
  constexpr T* end() { return values + kMomentCount; }
  constexpr const T* begin() const { return values; }
  constexpr const T* end() const { return values + kMomentCount; }
};

}  // namespace paramshard

#endif  // PARAMSHARD_KERNELS_OPTIM_MOMENT_KIND_H_
