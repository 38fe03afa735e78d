#include "client/python/bindings/streams.h"

#include <cuda_runtime.h>

#include "absl/strings/str_cat.h"
#include "client/cuda.h"
#include "kernels/base/status_macros.h"

namespace paramshard::python {
namespace {

template <typename T>
T* At(uintptr_t address) {
  return reinterpret_cast<T*>(address);  // NOLINT(performance-no-int-to-ptr): Python has no pointers.
}

cudaStream_t StreamAt(StreamAddress address) { return At<CUstream_st>(address); }

absl::Status Copied(cudaError_t answer) {
  if (answer == cudaSuccess) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("copy a plane on a stream: ", cudaGetErrorString(answer)));
}

}  // namespace

absl::Status WaitOn(GatheredUnit& unit, StreamAddress stream) { return cuda::WaitOn(unit, StreamAt(stream)); }

absl::Status ReleaseOn(GatheredUnit& unit, StreamAddress stream) { return cuda::Release(unit, StreamAt(stream)); }

absl::Status DecodeOn(const Matrix& matrix, DecodedElement element, uintptr_t out, StreamAddress stream) {
  const auto type = element == DecodedElement::kBF16 ? cuda::DecodedType::kBF16 : cuda::DecodedType::kFP32;
  return cuda::Decode(matrix, type, At<void>(out), StreamAt(stream));
}

absl::Status CopyPlaneOn(const Matrix& matrix, const PlaneCopy& copy, StreamAddress stream) {
  if (matrix.gpu < 0) return absl::FailedPreconditionError("copy a plane on a stream: a matrix of a GPU expected");
  if (copy.transposed != 0) {
    RETURN_IF_ERROR(cuda::Transpose(matrix, At<uint8_t>(copy.transposed), StreamAt(stream)));
  }
  const MatrixShape shape = ScaleShape(matrix.encoding, matrix.plane, matrix.rows, matrix.columns);
  const size_t row_bytes = shape.rows == 0 ? 0 : matrix.scales.size() / shape.rows;
  RETURN_IF_ERROR(Copied(cudaMemcpyAsync(At<void>(copy.data), matrix.data.data(), matrix.data.size(),
                                         cudaMemcpyDeviceToDevice, StreamAt(stream))));
  return Copied(cudaMemcpy2DAsync(At<void>(copy.scales), copy.scales_pitch, matrix.scales.data(), row_bytes, row_bytes,
                                  shape.rows, cudaMemcpyDeviceToDevice, StreamAt(stream)));
}

absl::StatusOr<UnitGradients> GradientsOn(Model& model, const std::string& unit, bool zero, StreamAddress stream) {
  return cuda::Gradients(model, unit, StreamAt(stream),
                         zero ? cuda::SlotContent::kZero : cuda::SlotContent::kUndefined);
}

absl::Status PushOn(UnitGradients& gradients, StreamAddress stream) { return cuda::Push(gradients, StreamAt(stream)); }

}  // namespace paramshard::python
