#include "client/python/bindings/streams.h"

#include <cuda_runtime.h>

#include "client/cuda.h"

namespace paramshard::python {
namespace {

cudaStream_t StreamAt(StreamAddress address) { return reinterpret_cast<cudaStream_t>(address); }

}  // namespace

absl::Status WaitOn(GatheredUnit& unit, StreamAddress stream) { return cuda::WaitOn(unit, StreamAt(stream)); }

absl::Status ReleaseOn(GatheredUnit& unit, StreamAddress stream) { return cuda::Release(unit, StreamAt(stream)); }

absl::Status DecodeOn(const Matrix& matrix, DecodedElement element, uintptr_t out, StreamAddress stream) {
  const auto type = element == DecodedElement::kBF16 ? cuda::DecodedType::kBF16 : cuda::DecodedType::kFP32;
  return cuda::Decode(matrix, type, reinterpret_cast<void*>(out), StreamAt(stream));
}

absl::Status TransposeOn(const Matrix& matrix, uintptr_t out, StreamAddress stream) {
  return cuda::Transpose(matrix, reinterpret_cast<uint8_t*>(out), StreamAt(stream));
}

absl::StatusOr<UnitGradients> GradientsOn(Model& model, const std::string& unit, bool zero, StreamAddress stream) {
  return cuda::Gradients(model, unit, StreamAt(stream),
                         zero ? cuda::SlotContent::kZero : cuda::SlotContent::kUndefined);
}

absl::Status PushOn(UnitGradients& gradients, StreamAddress stream) { return cuda::Push(gradients, StreamAt(stream)); }

}  // namespace paramshard::python
