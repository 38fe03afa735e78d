// Products by cuBLASLt, one after the other.
//
// Internal to kernels/.

#ifndef PARAMSHARD_KERNELS_PRODUCTS_CUBLAS_LT_PRODUCTS_H_
#define PARAMSHARD_KERNELS_PRODUCTS_CUBLAS_LT_PRODUCTS_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/gpu/cublas_lt.h"
#include "kernels/products/matrix_products.h"

namespace paramshard::gpu {

// Recommended for GPUs of compute capability 9.0.
inline constexpr int64_t kCublasLtWorkspaceBytes = int64_t{32} << 20;

// Takes kCublasLtWorkspaceBytes for the library. The algorithm of a shape is the first that the library proposes among
// those that do not split sums: the bytes depend on the library's version. Computes all of symmetric products.
absl::StatusOr<std::unique_ptr<MatrixProducts>> MakeCublasLtProducts(const CublasLt& library, int device);

}  // namespace paramshard::gpu

#endif  // PARAMSHARD_KERNELS_PRODUCTS_CUBLAS_LT_PRODUCTS_H_
