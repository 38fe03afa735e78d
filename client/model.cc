// Model and its handles: the public face of internal::Session.
#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/client.h"
#include "client/internal/session.h"
#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"
#include "kernels/formats/codec.h"

namespace paramshard {

// --- Views

void Matrix::Decode(float* values) const {
  DecodePlane(encoding, plane, {.data = data.data(), .scales = scales.data()}, rows, columns, values);
}

absl::Span<float> GradientView::fp32() const {
  PARAMSHARD_CHECK(type == GradientType::kFP32);
  return absl::MakeSpan(reinterpret_cast<float*>(data.data()), rows * columns);
}

absl::Span<uint16_t> GradientView::bf16() const {
  PARAMSHARD_CHECK(type == GradientType::kBF16);
  return absl::MakeSpan(reinterpret_cast<uint16_t*>(data.data()), rows * columns);
}

// --- GatheredUnit

class GatheredUnit::Impl {
 public:
  Impl(std::shared_ptr<internal::Session> session, const internal::GatherTicket& ticket)
      : session_(std::move(session)), ticket_(ticket) {}
  ~Impl() { session_->Release(ticket_); }

  absl::Status Wait();
  bool Ready() const { return complete_ || session_->GatherReady(ticket_); }
  absl::StatusOr<Matrix> Get(absl::string_view parameter, std::optional<Plane> plane);

 private:
  absl::Status CheckPlane(int parameter, Plane plane) const;
  // Contiguous scales: where they lie when they are in one part, else put together here.
  absl::Span<const uint8_t> Scales(int parameter, Plane plane, const internal::PlaneBytes& bytes);
  const internal::LayoutView& layout() const { return session_->layout(); }
  const ParameterSpec& Spec(int parameter) const { return session_->spec().units[ticket_.unit].parameters[parameter]; }

  std::shared_ptr<internal::Session> session_;
  internal::GatherTicket ticket_;
  bool complete_ = false;
  std::map<std::pair<int, Plane>, std::vector<uint8_t>> assembled_scales_;
};

absl::Status GatheredUnit::Impl::Wait() {
  if (complete_) return session_->status();
  RETURN_IF_ERROR(session_->AwaitGather(ticket_));
  complete_ = true;
  return absl::OkStatus();
}

absl::Status GatheredUnit::Impl::CheckPlane(int parameter, Plane plane) const {
  if (layout().Brings(ticket_.unit, parameter, plane, ticket_.phase)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("get ", Spec(parameter).name, ": a gathered plane expected, got the ",
                                                 plane == Plane::kRowWise ? "row-wise" : "column-wise",
                                                 " one of format ", FormatName(Spec(parameter).encoding.format)));
}

absl::Span<const uint8_t> GatheredUnit::Impl::Scales(int parameter, Plane plane, const internal::PlaneBytes& bytes) {
  if (bytes.scales.empty()) return {};
  if (bytes.scales.size() == 1) return bytes.scales.front();
  std::vector<uint8_t>& assembled = assembled_scales_[{parameter, plane}];
  if (assembled.empty()) {
    for (absl::Span<const uint8_t> part : bytes.scales) assembled.insert(assembled.end(), part.begin(), part.end());
  }
  return assembled;
}

absl::StatusOr<Matrix> GatheredUnit::Impl::Get(absl::string_view parameter_name, std::optional<Plane> wanted) {
  if (!complete_) {
    return absl::FailedPreconditionError(absl::StrCat("get ", parameter_name, ": a successful Wait expected before"));
  }
  ASSIGN_OR_RETURN(const int parameter, layout().FindParameter(ticket_.unit, parameter_name));
  const Plane plane = wanted.value_or(layout().MainPlane(ticket_.unit, parameter, ticket_.phase));
  RETURN_IF_ERROR(CheckPlane(parameter, plane));
  const internal::PlaneBytes bytes = session_->Bytes(ticket_, parameter, plane);
  return Matrix{.rows = layout().Rows(ticket_.unit, parameter),
                .columns = layout().Columns(ticket_.unit, parameter),
                .encoding = Spec(parameter).encoding,
                .plane = plane,
                .data = bytes.data,
                .scales = Scales(parameter, plane, bytes)};
}

namespace {

absl::Status Released() {
  return absl::FailedPreconditionError("gathered unit: a held unit expected, it has been released");
}

}  // namespace

GatheredUnit::GatheredUnit(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
GatheredUnit::GatheredUnit(GatheredUnit&&) noexcept = default;
GatheredUnit& GatheredUnit::operator=(GatheredUnit&&) noexcept = default;
GatheredUnit::~GatheredUnit() = default;

absl::Status GatheredUnit::Wait() { return impl_ == nullptr ? Released() : impl_->Wait(); }

bool GatheredUnit::Ready() const { return impl_ == nullptr || impl_->Ready(); }

absl::StatusOr<Matrix> GatheredUnit::Get(absl::string_view parameter, std::optional<Plane> plane) const {
  if (impl_ == nullptr) return Released();
  return impl_->Get(parameter, plane);
}

void GatheredUnit::Release() { impl_.reset(); }

// --- UnitGradients

class UnitGradients::Impl {
 public:
  Impl(std::shared_ptr<internal::Session> session, const internal::GradientTicket& ticket)
      : session_(std::move(session)), ticket_(ticket) {}
  ~Impl() {
    if (!pushed_) session_->GiveBack(ticket_);
  }

  absl::StatusOr<GradientView> Get(absl::string_view parameter) const;
  absl::Status MarkAbsent(absl::string_view parameter);
  absl::Status Push();

 private:
  std::shared_ptr<internal::Session> session_;
  internal::GradientTicket ticket_;
  std::vector<int> absent_;  // ascending
  bool pushed_ = false;
};

absl::StatusOr<GradientView> UnitGradients::Impl::Get(absl::string_view parameter_name) const {
  ASSIGN_OR_RETURN(const int parameter, session_->layout().FindParameter(ticket_.unit, parameter_name));
  return session_->Gradient(ticket_, parameter);
}

absl::Status UnitGradients::Impl::MarkAbsent(absl::string_view parameter_name) {
  ASSIGN_OR_RETURN(const int parameter, session_->layout().FindParameter(ticket_.unit, parameter_name));
  const auto place = std::lower_bound(absent_.begin(), absent_.end(), parameter);
  if (place == absent_.end() || *place != parameter) absent_.insert(place, parameter);
  return absl::OkStatus();
}

absl::Status UnitGradients::Impl::Push() {
  pushed_ = true;
  return session_->Push(ticket_, absent_);
}

namespace {

absl::Status Pushed() {
  return absl::FailedPreconditionError("gradients: an unpushed slot expected, it has been pushed");
}

}  // namespace

UnitGradients::UnitGradients(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
UnitGradients::UnitGradients(UnitGradients&&) noexcept = default;
UnitGradients& UnitGradients::operator=(UnitGradients&&) noexcept = default;
UnitGradients::~UnitGradients() = default;

absl::StatusOr<GradientView> UnitGradients::Get(absl::string_view parameter) const {
  if (impl_ == nullptr) return Pushed();
  return impl_->Get(parameter);
}

absl::Status UnitGradients::MarkAbsent(absl::string_view parameter) {
  return impl_ == nullptr ? Pushed() : impl_->MarkAbsent(parameter);
}

absl::Status UnitGradients::Push() {
  if (impl_ == nullptr) return Pushed();
  const std::unique_ptr<Impl> impl = std::move(impl_);
  return impl->Push();
}

// --- PendingCommit

PendingCommit::PendingCommit(std::shared_ptr<internal::Session> session, int64_t commit_number)
    : session_(std::move(session)), commit_number_(commit_number) {}

absl::StatusOr<StepResult> PendingCommit::Wait() { return session_->AwaitCommit(commit_number_); }

bool PendingCommit::Ready() const { return session_->CommitReady(commit_number_); }

// --- Model

Model::Model(std::shared_ptr<internal::Session> session) : session_(std::move(session)) {}
Model::Model(Model&&) noexcept = default;

Model& Model::operator=(Model&& other) noexcept {
  if (this != &other) {
    // A pending commit may keep the session alive, but attached it must not stay.
    if (session_ != nullptr) session_->Detach().IgnoreError();
    session_ = std::move(other.session_);
  }
  return *this;
}

Model::~Model() {
  if (session_ != nullptr) session_->Detach().IgnoreError();
}

absl::StatusOr<GatheredUnit> Model::Gather(absl::string_view unit, Phase phase) {
  ASSIGN_OR_RETURN(const internal::GatherTicket ticket, session_->Gather(unit, phase));
  return GatheredUnit(std::make_unique<GatheredUnit::Impl>(session_, ticket));
}

absl::StatusOr<UnitGradients> Model::Gradients(absl::string_view unit) {
  ASSIGN_OR_RETURN(const internal::GradientTicket ticket, session_->TakeGradients(unit));
  return UnitGradients(std::make_unique<UnitGradients::Impl>(session_, ticket));
}

absl::StatusOr<PendingCommit> Model::Commit(const CommitOptions& options) {
  ASSIGN_OR_RETURN(const int64_t commit_number, session_->Commit(options));
  return PendingCommit(session_, commit_number);
}

int64_t Model::commit_number() const { return session_->started().commit_number(); }
int64_t Model::version() const { return session_->started().version(); }
const std::string& Model::client_state() const { return session_->started().client_state(); }

std::optional<StepResult> Model::last_result() const { return session_->last_result(); }

int64_t Model::epoch() const { return session_->started().epoch(); }
int Model::rank() const { return session_->rank(); }
int Model::world_size() const { return session_->started().world_size(); }
int Model::shard_size() const { return session_->layout().ranks(); }
const ModelSpec& Model::spec() const { return session_->spec(); }

int64_t Model::gathered_bytes() const { return session_->gathered_bytes(); }
absl::Status Model::status() const { return session_->status(); }
absl::Status Model::Detach() { return session_->Detach(); }

}  // namespace paramshard
