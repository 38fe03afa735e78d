#include "client/demo/linear.h"

#include <vector>

#include "client/demo/matrix_product.h"

namespace paramshard::demo {

void LinearForward(const LinearShape& shape, const float* input, const float* weight, float* output) {
  // Transposed, the product's inner loop runs over outputs, which lie side by side.
  std::vector<float> transposed(shape.inputs * shape.outputs);
  Transpose(shape.outputs, shape.inputs, weight, transposed.data());
  Multiply(shape.samples, shape.outputs, shape.inputs, {input, shape.inputs, 1}, transposed.data(), output);
}

void LinearInputGradient(const LinearShape& shape, const float* output_gradient, const float* weight,
                         float* input_gradient) {
  Multiply(shape.samples, shape.inputs, shape.outputs, {output_gradient, shape.outputs, 1}, weight, input_gradient);
}

void LinearWeightGradient(const LinearShape& shape, const float* output_gradient, const float* input,
                          float* weight_gradient) {
  Multiply(shape.outputs, shape.inputs, shape.samples, {output_gradient, 1, shape.outputs}, input, weight_gradient);
}

}  // namespace paramshard::demo
