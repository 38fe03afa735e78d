#include "kernels/optim/orthogonalizer_cuda.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/status_macros.h"
#include "kernels/gpu/memory.h"
#include "kernels/gpu/status.h"
#include "kernels/gpu/stream.h"
#include "kernels/optim/orthogonalizer_kernels.h"
#include "kernels/optim/orthogonalizer_memory.h"

namespace paramshard::gpu {
namespace {

constexpr int64_t kElementBytes = sizeof(uint16_t);

bool IsEmpty(const BFloat16Matrix& matrix) { return matrix.rows == 0 || matrix.columns == 0; }

// Returns how many of the matrices, from the first on, have their products at the same time.
size_t BatchSize(absl::Span<const BFloat16Matrix> matrices) {
  size_t count = 0;
  int64_t bytes = 0;
  for (const BFloat16Matrix& matrix : matrices) {
    bytes += ProductBytes(matrix);
    if (count > 0 && bytes > kMostOrthogonalizerBytes) break;
    ++count;
  }
  return count;
}

// A matrix in the iteration. X is [s, l], and stored so where it has no more rows than columns; else its transpose is.
struct Iterate {
  BFloat16Matrix matrix;
  double* norm_parts = nullptr;
  Operand x, next, gram, polynomial;

  bool is_wide() const { return matrix.rows <= matrix.columns; }
  int64_t small() const { return std::min(matrix.rows, matrix.columns); }
  int64_t large() const { return std::max(matrix.rows, matrix.columns); }

  MatrixProduct Gram() const {
    MatrixProduct product = {.left = x, .right = x, .result = gram, .rows = small(), .columns = small()};
    product.terms = large();
    (is_wide() ? product.right : product.left).is_transposed = true;
    product.is_symmetric = true;
    return product;
  }

  MatrixProduct Polynomial(const NewtonSchulzStep& step) const {
    return {.left = gram,
            .right = TransposeOf(gram),
            .addend = gram,
            .result = polynomial,
            .rows = small(),
            .columns = small(),
            .terms = small(),
            .factor = step.c,
            .addend_factor = step.b,
            .is_symmetric = true};
  }

  MatrixProduct Next(const NewtonSchulzStep& step) const {
    return {.left = is_wide() ? polynomial : x,
            .right = is_wide() ? x : TransposeOf(polynomial),
            .addend = x,
            .result = next,
            .rows = matrix.rows,
            .columns = matrix.columns,
            .terms = small(),
            .factor = 1,
            .addend_factor = step.a};
  }

  // A symmetric matrix as its transpose.
  static Operand TransposeOf(Operand operand) {
    operand.is_transposed = true;
    return operand;
  }
};

class CudaOrthogonalizer final : public Orthogonalizer {
 public:
  CudaOrthogonalizer(std::unique_ptr<MatrixProducts> products, int device, cudaStream_t stream)
      : products_(std::move(products)), device_(device), stream_(stream) {}

  absl::Status Run(const NewtonSchulz& iteration, absl::Span<const BFloat16Matrix> matrices) override {
    const DeviceScope scope(device_);
    RETURN_IF_ERROR(Reserve(OrthogonalizerBytes(matrices)));
    while (!matrices.empty()) {
      const size_t count = BatchSize(matrices);
      RETURN_IF_ERROR(RunTogether(iteration, matrices.first(count)));
      matrices.remove_prefix(count);
    }
    return absl::OkStatus();
  }

  std::string description() const override { return products_->description(); }

  int64_t scratch_bytes() const override { return scratch_.size_bytes() + products_->workspace_bytes(); }

  // Takes memory for products.
  absl::Status Reserve(int64_t bytes) {
    if (bytes <= scratch_.size_bytes()) return absl::OkStatus();
    RETURN_IF_ERROR(AwaitStream(device_, stream_));
    scratch_ = DeviceMemory();
    ASSIGN_OR_RETURN(scratch_, DeviceMemory::Create(device_, bytes, {device_}, /*shareable=*/false));
    return absl::OkStatus();
  }

 private:
  absl::Status RunTogether(const NewtonSchulz& iteration, absl::Span<const BFloat16Matrix> matrices) {
    std::vector<Iterate> iterates = Place(matrices, iteration.steps.size());
    std::vector<Normalization> normalizations;
    for (const Iterate& each : iterates) {
      normalizations.push_back({each.matrix, each.norm_parts, each.x.data, each.x.stride});
    }
    RETURN_IF_ERROR(Normalize(normalizations, iteration.epsilon, stream_));
    for (const NewtonSchulzStep& step : iteration.steps) {
      RETURN_IF_ERROR(Enqueue(iterates, [](const Iterate& each) { return each.Gram(); }));
      RETURN_IF_ERROR(Enqueue(iterates, [&](const Iterate& each) { return each.Polynomial(step); }));
      RETURN_IF_ERROR(Enqueue(iterates, [&](const Iterate& each) { return each.Next(step); }));
      for (Iterate& each : iterates) std::swap(each.x, each.next);
    }
    for (const Iterate& each : iterates) RETURN_IF_ERROR(CopyResult(each));
    return absl::OkStatus();
  }

  // The result of the last step is in the matrix itself, if that can be an operand.
  std::vector<Iterate> Place(absl::Span<const BFloat16Matrix> matrices, size_t steps) const {
    std::vector<Iterate> iterates;
    uint8_t* next = scratch_.data();
    const auto take = [&next](int64_t rows, int64_t columns) {
      const Operand taken = {reinterpret_cast<uint16_t*>(next), StrideOf(columns)};
      next += rows * taken.stride * kElementBytes;
      return taken;
    };
    for (const BFloat16Matrix& matrix : matrices) {
      if (IsEmpty(matrix)) continue;
      Iterate& each = iterates.emplace_back(Iterate{matrix});
      each.norm_parts = reinterpret_cast<double*>(next);
      next += kNormBytes;
      each.x = take(matrix.rows, matrix.columns);
      each.next = IsOperand(matrix) ? Operand{matrix.data, matrix.stride} : take(matrix.rows, matrix.columns);
      each.gram = take(each.small(), each.small());
      each.polynomial = take(each.small(), each.small());
      if (steps % 2 == 0) std::swap(each.x, each.next);
    }
    return iterates;
  }

  template <typename ProductOf>
  absl::Status Enqueue(absl::Span<const Iterate> iterates, const ProductOf& product_of) const {
    std::vector<MatrixProduct> products;
    for (const Iterate& each : iterates) products.push_back(product_of(each));
    return products_->Enqueue(products, stream_);
  }

  absl::Status CopyResult(const Iterate& each) const {
    const BFloat16Matrix& matrix = each.matrix;
    if (each.x.data == matrix.data) return absl::OkStatus();
    const auto pitch = [](int64_t elements) { return static_cast<size_t>(elements * kElementBytes); };
    return ToStatus(
        cudaMemcpy2DAsync(matrix.data, pitch(matrix.stride), each.x.data, pitch(each.x.stride), pitch(matrix.columns),
                          static_cast<size_t>(matrix.rows), cudaMemcpyDeviceToDevice, stream_),
        "copy an orthogonal matrix");
  }

  // Constant after construction.
  const std::unique_ptr<MatrixProducts> products_;
  const int device_;
  const cudaStream_t stream_;

  DeviceMemory scratch_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Orthogonalizer>> MakeCudaOrthogonalizer(std::unique_ptr<MatrixProducts> products,
                                                                       int device, cudaStream_t stream,
                                                                       int64_t scratch_bytes) {
  auto orthogonalizer = std::make_unique<CudaOrthogonalizer>(std::move(products), device, stream);
  RETURN_IF_ERROR(orthogonalizer->Reserve(scratch_bytes));
  return orthogonalizer;
}

}  // namespace paramshard::gpu
