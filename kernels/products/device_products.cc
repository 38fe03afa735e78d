#include "kernels/products/device_products.h"

#include "kernels/base/status_macros.h"
#include "kernels/gpu/cublas_lt.h"
#include "kernels/products/cublas_lt_products.h"
#include "kernels/products/hopper_products.h"

namespace paramshard::gpu {

absl::StatusOr<std::unique_ptr<MatrixProducts>> MakeMatrixProducts(int device) {
  absl::StatusOr<std::unique_ptr<MatrixProducts>> products = MakeHopperProducts(device);
  if (!absl::IsUnimplemented(products.status())) return products;
  ASSIGN_OR_RETURN(const CublasLt* const library, CublasLt::Load(""));
  return MakeCublasLtProducts(*library, device);
}

int64_t MatrixProductsBytes(int device) { return IsHopper(device).value_or(false) ? 0 : kCublasLtWorkspaceBytes; }

}  // namespace paramshard::gpu
