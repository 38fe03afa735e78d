// The calls of client/cuda.h for streams and memory by address, as Python has them. All return UNIMPLEMENTED in a
// library that was built without CUDA.
#ifndef PARAMSHARD_PYTHON_BINDINGS_STREAMS_H_
#define PARAMSHARD_PYTHON_BINDINGS_STREAMS_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/client.h"

namespace paramshard::python {

// A cudaStream_t; 0 is the default stream.
using StreamAddress = uintptr_t;

enum class DecodedElement : uint8_t { kFP32, kBF16 };

// A matrix to decode, and the address for its values in memory of the GPU.
struct DecodedOutput {
  Matrix matrix;
  DecodedElement element = DecodedElement::kFP32;
  uintptr_t address = 0;
};

// See cuda::OperandCopy.
struct OperandOutput {
  Matrix matrix;
  bool transposed = false;
  uintptr_t data = 0;
  uintptr_t scales = 0;
  int64_t scales_pitch = 0;
};

absl::Status WaitOn(GatheredUnit& unit, StreamAddress stream);
absl::Status WaitAloneOn(GatheredUnit& unit, StreamAddress stream);
absl::Status ReleaseOn(GatheredUnit& unit, StreamAddress stream);
absl::Status DecodeOn(absl::Span<const DecodedOutput> outputs, StreamAddress stream);
absl::Status CopyOperandsOn(absl::Span<const OperandOutput> outputs, StreamAddress stream);
absl::StatusOr<UnitGradients> GradientsOn(Model& model, const std::string& unit, bool zero, StreamAddress stream);
absl::Status PushGradientsOn(Model& model, const std::string& unit, absl::Span<const ConstGradient> values,
                             StreamAddress stream);
absl::Status PushOn(UnitGradients& gradients, StreamAddress stream);

}  // namespace paramshard::python

#endif  // PARAMSHARD_PYTHON_BINDINGS_STREAMS_H_
