#include "server/mirrors/mirrored_model.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"

namespace paramshard::server {
namespace {

constexpr int kMostThreads = 16;

std::string CommitText(const std::optional<wire::PublishedVersion>& version) {
  return version.has_value() ? absl::StrCat("commit ", version->commit_number) : "no commit";
}

}  // namespace

absl::StatusOr<std::shared_ptr<MirroredModel>> MirroredModel::Create(Layout layout, uint64_t spec_fingerprint,
                                                                     uint64_t layout_fingerprint,
                                                                     absl::Span<ComputeDevice* const> devices,
                                                                     const Publication::Options& publication) {
  ASSIGN_OR_RETURN(std::shared_ptr<Publication> made, Publication::Create(publication));
  std::shared_ptr<MirroredModel> model(
      new MirroredModel(std::move(layout), spec_fingerprint, layout_fingerprint, std::move(made), publication.metrics));
  const bool on_gpus = absl::c_any_of(devices, [](const ComputeDevice* device) { return !device->gpu_uuid().empty(); });
  model->copies_ = on_gpus ? 1 : 2;
  for (int rank = 0; rank < model->layout_.ranks(); ++rank) {
    const int64_t bytes = model->layout_.arena_bytes(rank);
    ComputeDevice& device = *devices[rank % devices.size()];
    ASSIGN_OR_RETURN(Memory planes, device.Allocate("paramshard-mirror", model->copies_ * bytes, Sharing::kReadOnly));
    Copies& copies = model->ranks_.emplace_back(Copies{.device = &device, .planes = std::move(planes)});
    model->plane_bytes_ += bytes;
    if (!on_gpus) continue;
    ASSIGN_OR_RETURN(copies.staging, Memory::Allocate("paramshard-staging", bytes, Sharing::kPrivate));
    ASSIGN_OR_RETURN(copies.open_staging, device.OpenHostMemory(copies.staging));
    for (auto& queue : copies.queues) {
      ASSIGN_OR_RETURN(queue, device.MakeQueue());
    }
  }
  model->publication_->Publish([]() -> absl::StatusOr<wire::PublishedVersion> {
    return absl::UnavailableError("the mirror has received no version yet");
  });
  return model;
}

MirroredModel::MirroredModel(Layout layout, uint64_t spec_fingerprint, uint64_t layout_fingerprint,
                             std::shared_ptr<Publication> publication, MetricRegistry* metrics)
    : layout_(std::move(layout)),
      spec_fingerprint_(spec_fingerprint),
      layout_fingerprint_(layout_fingerprint),
      publication_(std::move(publication)),
      metrics_(*metrics),
      activated_at_(SteadyNow()) {}

PublishedPlanes MirroredModel::published() const {
  PublishedPlanes published{.owner = shared_from_this(),
                            .layout = &layout_,
                            .layout_fingerprint = layout_fingerprint_,
                            .publication = publication_,
                            .ranks = {},
                            .copies = copies_};
  for (const Copies& rank : ranks_) {
    published.ranks.push_back({.planes = &rank.planes, .gpu_uuid = rank.device->gpu_uuid()});
  }
  return published;
}

void MirroredModel::BeginStaging() {
  absl::MutexLock activating(&activating_);
  absl::MutexLock lock(&mu_);
  staged_.reset();
}

absl::Span<uint8_t> MirroredModel::staging(int rank) const {
  const Copies& copies = ranks_[rank];
  const int64_t bytes = layout_.arena_bytes(rank);
  if (copies_ == 1) return absl::MakeSpan(copies.staging.data(), bytes);
  return absl::MakeSpan(copies.planes.data() + publication_->next_generation() % copies_ * bytes, bytes);
}

void MirroredModel::Stage(const wire::PublishedVersion& version) {
  absl::MutexLock lock(&mu_);
  staged_ = version;
}

absl::Status MirroredModel::CheckStaged(int64_t commit_number) const {
  if (staged_.has_value() && staged_->commit_number == commit_number) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("activate ", layout_.spec().name, ": want commit ", commit_number,
                                                    " staged, got ", CommitText(staged_), " staged and ",
                                                    CommitText(active_), " active"));
}

absl::Status MirroredModel::MakeStagedActive(ThreadPool* pool) {
  const MetricTimer timer(metrics_, Metric::kMirrorVersion, MirrorPhase::kActivate);
  const Publication::Writing writing(*publication_, Publication::Hold::kBounded);
  if (pool == nullptr) return absl::OkStatus();
  return pool->Run(layout_.ranks() * kParts, [this](int, int64_t index) {
    const Copies& copies = ranks_[index / kParts];
    const int64_t part = index % kParts;
    const int64_t begin = copies.staging.size_bytes() * part / kParts;
    const int64_t end = copies.staging.size_bytes() * (part + 1) / kParts;
    return copies.queues[part]->Copy({{copies.planes.data() + begin, copies.staging.data() + begin, end - begin}});
  });
}

absl::Status MirroredModel::Activate(std::optional<int64_t> commit_number) {
  absl::MutexLock activating(&activating_);
  wire::PublishedVersion version;
  {
    absl::MutexLock lock(&mu_);
    if (commit_number.has_value()) {
      const bool is_active = active_.has_value() && active_->commit_number == *commit_number;
      const bool is_staged = staged_.has_value() && staged_->commit_number == *commit_number;
      if (is_active && !is_staged) return absl::OkStatus();
      RETURN_IF_ERROR(CheckStaged(*commit_number));
    }
    if (!staged_.has_value()) return absl::OkStatus();
    version = *staged_;
  }
  // Before readers wait: an error leaves them what they have. The version is received again.
  absl::StatusOr<std::unique_ptr<ThreadPool>> pool = nullptr;
  if (copies_ == 1) pool = ThreadPool::Start("an activation", std::min(layout_.ranks() * kParts, kMostThreads));
  if (!pool.ok()) {
    absl::MutexLock lock(&mu_);
    staged_.reset();
    return pool.status();
  }
  const absl::Status copied = MakeStagedActive(pool->get());
  publication_->Publish([&]() -> absl::StatusOr<wire::PublishedVersion> {
    if (copied.ok()) return version;
    return absl::UnavailableError(absl::StrCat("the mirror has no whole version: ", copied.message()));
  });
  absl::MutexLock lock(&mu_);
  active_ = copied.ok() ? std::optional(version) : std::nullopt;
  staged_.reset();
  activated_at_ = SteadyNow();
  return copied;
}

std::optional<wire::PublishedVersion> MirroredModel::active() const {
  absl::MutexLock lock(&mu_);
  return active_;
}

std::optional<wire::PublishedVersion> MirroredModel::staged() const {
  absl::MutexLock lock(&mu_);
  return staged_;
}

absl::Duration MirroredModel::age() const {
  absl::MutexLock lock(&mu_);
  return active_.has_value() ? absl::FromChrono(SteadyNow() - activated_at_) : absl::ZeroDuration();
}

}  // namespace paramshard::server
