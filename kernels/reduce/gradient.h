// Storage types of gradients: of the gradients that trainers push, and of their sums (accumulators).

#ifndef PARAMSHARD_KERNELS_REDUCE_GRADIENT_H_
#define PARAMSHARD_KERNELS_REDUCE_GRADIENT_H_

#include <cstdint>

namespace paramshard {

enum class GradientType : uint8_t { kFP32 = 1, kBF16 = 2 };

// Size in bytes of one gradient.
constexpr int64_t GradientBytes(GradientType type) { return type == GradientType::kFP32 ? 4 : 2; }

// Gradients of either type, aligned for their elements. Views: the caller owns the memory. An array of floats is one.
struct ConstGradient {
  constexpr ConstGradient() = default;
  constexpr ConstGradient(const float* values) : data(values) {}  // NOLINT(google-explicit-constructor)
  constexpr ConstGradient(const void* values, GradientType values_type) : data(values), type(values_type) {}

  const void* data = nullptr;
  GradientType type = GradientType::kFP32;
};

struct MutableGradient {
  constexpr MutableGradient() = default;
  constexpr MutableGradient(float* values) : data(values) {}  // NOLINT(google-explicit-constructor)
  constexpr MutableGradient(void* values, GradientType values_type) : data(values), type(values_type) {}
  constexpr operator ConstGradient() const { return {data, type}; }  // NOLINT(google-explicit-constructor)

  void* data = nullptr;
  GradientType type = GradientType::kFP32;
};

// The part of gradients from element number `index` on.
constexpr MutableGradient GradientAt(MutableGradient gradient, int64_t index) {
  return {static_cast<uint8_t*>(gradient.data) + index * GradientBytes(gradient.type), gradient.type};
}

}  // namespace paramshard

#endif  // PARAMSHARD_KERNELS_REDUCE_GRADIENT_H_
