// Products on GPUs of compute capability 9.0, many in one launch.
//
// Internal to kernels/.

#ifndef PARAMSHARD_KERNELS_PRODUCTS_HOPPER_PRODUCTS_H_
#define PARAMSHARD_KERNELS_PRODUCTS_HOPPER_PRODUCTS_H_

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/products/matrix_products.h"

namespace paramshard::gpu {

// Returns true if the GPU has compute capability 9.0.
absl::StatusOr<bool> IsHopper(int device);

// Computes of symmetric products the tiles on and below the diagonal. UNIMPLEMENTED on other GPUs; FAILED_PRECONDITION if
// the driver is too old.
absl::StatusOr<std::unique_ptr<MatrixProducts>> MakeHopperProducts(int device);

}  // namespace paramshard::gpu

#endif  // PARAMSHARD_KERNELS_PRODUCTS_HOPPER_PRODUCTS_H_
