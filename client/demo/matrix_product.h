// Products of float32 matrices, in one fixed order of operations: the same bits in every run.
#ifndef PARAMSHARD_CLIENT_DEMO_MATRIX_PRODUCT_H_
#define PARAMSHARD_CLIENT_DEMO_MATRIX_PRODUCT_H_

#include <cstdint>

namespace paramshard::demo {

// A view of a matrix whose element (i, j) is data[i * row_stride + j * column_stride].
struct StridedMatrix {
  const float* data = nullptr;
  int64_t row_stride = 0;
  int64_t column_stride = 0;
};

// product = a * b, with a of rows x inner, b of inner x columns and product of rows x columns, both
// row-major and contiguous. Each element is summed in the order of the inner index. product
// overlaps neither.
void Multiply(int64_t rows, int64_t columns, int64_t inner, StridedMatrix a, const float* b, float* product);

// transposed[j][i] = matrix[i][j], for a row-major matrix of rows x columns.
void Transpose(int64_t rows, int64_t columns, const float* matrix, float* transposed);

}  // namespace paramshard::demo

#endif  // PARAMSHARD_CLIENT_DEMO_MATRIX_PRODUCT_H_
