#include "server/mirrors/model_follower.h"

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/model/layout_fingerprint.h"
#include "common/model/limits.h"
#include "common/model/model_spec_proto.h"
#include "common/model/names.h"
#include "common/rpc/durations.h"
#include "kernels/base/status_macros.h"
#include "server/base/thread.h"
#include "server/mirrors/plane_versions.h"
#include "server/observe/log.h"

namespace paramshard::server {
namespace {

constexpr absl::Duration kRetry = absl::Seconds(1);
// Some misses are usual where commits come fast; more are shown, and node 0 is asked in the mirror's own time.
constexpr int kManyMisses = 16;
constexpr size_t kMostErrorBytes = 1024;

absl::StatusOr<Layout> LayoutOf(absl::string_view model, const v1::DescribeModelResponse& described) {
  absl::StatusOr<ModelSpec> spec = ParseModelSpec(described.spec());
  if (!spec.ok()) {
    return absl::FailedPreconditionError(absl::StrCat("node 0's spec is not supported here (", spec.status().message(),
                                                      "); use the same version for mirrors and daemons"));
  }
  if (spec->name != model) {
    return absl::InternalError(absl::StrCat("want a description of ", model, ", got one of ", DisplayName(spec->name)));
  }
  if (described.shard_size() < 1 || described.shard_size() > kMaxShardSize) {
    return absl::InternalError(
        absl::StrCat("want a shard group of 1 to ", kMaxShardSize, " ranks, got ", described.shard_size()));
  }
  Layout layout(*std::move(spec), described.shard_size());
  if (LayoutFingerprint(layout) == described.layout_fingerprint()) return layout;
  return absl::FailedPreconditionError(
      "node 0 computes a different layout; use the same version for mirrors and daemons");
}

absl::Status CheckOwners(const std::vector<PlanesOwner>& owners, int ranks) {
  int next = 0;
  for (const PlanesOwner& owner : owners) {
    if (owner.first_rank != next || owner.ranks < 1 || owner.ranks > ranks - next) break;
    next += owner.ranks;
  }
  if (next == ranks && !owners.empty()) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("want owners of ", ranks, " ranks in order, got owners of ", next));
}

int64_t BytesOf(const Layout& layout) {
  int64_t bytes = 0;
  for (int rank = 0; rank < layout.ranks(); ++rank) bytes += layout.arena_bytes(rank);
  return bytes;
}

}  // namespace

std::string ErrorText(const absl::Status& error) {
  std::string text = error.ToString();
  if (!IsUtf8(text)) text = absl::CHexEscape(text);
  if (text.size() <= kMostErrorBytes) return text;
  constexpr absl::string_view kCut = "...";
  size_t end = kMostErrorBytes - kCut.size();
  while ((static_cast<uint8_t>(text[end]) & 0xc0) == 0x80) --end;  // within a character
  return absl::StrCat(absl::string_view(text).substr(0, end), kCut);
}

absl::StatusOr<std::unique_ptr<ModelFollower>> ModelFollower::Start(Options options) {
  std::unique_ptr<ModelFollower> follower(new ModelFollower(std::move(options)));
  ASSIGN_OR_RETURN(follower->thread_, StartThread("a mirrored model", [self = follower.get()] { self->Run(); }));
  return follower;
}

ModelFollower::~ModelFollower() {
  {
    absl::MutexLock lock(&mu_);
    stopped_ = true;
    changed_.SignalAll();
  }
  receiver_.Stop();
  if (thread_.joinable()) thread_.join();
}

void ModelFollower::Follow(const v1::AskVersionsResponse::Named& named) {
  const absl::StatusOr<wire::PublishedVersion> version = FromProto(named.version());
  absl::MutexLock lock(&mu_);
  if (!version.ok()) {
    last_error_ = ErrorText(version.status());
    return;
  }
  const bool is_new = !wanted_.has_value() || !IsSameState(wanted_->version, *version);
  wanted_ = Target{.version = *version,
                   .named_at = is_new ? SteadyNow() : wanted_->named_at,
                   .spec_fingerprint = named.spec_fingerprint(),
                   .layout_fingerprint = named.layout_fingerprint()};
  asks_ = missed_.has_value();
  if (Due().has_value()) changed_.SignalAll();
}

std::optional<v1::AskVersionsRequest::Missed> ModelFollower::TakeMissed() {
  absl::MutexLock lock(&mu_);
  return std::exchange(missed_, std::nullopt);
}

void ModelFollower::End(absl::string_view why) {
  const std::shared_ptr<MirroredModel> ended = model();
  if (ended == nullptr) return;
  ended->End(why);
  if (options_.left_readers != nullptr) options_.left_readers->Watch(options_.model, ended->published().publication);
}

std::shared_ptr<MirroredModel> ModelFollower::model() const {
  absl::MutexLock lock(&mu_);
  return model_;
}

std::optional<ModelFollower::Target> ModelFollower::Due() const {
  if (!wanted_.has_value() || asks_ || SteadyNow() < retry_at_) return std::nullopt;
  if (model_ == nullptr) return wanted_;
  const auto is_wanted = [&wanted = *wanted_](const std::optional<wire::PublishedVersion>& version) {
    return version.has_value() && IsSameState(*version, wanted.version);
  };
  const std::optional<wire::PublishedVersion> staged = model_->staged();
  if (is_wanted(model_->active()) || is_wanted(staged)) return std::nullopt;
  // A staged version waits for its activation, unless the model has another history by now.
  const bool waits = staged.has_value() && staged->history() == wanted_->version.history();
  return !options_.activates && waits ? std::nullopt : wanted_;
}

std::optional<ModelFollower::Target> ModelFollower::AwaitDue() {
  absl::MutexLock lock(&mu_);
  while (!stopped_) {
    if (std::optional<Target> target = Due()) return target;
    // Without a retry at hand, until somebody signals.
    SteadyNow() < retry_at_ ? void(changed_.WaitUntil(&mu_, retry_at_)) : changed_.Wait(&mu_);
  }
  return std::nullopt;
}

void ModelFollower::Run() {
  while (const std::optional<Target> target = AwaitDue()) Note(*target, Receive(*target));
}

void ModelFollower::Note(const Target& target, const absl::Status& status) {
  // Owners may have other addresses when they are back.
  if (!status.ok() && !absl::IsAborted(status)) owners_.clear();
  const bool is_missed = absl::IsAborted(status) || absl::IsDeadlineExceeded(status);
  const std::string error = ErrorText(status);
  bool hurries = false;
  {
    absl::MutexLock lock(&mu_);
    if (status.ok()) {
      misses_ = 0;
      return last_error_.clear();
    }
    if (stopped_) return;
    asks_ = is_missed;
    if (is_missed) {
      missed_.emplace().set_model(options_.model);
      *missed_->mutable_version() = ToProto(target.version);
      missed_->set_timed_out(absl::IsDeadlineExceeded(status));
      hurries = ++misses_ < kManyMisses;
      if (!hurries) last_error_ = absl::StrCat("missed ", misses_, " versions: ", error);
    } else {
      retry_at_ = SteadyDeadline(kRetry);
      if (std::exchange(last_error_, error) == error) return;
    }
  }
  // Without the lock: the callee asks this object.
  if (hurries) options_.on_missed();
  if (is_missed) return;
  Log(LogLevel::kWarning, "mirror did not receive a version",
      {{"model", options_.model}, {"commit", absl::StrCat(target.version.commit_number)}, {"why", error}});
}

absl::Status ModelFollower::Receive(const Target& target) {
  RETURN_IF_ERROR(Open(target));
  const std::shared_ptr<MirroredModel> model = this->model();
  model->BeginStaging();
  ASSIGN_OR_RETURN(const wire::PublishedVersion version,
                   receiver_.Receive(owners_, target.version, *model, target.named_at));
  model->Stage(version);
  return options_.activates ? model->Activate(std::nullopt) : absl::OkStatus();
}

absl::Status ModelFollower::Open(const Target& target) {
  const std::shared_ptr<MirroredModel> present = model();
  const bool is_open = present != nullptr && present->spec_fingerprint() == target.spec_fingerprint &&
                       present->layout_fingerprint() == target.layout_fingerprint;
  if (is_open && !owners_.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const v1::DescribeModelResponse described, options_.source->DescribeModel(options_.model));
  if (!is_open) RETURN_IF_ERROR(MakeRoom(described));
  std::vector<PlanesOwner> owners;
  for (const v1::DescribeModelResponse::Owner& owner : described.owners()) {
    owners.push_back({.address = owner.address().empty() ? options_.source->address() : owner.address(),
                      .channel = options_.source->Open(owner.address()),
                      .first_rank = owner.first_rank(),
                      .ranks = owner.ranks()});
  }
  RETURN_IF_ERROR(CheckOwners(owners, model()->layout().ranks()));
  owners_ = std::move(owners);
  return absl::OkStatus();
}

absl::Status ModelFollower::MakeRoom(const v1::DescribeModelResponse& described) {
  ASSIGN_OR_RETURN(Layout layout, LayoutOf(options_.model, described));
  const int64_t needed = 2 * BytesOf(layout);
  if (options_.memory_limit_bytes > 0 && needed > options_.memory_limit_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat("mirror ", options_.model, ": two copies take ", needed,
                                                     " bytes, --memory-limit allows ", options_.memory_limit_bytes));
  }
  End(absl::StrCat("model ", options_.model, " was made anew"));
  {
    absl::MutexLock lock(&mu_);
    model_ = nullptr;
  }
  ASSIGN_OR_RETURN(std::shared_ptr<MirroredModel> made,
                   MirroredModel::Create(std::move(layout), described.spec_fingerprint(),
                                         described.layout_fingerprint(), options_.devices, options_.publication));
  absl::MutexLock lock(&mu_);
  model_ = std::move(made);
  return absl::OkStatus();
}

absl::Status ModelFollower::Activate(int64_t commit_number) {
  const std::shared_ptr<MirroredModel> model = this->model();
  if (model == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat("activate ", options_.model, ": nothing is received yet"));
  }
  const absl::Status status = model->Activate(commit_number);
  const std::optional<wire::PublishedVersion> staged = model->staged();
  if (!status.ok() && staged.has_value() && staged->commit_number < commit_number) model->BeginStaging();
  absl::MutexLock lock(&mu_);
  changed_.SignalAll();
  return status;
}

v1::MirrorReport ModelFollower::Report() const {
  v1::MirrorReport report;
  report.set_mirror(options_.mirror);
  report.set_model(options_.model);
  absl::MutexLock lock(&mu_);
  report.set_last_error(last_error_);
  if (model_ == nullptr) return report;
  if (const auto active = model_->active()) *report.mutable_active() = ToProto(*active);
  if (const auto staged = model_->staged()) *report.mutable_staged() = ToProto(*staged);
  report.set_plane_bytes(model_->plane_bytes());
  *report.mutable_age() = DurationToProto(model_->age());
  return report;
}

}  // namespace paramshard::server
