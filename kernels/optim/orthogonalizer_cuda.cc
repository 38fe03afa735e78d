#include "kernels/optim/orthogonalizer_cuda.h"

#include <algorithm>
#include <utility>

#include "kernels/base/align.h"
#include "kernels/base/status_macros.h"
#include "kernels/gpu/memory.h"
#include "kernels/gpu/status.h"
#include "kernels/gpu/stream.h"
#include "kernels/optim/orthogonalizer_kernels.h"

namespace paramshard::gpu {
namespace {

using Matrix = Bf16Products::Matrix;

// Elements of BF16 that rows begin at multiples of, for tensor cores.
constexpr int64_t kRowAlignment = 64;

class CudaOrthogonalizer final : public Orthogonalizer {
 public:
  CudaOrthogonalizer(int device, cudaStream_t stream, Bf16Products products)
      : device_(device), stream_(stream), products_(std::move(products)) {}

  absl::Status Run(const NewtonSchulz& iteration, absl::Span<const BFloat16Matrix> matrices) override {
    const DeviceScope scope(device_);
    RETURN_IF_ERROR(Reserve(matrices));
    for (const BFloat16Matrix& matrix : matrices) {
      if (matrix.rows > 0 && matrix.columns > 0) RETURN_IF_ERROR(RunOne(iteration, matrix));
    }
    return absl::OkStatus();
  }

  std::string description() const override { return products_.description(); }

  // Takes memory for the products of the largest of these matrices.
  absl::Status Reserve(absl::Span<const BFloat16Matrix> matrices) {
    int64_t elements = 0;
    for (const BFloat16Matrix& matrix : matrices) elements = std::max(elements, ScratchElements(matrix));
    constexpr int64_t kNormBytes = kNormParts * sizeof(double);
    const int64_t bytes = kNormBytes + elements * static_cast<int64_t>(sizeof(uint16_t));
    if (bytes <= scratch_.size_bytes()) return absl::OkStatus();
    RETURN_IF_ERROR(AwaitStream(device_, stream_));
    scratch_ = DeviceMemory();
    ASSIGN_OR_RETURN(scratch_, DeviceMemory::Create(device_, bytes, {device_}, /*shareable=*/false));
    norm_parts_ = reinterpret_cast<double*>(scratch_.data());
    elements_ = reinterpret_cast<uint16_t*>(scratch_.data() + kNormBytes);
    return absl::OkStatus();
  }

 private:
  static int64_t StrideOf(int64_t columns) { return AlignUp(columns, kRowAlignment); }
  static int64_t SquareElements(const BFloat16Matrix& matrix) {
    const int64_t small = std::min(matrix.rows, matrix.columns);
    return small * StrideOf(small);
  }
  static int64_t ScratchElements(const BFloat16Matrix& matrix) {
    return 2 * matrix.rows * StrideOf(matrix.columns) + 2 * SquareElements(matrix);
  }

  // BLAS takes rows for columns, so that it sees the transpose of every matrix. For it X is the transpose of a wide
  // matrix, and a tall matrix itself.
  absl::Status RunOne(const NewtonSchulz& iteration, const BFloat16Matrix& matrix) {
    const int64_t stride = StrideOf(matrix.columns);
    Matrix x = {elements_, stride};
    Matrix next = {x.data + matrix.rows * stride, stride};
    const bool is_wide = matrix.rows <= matrix.columns;
    const int64_t small = std::min(matrix.rows, matrix.columns);
    const int64_t large = std::max(matrix.rows, matrix.columns);
    const Matrix gram = {next.data + matrix.rows * stride, StrideOf(small)};
    const Matrix polynomial = {gram.data + SquareElements(matrix), gram.stride};
    RETURN_IF_ERROR(Normalize(matrix, iteration.epsilon, norm_parts_, x.data, stride, stream_));
    for (const NewtonSchulzStep& step : iteration.steps) {
      // The stored matrix is [small, large] where it is wide: BLAS has its transpose.
      Matrix left = x;
      Matrix right = x;
      (is_wide ? left : right).is_transposed = true;
      RETURN_IF_ERROR(products_.Enqueue({.left = left,
                                         .right = right,
                                         .addend = gram,
                                         .result = gram,
                                         .rows = small,
                                         .columns = small,
                                         .terms = large},
                                        stream_));
      RETURN_IF_ERROR(products_.Enqueue({.left = gram,
                                         .right = gram,
                                         .addend = gram,
                                         .result = polynomial,
                                         .rows = small,
                                         .columns = small,
                                         .terms = small,
                                         .factor = step.c,
                                         .addend_factor = step.b},
                                        stream_));
      RETURN_IF_ERROR(products_.Enqueue({.left = is_wide ? x : polynomial,
                                         .right = is_wide ? polynomial : x,
                                         .addend = x,
                                         .result = next,
                                         .rows = is_wide ? large : small,
                                         .columns = is_wide ? small : large,
                                         .terms = small,
                                         .factor = 1,
                                         .addend_factor = step.a},
                                        stream_));
      std::swap(x, next);
    }
    const auto pitch = [](int64_t elements) { return static_cast<size_t>(elements) * sizeof(uint16_t); };
    return ToStatus(cudaMemcpy2DAsync(matrix.data, pitch(matrix.stride), x.data, pitch(stride), pitch(matrix.columns),
                                      static_cast<size_t>(matrix.rows), cudaMemcpyDeviceToDevice, stream_),
                    "copy an orthogonal matrix");
  }

  // Constant after construction.
  const int device_;
  const cudaStream_t stream_;

  Bf16Products products_;
  DeviceMemory scratch_;
  double* norm_parts_ = nullptr;
  uint16_t* elements_ = nullptr;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Orthogonalizer>> MakeCudaOrthogonalizer(const CublasLt& library, int device,
                                                                       cudaStream_t stream,
                                                                       absl::Span<const BFloat16Matrix> expected) {
  ASSIGN_OR_RETURN(Bf16Products products, Bf16Products::Create(library, device));
  auto orthogonalizer = std::make_unique<CudaOrthogonalizer>(device, stream, std::move(products));
  RETURN_IF_ERROR(orthogonalizer->Reserve(expected));
  return orthogonalizer;
}

}  // namespace paramshard::gpu
