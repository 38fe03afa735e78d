// Implementations of the handles of client.h.
#ifndef PARAMSHARD_CLIENT_INTERNAL_HANDLES_H_
#define PARAMSHARD_CLIENT_INTERNAL_HANDLES_H_

#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "client/client.h"
#include "client/internal/session.h"

namespace paramshard {

class GatheredUnit::Impl {
 public:
  Impl(std::shared_ptr<internal::Session> session, const internal::GatherTicket& ticket)
      : session_(std::move(session)), ticket_(ticket) {}
  ~Impl();

  absl::Status Wait();
  bool Ready() const { return complete_ || session_->gathers().IsReady(ticket_); }
  absl::StatusOr<Matrix> Get(absl::string_view parameter, std::optional<Plane> plane);

  absl::Status WaitOn(internal::GpuStream stream, internal::Followers followers = internal::Followers::kAny);
  // The last call.
  absl::Status ReleaseOn(internal::GpuStream stream);

 private:
  absl::Status CheckPlane(const ParameterSpec& spec, Plane plane) const;
  // Returns contiguous scales: a view of the slot when they are in one part, else a copy of all parts.
  absl::Span<const uint8_t> Scales(int parameter, Plane plane, const internal::PlaneBytes& bytes);
  const NameIndex& names() const { return session_->names(); }
  const ParameterSpec& Spec(int parameter) const { return session_->spec().units[ticket_.unit].parameters[parameter]; }

  std::shared_ptr<internal::Session> session_;
  internal::GatherTicket ticket_;
  bool complete_ = false;    // waited for, by the host or by stream_
  internal::Worker stream_;  // the last that waited
  internal::Followers followers_ = internal::Followers::kAny;
  bool released_ = false;
  std::map<std::pair<int, Plane>, std::vector<uint8_t>> assembled_scales_;
};

class UnitGradients::Impl {
 public:
  // `worker` writes the slot.
  Impl(std::shared_ptr<internal::Session> session, const internal::GradientTicket& ticket, internal::Worker worker)
      : session_(std::move(session)), ticket_(ticket), worker_(worker) {}
  ~Impl() {
    if (!pushed_) session_->gradients().GiveBack(ticket_, worker_);
  }

  absl::StatusOr<GradientView> Get(absl::string_view parameter) const;
  // INVALID_ARGUMENT for a frozen parameter.
  absl::StatusOr<int> FindTrainable(absl::string_view operation, absl::string_view parameter) const;
  absl::Status MarkAbsent(absl::string_view parameter);
  // OK if a push would be sent. On an error the slot stays unchanged.
  absl::Status CheckPush() const { return session_->gradients().CheckPush(ticket_); }
  // The last call.
  absl::Status Push();
  absl::Status PushOn(internal::GpuStream stream);

 private:
  std::shared_ptr<internal::Session> session_;
  internal::GradientTicket ticket_;
  internal::Worker worker_;
  std::vector<int> absent_;  // ascending
  bool pushed_ = false;
};

namespace internal {

// Access of client/cuda.h to the handles.
class HandleAccess {
 public:
  static std::unique_ptr<GatheredUnit::Impl>& ImplOf(GatheredUnit& unit) { return unit.impl_; }
  static std::unique_ptr<UnitGradients::Impl>& ImplOf(UnitGradients& gradients) { return gradients.impl_; }
  static const std::shared_ptr<Session>& SessionOf(Model& model) { return model.session_; }
  static UnitGradients MakeGradients(std::shared_ptr<Session> session, const GradientTicket& ticket, Worker worker) {
    return UnitGradients(std::make_unique<UnitGradients::Impl>(std::move(session), ticket, worker));
  }
};

}  // namespace internal
}  // namespace paramshard

#endif  // PARAMSHARD_CLIENT_INTERNAL_HANDLES_H_
