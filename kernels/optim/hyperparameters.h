// Hyperparameters of a parameter group, as a commit sets them.

#ifndef PARAMSHARD_KERNELS_OPTIM_HYPERPARAMETERS_H_
#define PARAMSHARD_KERNELS_OPTIM_HYPERPARAMETERS_H_

#include <cstdint>

namespace paramshard {

// All finite. Each optimizer reads some of them: docs/reference/numerics.md.
struct Hyperparameters {
  float learning_rate = 1e-3f;  // >= 0
  float beta1 = 0.9f;           // 0 <= beta1 < 1
  float beta2 = 0.999f;         // 0 <= beta2 < 1
  float epsilon = 1e-8f;        // >= 0
  float weight_decay = 0.0f;    // >= 0
  float momentum = 0.0f;        // >= 0
  float dampening = 0.0f;       // >= 0; of the gradient that enters the momentum
};

enum class HyperparameterRange : uint8_t { kNotNegative, kFraction };

using HyperparameterMember = float Hyperparameters::*;

struct HyperparameterTraits {
  HyperparameterMember member;
  const char* name;
  HyperparameterRange range;
};

// All hyperparameters, for code that treats them alike.
inline constexpr HyperparameterTraits kHyperparameters[] = {
    {&Hyperparameters::learning_rate, "learning_rate", HyperparameterRange::kNotNegative},
    {&Hyperparameters::beta1, "beta1", HyperparameterRange::kFraction},
    {&Hyperparameters::beta2, "beta2", HyperparameterRange::kFraction},
    {&Hyperparameters::epsilon, "epsilon", HyperparameterRange::kNotNegative},
    {&Hyperparameters::weight_decay, "weight_decay", HyperparameterRange::kNotNegative},
    {&Hyperparameters::momentum, "momentum", HyperparameterRange::kNotNegative},
    {&Hyperparameters::dampening, "dampening", HyperparameterRange::kNotNegative},
};
inline constexpr int kHyperparameterCount = sizeof(kHyperparameters) / sizeof(kHyperparameters[0]);
static_assert(kHyperparameterCount == sizeof(Hyperparameters) / sizeof(float),
              "a hyper-parameter that is not in the list");

}  // namespace paramshard

#endif  // PARAMSHARD_KERNELS_OPTIM_HYPERPARAMETERS_H_
