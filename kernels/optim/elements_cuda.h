// How the kernels of the fused step update elements: by an optimizer's policy, several elements at a time.
//
// Internal to kernels/, for CUDA sources.

#ifndef PARAMSHARD_KERNELS_OPTIM_ELEMENTS_CUDA_H_
#define PARAMSHARD_KERNELS_OPTIM_ELEMENTS_CUDA_H_

#include "kernels/base/float_bits.h"
#include "kernels/optim/adam_math_cuda.h"
#include "kernels/optim/lion_math.h"
#include "kernels/optim/muon_math.h"
#include "kernels/optim/sgd_math.h"

namespace paramshard::gpu {

// Updates kCount elements side by side by the policy that the host has, every NaN as 0x7fc00000. `moments` has a row for
// each moment.
template <typename Policy, int kRows, int kCount>
__device__ __forceinline__ void UpdateEach(const OptimizerStep& step, const float (&gradients)[kCount],
                                           float (&masters)[kCount], float (&moments)[kRows][kCount]) {
  static_assert(Policy::kMomentCount <= kRows);
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    float of_element[kRows];
#pragma unroll
    for (int row = 0; row < Policy::kMomentCount; ++row) of_element[row] = moments[row][i];
    Policy::Update(step, gradients[i], masters[i], of_element);
    masters[i] = CanonicalNan(masters[i]);
#pragma unroll
    for (int row = 0; row < Policy::kMomentCount; ++row) moments[row][i] = CanonicalNan(of_element[row]);
  }
}

// The optimizers that keep kCount moments, as StepRows (step_rows_cuda.h) calls them. The step says which it is: the
// same for all threads of a block.
template <int kMoments>
struct ElementsWith;

template <>
struct ElementsWith<0> {
  static constexpr int kMomentCount = 0;

  template <int kRows, int kCount>
  static __device__ __forceinline__ void Update(const StepConstants& constants, const float (&gradients)[kCount],
                                                float (&masters)[kCount], float (&moments)[kRows][kCount]) {
    if (constants.step.optimizer == Optimizer::kSgd) {
      UpdateEach<Sgd>(constants.step, gradients, masters, moments);
    } else {
      UpdateEach<MuonMaster>(constants.step, gradients, masters, moments);
    }
  }
};

template <>
struct ElementsWith<1> {
  static constexpr int kMomentCount = 1;

  template <int kRows, int kCount>
  static __device__ __forceinline__ void Update(const StepConstants& constants, const float (&gradients)[kCount],
                                                float (&masters)[kCount], float (&moments)[kRows][kCount]) {
    if (constants.step.optimizer == Optimizer::kLion) {
      UpdateEach<Lion>(constants.step, gradients, masters, moments);
    } else {
      UpdateEach<SgdMomentum>(constants.step, gradients, masters, moments);
    }
  }
};

template <>
struct ElementsWith<2> : AdamElements {};

}  // namespace paramshard::gpu

#endif  // PARAMSHARD_KERNELS_OPTIM_ELEMENTS_CUDA_H_
