// Products of BF16 matrices with sums in float32, on one GPU.
//
// The same operands give the same bytes whenever the same engine computes them on one kind of GPU: no sum is split, and
// a product's bytes do not depend on the products beside it.
//
// Internal to kernels/.

#ifndef PARAMSHARD_KERNELS_PRODUCTS_MATRIX_PRODUCTS_H_
#define PARAMSHARD_KERNELS_PRODUCTS_MATRIX_PRODUCTS_H_

#include <cuda_runtime.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/products/operand_alignment.h"

namespace paramshard::gpu {

// Rows of BF16 elements in device memory, `stride` elements from row to row. Data and rows begin at multiples of
// kOperandAlignment bytes.
struct Operand {
  uint16_t* data = nullptr;
  int64_t stride = 0;
  bool is_transposed = false;  // as a factor; stored as its transpose
};

// result = factor * left * right + addend_factor * addend: rows x columns elements, each with a sum of `terms` products.
// `addend` is read if its factor is not 0, and has nothing in common with `result`. Rows of the result may be written up
// to a multiple of kOperandAlignment bytes: boxes of tensors are cut there.
struct MatrixProduct {
  Operand left = {};
  Operand right = {};
  Operand addend = {};
  Operand result = {};
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t terms = 0;
  float factor = 1;
  float addend_factor = 0;
  // The result is its own transpose: an engine may compute one half, and copy it to the other.
  bool is_symmetric = false;
};

// Not thread-safe; the work of one stream at a time.
class MatrixProducts {
 public:
  virtual ~MatrixProducts() = default;

  // Enqueues products, none of which reads a result of another one.
  virtual absl::Status Enqueue(absl::Span<const MatrixProduct> products, cudaStream_t stream) = 0;

  // Returns the bytes of device memory that the engine holds.
  virtual int64_t workspace_bytes() const { return 0; }

  // Returns what the bytes depend on besides the kind of GPU, for logs.
  virtual std::string description() const = 0;
};

}  // namespace paramshard::gpu

#endif  // PARAMSHARD_KERNELS_PRODUCTS_MATRIX_PRODUCTS_H_
