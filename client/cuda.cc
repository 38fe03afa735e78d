#include "client/cuda.h"

#include <memory>
#include <utility>

#include "client/internal/handles.h"
#include "kernels/base/status_macros.h"

namespace paramshard::cuda {

using internal::HandleAccess;

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

absl::StatusOr<UnitGradients> Gradients(Model& model, absl::string_view unit, cudaStream_t stream) {
  const std::shared_ptr<internal::Session>& session = HandleAccess::SessionOf(model);
  ASSIGN_OR_RETURN(const internal::GradientTicket ticket, session->TakeGradientsOn(unit, stream));
  return HandleAccess::MakeGradients(session, ticket, stream);
}

absl::Status Push(UnitGradients& gradients, cudaStream_t stream) {
  const auto impl = std::move(HandleAccess::ImplOf(gradients));
  if (impl == nullptr) {
    return absl::FailedPreconditionError("gradients: an unpushed slot expected, it has been pushed");
  }
  return impl->PushOn(stream);
}

}  // namespace paramshard::cuda
