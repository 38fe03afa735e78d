// Alignment of the operands of products on GPUs (matrix_products.h).
#ifndef PARAMSHARD_KERNELS_PRODUCTS_OPERAND_ALIGNMENT_H_
#define PARAMSHARD_KERNELS_PRODUCTS_OPERAND_ALIGNMENT_H_

#include <cstdint>

namespace paramshard::gpu {

// Bytes that data and rows of an operand begin at multiples of.
inline constexpr int64_t kOperandAlignment = 16;

}  // namespace paramshard::gpu

#endif  // PARAMSHARD_KERNELS_PRODUCTS_OPERAND_ALIGNMENT_H_
