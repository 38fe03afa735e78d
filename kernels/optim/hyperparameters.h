// What a commit says about how a group of parameters steps.

#ifndef PARAMSHARD_KERNELS_OPTIM_HYPERPARAMETERS_H_
#define PARAMSHARD_KERNELS_OPTIM_HYPERPARAMETERS_H_

#include <array>

namespace paramshard {

// All finite.
struct Hyperparameters {
  float learning_rate = 1e-3f;  // >= 0
  float beta1 = 0.9f;           // 0 <= beta1 < 1
  float beta2 = 0.999f;         // 0 <= beta2 < 1
  float epsilon = 1e-8f;        // >= 0
  float weight_decay = 0.0f;    // >= 0
};

// All of them, for what treats them alike.
inline constexpr std::array<float Hyperparameters::*, 5> kHyperparameters = {
    &Hyperparameters::learning_rate, &Hyperparameters::beta1, &Hyperparameters::beta2, &Hyperparameters::epsilon,
    &Hyperparameters::weight_decay};
static_assert(kHyperparameters.size() == sizeof(Hyperparameters) / sizeof(float),
              "a hyper-parameter that is not in the list");

}  // namespace paramshard

#endif  // PARAMSHARD_KERNELS_OPTIM_HYPERPARAMETERS_H_
