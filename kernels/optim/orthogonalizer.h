// Orthogonalization of matrices by the Newton-Schulz iteration, in BF16 with sums in float32.
//
// X has s rows and l >= s columns; a matrix with more rows than columns is taken as its transpose.
//
//   n = max(bf16(sqrt(sum of squares of X)), bf16(epsilon))
//   X = bf16(X / n)
//   for each (a, b, c):
//     G = bf16(X X^T)
//     U = bf16(c * (G G) + b * G)
//     X = bf16(U X + a * X)
//
// The singular values of X come close to 1, between 0.7 and 1.2 with the usual coefficients. A matrix of zeros stays.
// An implementation gives the same bytes whenever it gets the same bytes on one kind of device. Source: Keller Jordan,
// "Muon: An optimizer for hidden layers in neural networks".

#ifndef PARAMSHARD_KERNELS_OPTIM_ORTHOGONALIZER_H_
#define PARAMSHARD_KERNELS_OPTIM_ORTHOGONALIZER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/optim/muon_options.h"

namespace paramshard {

struct NewtonSchulz {
  std::vector<NewtonSchulzStep> steps = MuonOptions().steps;
  float epsilon = 1e-7f;  // lower bound of the norm
};

// A matrix of BF16 elements, `stride` elements from row to row. The caller owns the memory.
struct BFloat16Matrix {
  uint16_t* data = nullptr;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t stride = 0;
};

// One shard's. Not thread-safe.
class Orthogonalizer {
 public:
  virtual ~Orthogonalizer() = default;

  // Replaces each matrix by the result of the iteration. On a GPU the work is enqueued. RESOURCE_EXHAUSTED if there is
  // no memory for the products.
  virtual absl::Status Run(const NewtonSchulz& iteration, absl::Span<const BFloat16Matrix> matrices) = 0;

  // Bytes of memory for products that it holds.
  virtual int64_t scratch_bytes() const = 0;

  // Library and version that the bytes depend on, for logs and journals.
  virtual std::string description() const = 0;
};

// In host memory: each product's element is a sum of float32 products from the first to the last, so that the bytes are
// the same on every machine. Takes `scratch_bytes` at once, and later what a matrix needs besides.
std::unique_ptr<Orthogonalizer> MakeHostOrthogonalizer(int64_t scratch_bytes = 0);

// Returns the bytes for the products of any of the matrices, one at a time.
int64_t HostOrthogonalizerBytes(absl::Span<const BFloat16Matrix> matrices);

}  // namespace paramshard

#endif  // PARAMSHARD_KERNELS_OPTIM_ORTHOGONALIZER_H_
