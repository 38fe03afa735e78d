// Memory that the orthogonalizer of a GPU takes for its products: pure functions of shapes and alignment, in every
// build.
//
// Internal to kernels/.

#ifndef PARAMSHARD_KERNELS_OPTIM_ORTHOGONALIZER_MEMORY_H_
#define PARAMSHARD_KERNELS_OPTIM_ORTHOGONALIZER_MEMORY_H_

#include <cstdint>

#include "absl/types/span.h"
#include "kernels/optim/orthogonalizer.h"

namespace paramshard::gpu {

// Most bytes of memory for the products of several matrices at a time.
inline constexpr int64_t kMostOrthogonalizerBytes = int64_t{224} << 20;

// Doubles for the partial sums of a matrix's norm.
inline constexpr int kNormParts = 256;
inline constexpr int64_t kNormBytes = kNormParts * static_cast<int64_t>(sizeof(double));

// Returns the elements from row to row of a matrix in the orthogonalizer's own memory.
int64_t StrideOf(int64_t columns);

// Returns true if products may read and write the matrix in place: in the layout of the orthogonalizer's own memory, so
// that no engine multiplies it in another way, and without elements behind a row that a product may write.
bool IsOperand(const BFloat16Matrix& matrix);

// Returns the bytes for the products of one matrix: one matrix of its size (two, unless it IsOperand()) and two Gram
// matrices.
int64_t ProductBytes(const BFloat16Matrix& matrix);

// Returns the bytes for all matrices at the same time: kMostOrthogonalizerBytes at most, or what the largest one needs.
int64_t OrthogonalizerBytes(absl::Span<const BFloat16Matrix> matrices);

}  // namespace paramshard::gpu

#endif  // PARAMSHARD_KERNELS_OPTIM_ORTHOGONALIZER_MEMORY_H_
