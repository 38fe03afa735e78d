#include "python/bindings/streams.h"

#include <cuda_runtime.h>

#include <vector>

#include "client/cuda.h"

namespace paramshard::python {
namespace {

template <typename T>
T* At(uintptr_t address) {
  return reinterpret_cast<T*>(address);  // NOLINT(performance-no-int-to-ptr): Python has no pointers.
}

cudaStream_t StreamAt(StreamAddress address) { return At<CUstream_st>(address); }

}  // namespace

absl::Status WaitOn(GatheredUnit& unit, StreamAddress stream) { return cuda::WaitOn(unit, StreamAt(stream)); }

absl::Status WaitAloneOn(GatheredUnit& unit, StreamAddress stream) { return cuda::WaitAloneOn(unit, StreamAt(stream)); }

absl::Status ReleaseOn(GatheredUnit& unit, StreamAddress stream) { return cuda::Release(unit, StreamAt(stream)); }

absl::Status DecodeOn(absl::Span<const DecodedOutput> outputs, StreamAddress stream) {
  std::vector<cuda::Decoding> decodings;
  for (const auto& [matrix, element, address] : outputs) {
    const auto type = element == DecodedElement::kBF16 ? cuda::DecodedType::kBF16 : cuda::DecodedType::kFP32;
    decodings.push_back({matrix, type, At<void>(address)});
  }
  return cuda::Decode(decodings, StreamAt(stream));
}

absl::Status CopyOperandsOn(absl::Span<const OperandOutput> outputs, StreamAddress stream) {
  std::vector<cuda::OperandCopy> copies;
  for (const auto& [matrix, transposed, data, scales, pitch] : outputs) {
    copies.push_back({matrix, transposed, At<uint8_t>(data), At<float>(scales), pitch});
  }
  return cuda::CopyOperands(copies, StreamAt(stream));
}

absl::StatusOr<UnitGradients> GradientsOn(Model& model, const std::string& unit, bool zero, StreamAddress stream) {
  return cuda::Gradients(model, unit, StreamAt(stream),
                         zero ? cuda::SlotContent::kZero : cuda::SlotContent::kUndefined);
}

absl::Status PushGradientsOn(Model& model, const std::string& unit, absl::Span<const ConstGradient> values,
                             StreamAddress stream) {
  return cuda::PushGradients(model, unit, values, StreamAt(stream));
}

absl::Status PushOn(UnitGradients& gradients, StreamAddress stream) { return cuda::Push(gradients, StreamAt(stream)); }

}  // namespace paramshard::python
