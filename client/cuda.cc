#include "client/cuda.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/internal/handles.h"
#include "kernels/base/status_macros.h"
#include "kernels/formats/scale_layout_cuda.h"
#include "kernels/formats/transpose.h"
#include "kernels/formats/transpose_cuda.h"
#include "kernels/gpu/stream.h"

namespace paramshard::cuda {

using internal::HandleAccess;

namespace {

absl::Status CheckOnGpu(absl::string_view operation, const Matrix& matrix) {
  if (matrix.gpu >= 0) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(operation, " on a stream: a matrix in memory of a GPU expected, got one in host memory"));
}

}  // namespace

absl::Status WaitOn(GatheredUnit& unit, cudaStream_t stream) {
  const auto& impl = HandleAccess::ImplOf(unit);
  if (impl == nullptr) return absl::FailedPreconditionError("wait: a held unit expected, it has been released");
  return impl->WaitOn(stream);
}

absl::Status Release(GatheredUnit& unit, cudaStream_t stream) {
  const auto impl = std::move(HandleAccess::ImplOf(unit));
  if (impl == nullptr) return absl::FailedPreconditionError("release: a held unit expected, it has been released");
  return impl->ReleaseOn(stream);
}

absl::StatusOr<UnitGradients> Gradients(Model& model, absl::string_view unit, cudaStream_t stream,
                                        SlotContent content) {
  const std::shared_ptr<internal::Session>& session = HandleAccess::SessionOf(model);
  ASSIGN_OR_RETURN(const internal::GradientTicket ticket,
                   session->gradients().Take(unit, stream, content == SlotContent::kZero));
  return HandleAccess::MakeGradients(session, ticket, stream);
}

absl::Status Push(UnitGradients& gradients, cudaStream_t stream) {
  auto& held = HandleAccess::ImplOf(gradients);
  if (held == nullptr) {
    return absl::FailedPreconditionError("gradients: an unpushed slot expected, it has been pushed");
  }
  RETURN_IF_ERROR(held->CheckPush());
  const auto impl = std::move(held);
  return impl->PushOn(stream);
}

absl::Status Decode(const Matrix& matrix, DecodedType type, void* out, cudaStream_t stream) {
  RETURN_IF_ERROR(CheckOnGpu("decode", matrix));
  const gpu::DeviceScope scope(matrix.gpu);
  const ConstPlane plane = {.data = matrix.data.data(), .scales = matrix.scales.data(), .amax = matrix.amax.data()};
  return gpu::DecodePlane(matrix.encoding, matrix.plane, plane, matrix.rows, matrix.columns, type, out, stream);
}

absl::Status Transpose(const Matrix& matrix, uint8_t* out, cudaStream_t stream) {
  RETURN_IF_ERROR(CheckOnGpu("transpose", matrix));
  ASSIGN_OR_RETURN(const int width, TransposableWidth(matrix.encoding.format));
  const gpu::DeviceScope scope(matrix.gpu);
  const auto transpose = width == 8 ? gpu::TransposeBytes : gpu::TransposeNibbles;
  return transpose(matrix.data.data(), matrix.rows, matrix.columns, out, stream);
}

absl::Status CopyScales(const Matrix& matrix, ScaleLayout layout, uint8_t* out, cudaStream_t stream,
                        std::optional<Plane> operand) {
  RETURN_IF_ERROR(CheckOnGpu("copy scales", matrix));
  ASSIGN_OR_RETURN(const ScaleArrangement arrangement,
                   FindScaleArrangement(matrix.encoding, matrix.plane, operand.value_or(matrix.plane), matrix.rows,
                                        matrix.columns, layout));
  const gpu::DeviceScope scope(matrix.gpu);
  return gpu::ArrangeScales(arrangement, matrix.scales.data(), out, stream);
}

}  // namespace paramshard::cuda
