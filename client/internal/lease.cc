#include "client/internal/lease.h"

#include <atomic>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"

namespace paramshard::internal {

// A forked child has no pages, and no lease of its own.
void Lease::Release() {
  if (released_ || !session_->CheckProcess().ok()) return;
  released_ = true;
  session_->Release(generation_);
}

absl::Status Lease::Check() const {
  RETURN_IF_ERROR(session_->CheckProcess());
  const auto name = [&] {
    return absl::StrCat("snapshot of ", session_->model(), " at commit ", version_.commit_number);
  };
  if (released_) return absl::FailedPreconditionError(absl::StrCat(name(), ": released"));
  // Reads of planes come before the look at the gate.
  std::atomic_thread_fence(std::memory_order_acquire);
  const wire::Gate gate = session_->publication().gate();
  if (!gate.readable() || gate.generation != generation_) {
    return absl::AbortedError(absl::StrCat(name(), ": ended, ", WhyEnded(gate), "; acquire another one"));
  }
  // Only a living daemon keeps to its gate: it is asked last.
  const absl::Status connected = session_->CheckConnected();
  if (connected.ok()) return connected;
  return absl::UnavailableError(absl::StrCat(name(), ": ", connected.message(), "; acquire another one"));
}

std::string Lease::WhyEnded(const wire::Gate& gate) const {
  if (gate.state == wire::Gate::State::kEnded) {
    return absl::StrCat("the model or its daemon has ended (", session_->publication_text(), ")");
  }
  const absl::StatusOr<std::optional<ModelVersion>> now = session_->VersionOf(gate);
  if (!now.ok()) return std::string(now.status().message());
  if (!now->has_value()) return absl::StrCat("the model is being written now (", session_->publication_text(), ")");
  const ModelVersion& version = **now;
  if (version == version_) return "its planes have been written again";
  return absl::StrCat("the model is at commit ", version.commit_number,
                      version.history_id == version_.history_id ? "" : " of another history", " now");
}

}  // namespace paramshard::internal
