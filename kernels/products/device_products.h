// The engine of products that suits a GPU.
//
// Internal to kernels/ and devices.

#ifndef PARAMSHARD_KERNELS_PRODUCTS_DEVICE_PRODUCTS_H_
#define PARAMSHARD_KERNELS_PRODUCTS_DEVICE_PRODUCTS_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/products/matrix_products.h"

namespace paramshard::gpu {

// HopperProducts on GPUs of compute capability 9.0, cuBLASLt on others. FAILED_PRECONDITION without cuBLASLt there;
// RESOURCE_EXHAUSTED.
absl::StatusOr<std::unique_ptr<MatrixProducts>> MakeMatrixProducts(int device);

// Returns its MatrixProducts::workspace_bytes(), before it is made.
int64_t MatrixProductsBytes(int device);

}  // namespace paramshard::gpu

#endif  // PARAMSHARD_KERNELS_PRODUCTS_DEVICE_PRODUCTS_H_
