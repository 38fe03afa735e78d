// A linear layer without a bias: output = input * weight^T, with its gradients. All matrices are row-major and
// contiguous; outputs do not overlap inputs.
#ifndef PARAMSHARD_CLIENT_DEMO_LINEAR_H_
#define PARAMSHARD_CLIENT_DEMO_LINEAR_H_

#include <cstdint>

namespace paramshard::demo {

struct LinearShape {
  int64_t samples = 0;  // may be 0
  int64_t inputs = 0;
  int64_t outputs = 0;
};

// `input` is [samples, inputs], `weight` [outputs, inputs], `output` [samples, outputs].
void LinearForward(const LinearShape& shape, const float* input, const float* weight, float* output);

// Computes the gradient of the inputs from the gradient of the outputs, [samples, outputs].
void LinearInputGradient(const LinearShape& shape, const float* output_gradient, const float* weight,
                         float* input_gradient);

// Computes the gradient of the weight.
void LinearWeightGradient(const LinearShape& shape, const float* output_gradient, const float* input,
                          float* weight_gradient);

}  // namespace paramshard::demo

#endif  // PARAMSHARD_CLIENT_DEMO_LINEAR_H_
