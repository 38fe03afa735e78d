// Model and its handles: public classes on top of internal::Session.
#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/client.h"
#include "client/internal/box_copy.h"
#include "client/internal/gpu_memory.h"
#include "client/internal/handles.h"
#include "client/internal/host_bytes.h"
#include "client/internal/session.h"
#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"
#include "kernels/formats/bfloat16.h"
#include "kernels/formats/format.h"
#include "kernels/formats/transpose.h"

namespace paramshard {

using internal::HostBytes;

// --- Views

namespace {

template <typename Value>
absl::Status DecodeWhole(const Matrix& matrix, BoxContent content, Value* values) {
  return internal::CopyBox({.matrix = matrix,
                            .rows = {.begin = 0, .end = matrix.rows},
                            .columns = matrix.columns,
                            .content = content,
                            .out = reinterpret_cast<uint8_t*>(values),
                            .out_stride = matrix.columns * static_cast<int64_t>(sizeof(Value))});
}

absl::Status CheckSize(absl::string_view operation, int64_t expected, size_t size) {
  if (static_cast<int64_t>(size) == expected) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(operation, ": want ", expected, " bytes, got ", size));
}

}  // namespace

absl::Status Matrix::Decode(float* values) const { return DecodeWhole(*this, BoxContent::kFloat32, values); }

absl::Status Matrix::DecodeToBFloat16(uint16_t* values) const {
  return DecodeWhole(*this, BoxContent::kBFloat16, values);
}

absl::Status Matrix::Transpose(absl::Span<uint8_t> out) const {
  ASSIGN_OR_RETURN(const int width, TransposableWidth(encoding.format));
  RETURN_IF_ERROR(CheckSize("transpose", DataBytes(encoding, columns, rows), out.size()));
  ASSIGN_OR_RETURN(const HostBytes host, HostBytes::Of(gpu, data));
  if (width == 8) {
    TransposeBytes(host.data(), rows, columns, out.data());
  } else {
    TransposeNibbles(host.data(), rows, columns, out.data());
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> Matrix::ScaleLayoutBytes(ScaleLayout layout, std::optional<Plane> operand) const {
  ASSIGN_OR_RETURN(const ScaleArrangement arrangement,
                   FindScaleArrangement(encoding, plane, operand.value_or(plane), rows, columns, layout));
  return arrangement.bytes();
}

absl::Status Matrix::CopyScales(ScaleLayout layout, absl::Span<uint8_t> out, std::optional<Plane> operand) const {
  ASSIGN_OR_RETURN(const ScaleArrangement arrangement,
                   FindScaleArrangement(encoding, plane, operand.value_or(plane), rows, columns, layout));
  RETURN_IF_ERROR(CheckSize("copy scales", arrangement.bytes(), out.size()));
  ASSIGN_OR_RETURN(const HostBytes host, HostBytes::Of(gpu, scales));
  ArrangeScales(arrangement, host.data(), out.data());
  return absl::OkStatus();
}

absl::Span<float> GradientView::fp32() const {
  PARAMSHARD_CHECK(type == GradientType::kFP32);
  return absl::MakeSpan(reinterpret_cast<float*>(data.data()), rows * columns);
}

absl::Span<uint16_t> GradientView::bf16() const {
  PARAMSHARD_CHECK(type == GradientType::kBF16);
  return absl::MakeSpan(reinterpret_cast<uint16_t*>(data.data()), rows * columns);
}

absl::Status GradientView::Write(absl::Span<const float> values) const {
  if (static_cast<int64_t>(values.size()) != rows * columns) {
    return absl::InvalidArgumentError(
        absl::StrCat("write gradient of ", parameter, ": want ", rows, " x ", columns, " values, got ", values.size()));
  }
  std::vector<uint16_t> rounded(type == GradientType::kBF16 ? values.size() : 0);
  std::transform(values.begin(), values.begin() + rounded.size(), rounded.begin(),
                 [](float value) { return EncodeBFloat16(value); });
  const void* source = type == GradientType::kBF16 ? static_cast<const void*>(rounded.data()) : values.data();
  if (gpu >= 0) {
    return internal::CopyToGpu(gpu, absl::MakeConstSpan(static_cast<const uint8_t*>(source), data.size()), data.data());
  }
  if (!data.empty()) std::memcpy(data.data(), source, data.size());
  return absl::OkStatus();
}

// --- GatheredUnit

GatheredUnit::Impl::~Impl() {
  if (released_) return;
  if (stream_.has_value()) {
    session_->gathers().ReleaseOn(ticket_, *stream_).IgnoreError();
  } else {
    session_->gathers().Release(ticket_);
  }
}

absl::Status GatheredUnit::Impl::Wait() {
  if (!complete_) {
    RETURN_IF_ERROR(session_->gathers().Await(ticket_));
    complete_ = true;
  } else if (stream_.has_value()) {
    RETURN_IF_ERROR(session_->gathers().Synchronize(*stream_));
  }
  return session_->status();
}

absl::Status GatheredUnit::Impl::WaitOn(internal::GpuStream stream, internal::Followers followers) {
  if (!complete_) {
    RETURN_IF_ERROR(session_->gathers().Await(ticket_, stream, followers));
    followers_ = followers;
  } else if (stream_.has_value() && *stream_ != stream) {
    if (followers_ == internal::Followers::kNone) {
      return absl::FailedPreconditionError("wait: another stream waits for the unit alone");
    }
    RETURN_IF_ERROR(session_->gathers().Follow(ticket_, stream));
  }
  complete_ = true;
  stream_ = stream;
  return session_->status();
}

absl::Status GatheredUnit::Impl::ReleaseOn(internal::GpuStream stream) {
  released_ = true;
  return session_->gathers().ReleaseOn(ticket_, stream);
}

absl::Status GatheredUnit::Impl::CheckPlane(const ParameterSpec& spec, Plane plane) const {
  const Format format = EncodingOf(spec.encoding).format;
  if (Brings(format, plane, ticket_.phase)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("get ", spec.name, ": the ",
                                                 plane == Plane::kRowWise ? "row-wise" : "column-wise",
                                                 " plane of format ", FormatName(format), " was not gathered"));
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
  RETURN_IF_ERROR(session_->CheckProcess());
  if (!complete_) {
    // When the epoch's end made Wait fail, the caller made no mistake.
    RETURN_IF_ERROR(session_->status());
    return absl::FailedPreconditionError(absl::StrCat("get ", parameter_name, ": a successful Wait is required first"));
  }
  ASSIGN_OR_RETURN(const int parameter, names().FindParameter(ticket_.unit, parameter_name));
  const ParameterSpec& spec = Spec(parameter);
  const Encoding encoding = EncodingOf(spec.encoding);
  const Plane plane = wanted.value_or(MainPlane(encoding.format, ticket_.phase));
  RETURN_IF_ERROR(CheckPlane(spec, plane));
  const internal::PlaneBytes bytes = session_->gathers().Bytes(ticket_, parameter, plane);
  return Matrix{.rows = spec.rows(),
                .columns = spec.columns(),
                .encoding = encoding,
                .plane = plane,
                .data = bytes.data,
                .scales = Scales(parameter, plane, bytes),
                .amax = bytes.amax,
                .gpu = session_->gpu()};
}

namespace {

absl::Status Released() { return absl::FailedPreconditionError("gathered unit: already released"); }

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

absl::StatusOr<int> UnitGradients::Impl::FindTrainable(absl::string_view operation, absl::string_view name) const {
  ASSIGN_OR_RETURN(const int parameter, session_->names().FindParameter(ticket_.unit, name));
  if (session_->spec().units[ticket_.unit].parameters[parameter].trainable) return parameter;
  return absl::InvalidArgumentError(absl::StrCat(operation, " ", name, ": the parameter is frozen"));
}

absl::StatusOr<GradientView> UnitGradients::Impl::Get(absl::string_view parameter_name) const {
  RETURN_IF_ERROR(session_->CheckProcess());
  ASSIGN_OR_RETURN(const int parameter, FindTrainable("get gradient of", parameter_name));
  return session_->gradients().View(ticket_, parameter);
}

absl::Status UnitGradients::Impl::MarkAbsent(absl::string_view parameter_name) {
  ASSIGN_OR_RETURN(const int parameter, FindTrainable("mark absent", parameter_name));
  const auto place = std::lower_bound(absent_.begin(), absent_.end(), parameter);
  if (place == absent_.end() || *place != parameter) absent_.insert(place, parameter);
  return absl::OkStatus();
}

absl::Status UnitGradients::Impl::Push() {
  pushed_ = true;
  return session_->gradients().Push(ticket_, absent_, worker_);
}

absl::Status UnitGradients::Impl::PushOn(internal::GpuStream stream) {
  worker_ = stream;
  return Push();
}

namespace {

absl::Status Pushed() { return absl::FailedPreconditionError("gradients: the slot was already pushed"); }

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
  RETURN_IF_ERROR(impl_->CheckPush());
  const std::unique_ptr<Impl> impl = std::move(impl_);
  return impl->Push();
}

// --- PendingCommit

PendingCommit::PendingCommit(std::shared_ptr<internal::Session> session, int64_t commit_number)
    : session_(std::move(session)), commit_number_(commit_number) {}

absl::StatusOr<StepResult> PendingCommit::Wait() { return session_->commits().Await(commit_number_); }

bool PendingCommit::Ready() const { return session_->commits().IsReady(commit_number_); }

// --- Model

Model::Model(std::shared_ptr<internal::Session> session) : session_(std::move(session)) {}
Model::Model(Model&&) noexcept = default;

Model& Model::operator=(Model&& other) noexcept {
  if (this != &other) {
    // A pending commit may keep the session alive, but it must not stay attached.
    if (session_ != nullptr) session_->Detach().IgnoreError();
    session_ = std::move(other.session_);
  }
  return *this;
}

Model::~Model() {
  if (session_ != nullptr) session_->Detach().IgnoreError();
}

absl::StatusOr<GatheredUnit> Model::Gather(absl::string_view unit, Phase phase) {
  ASSIGN_OR_RETURN(const internal::GatherTicket ticket, session_->gathers().Gather(unit, phase));
  return GatheredUnit(std::make_unique<GatheredUnit::Impl>(session_, ticket));
}

absl::Status Model::CanGather(absl::string_view unit, Phase phase) const {
  return session_->gathers().CanGather(unit, phase);
}

absl::StatusOr<std::vector<int>> Model::SlotsOf(absl::string_view unit, Phase phase) const {
  return session_->gathers().SlotsOf(unit, phase);
}

absl::StatusOr<UnitGradients> Model::Gradients(absl::string_view unit) {
  ASSIGN_OR_RETURN(const internal::GradientTicket ticket, session_->gradients().Take(unit));
  return UnitGradients(std::make_unique<UnitGradients::Impl>(session_, ticket, std::nullopt));
}

absl::Status Model::PushGradients(absl::string_view unit, absl::Span<const ConstGradient> values) {
  return session_->gradients().PushValues(unit, values);
}

absl::StatusOr<PendingCommit> Model::Commit(const CommitOptions& options) {
  ASSIGN_OR_RETURN(const int64_t commit_number, session_->Commit(options));
  return PendingCommit(session_, commit_number);
}

absl::Status Model::Discard() { return session_->Discard(); }

int64_t Model::commit_number() const { return session_->started().commit_number(); }
int64_t Model::version() const { return session_->started().version(); }
const std::string& Model::client_state() const { return session_->started().client_state(); }

std::optional<StepResult> Model::last_result() const { return session_->commits().last_result(); }

int64_t Model::epoch() const { return session_->started().epoch(); }
int Model::rank() const { return session_->rank(); }
int Model::world_size() const { return session_->started().world_size(); }
int Model::active_rank() const { return session_->started().active_rank(); }
int Model::active_world_size() const { return session_->started().active_world_size(); }
int Model::shard_size() const { return session_->layout().ranks(); }
const ModelSpec& Model::spec() const { return session_->spec(); }

int Model::gpu() const { return session_->gpu(); }
int64_t Model::gathered_bytes() const { return session_->gathers().gathered_bytes(); }
std::shared_ptr<const void> Model::KeepMapped() const { return internal::Session::KeepMapped(session_); }
absl::Status Model::status() const { return session_->status(); }
absl::Status Model::Detach() { return session_->Detach(); }

}  // namespace paramshard
