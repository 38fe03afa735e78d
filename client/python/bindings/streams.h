// The calls of client/cuda.h for streams and memory as Python has them: by address. All are UNIMPLEMENTED where this
// library was built without CUDA.
#ifndef PARAMSHARD_CLIENT_PYTHON_BINDINGS_STREAMS_H_
#define PARAMSHARD_CLIENT_PYTHON_BINDINGS_STREAMS_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/client.h"

namespace paramshard::python {

// A cudaStream_t; 0 is the default stream.
using StreamAddress = uintptr_t;

enum class DecodedElement : uint8_t { kFP32, kBF16 };

// Where elements and scales of a plane are to lie, in memory of the GPU.
struct PlaneCopy {
  uintptr_t data = 0;        // rows x columns, as they are
  uintptr_t transposed = 0;  // columns x rows; 0: not wanted
  uintptr_t scales = 0;      // the compact ones
  int64_t scales_pitch = 0;  // bytes from one row of scales to the next
};

absl::Status WaitOn(GatheredUnit& unit, StreamAddress stream);
absl::Status ReleaseOn(GatheredUnit& unit, StreamAddress stream);
absl::Status DecodeOn(const Matrix& matrix, DecodedElement element, uintptr_t out, StreamAddress stream);
absl::Status CopyPlaneOn(const Matrix& matrix, const PlaneCopy& copy, StreamAddress stream);
absl::StatusOr<UnitGradients> GradientsOn(Model& model, const std::string& unit, bool zero, StreamAddress stream);
absl::Status PushOn(UnitGradients& gradients, StreamAddress stream);

}  // namespace paramshard::python

#endif  // PARAMSHARD_CLIENT_PYTHON_BINDINGS_STREAMS_H_
