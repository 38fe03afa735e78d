#include "server/checkpoints/daemon_images.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/base/disk.h"
#include "server/base/thread_pool.h"
#include "server/models/pinned_state.h"

namespace paramshard::server {

namespace {

// Copies from a GPU wait for its link alone: with four threads one is always ready to begin. Elsewhere a thread copies
// some GB/s: many threads work for as long as a copy takes, and leave an eighth of the processors to the trainers.
int CopyThreads(const ComputeDevice& device, int ranks) {
  constexpr int kGpuThreads = 4;
  constexpr int kMostThreads = 12;
  if (device.id().kind == DeviceKind::kCuda) return kGpuThreads;
  const int processors = static_cast<int>(std::thread::hardware_concurrency());
  return std::clamp(processors * 7 / 8 / ranks, 1, kMostThreads);
}

}  // namespace

checkpoint::World WorldOf(const Layout& layout, const World& world) {
  return {.size = world.world_size, .shard_size = layout.ranks()};
}

absl::StatusOr<std::unique_ptr<DaemonImages>> DaemonImages::Create(Model& model, DiskCalls* calls,
                                                                   std::function<void(int rank)> before_copy) {
  auto images = std::unique_ptr<DaemonImages>(new DaemonImages(model, calls, std::move(before_copy)));
  ASSIGN_OR_RETURN(images->images_, images->Allocate(/*alone=*/false));
  for (const auto& image : images->images_) images->memory_bytes_ += image->size_bytes();
  return images;
}

absl::StatusOr<DaemonImages::Images> DaemonImages::Allocate(bool alone) const {
  const World& world = model_.world();
  Images images;
  for (int rank = 0; rank < world.rank_count(); ++rank) {
    ASSIGN_OR_RETURN(images.emplace_back(),
                     StateImage::Create(model_.layout(), WorldFor(alone), (alone ? 0 : world.first_rank) + rank,
                                        model_.committed().shards[rank]->memory().device()));
  }
  return images;
}

absl::Status DaemonImages::Select(bool alone) {
  if (alone == this->alone()) return absl::OkStatus();
  Images own;
  if (alone) {
    ASSIGN_OR_RETURN(own, Allocate(alone));
  }
  own_images_ = std::move(own);
  int64_t bytes = 0;
  for (const Images* const images : {&images_, &own_images_}) {
    for (const auto& image : *images) bytes += image->size_bytes();
  }
  memory_bytes_ = bytes;
  return absl::OkStatus();
}

checkpoint::World DaemonImages::WorldFor(bool alone) const {
  checkpoint::World world = WorldOf(model_.layout(), model_.world());
  if (alone) world.size = model_.world().rank_count();
  return world;
}

int64_t DaemonImages::file_bytes() const {
  int64_t bytes = 0;
  for (const auto& image : images()) {
    for (int i = 0; i < image->file_count(); ++i) bytes += static_cast<int64_t>(image->Bytes(i).size());
  }
  return bytes;
}

absl::Status DaemonImages::Fill(const HeldState& state, CheckContinue check) {
  const absl::Cleanup release = [this] { model_.copies().EndCopies(); };
  return OnAllRanks("a copy for a save", ranks(), [&](int rank) {
    before_copy_(rank);
    const absl::Status copied = FillRank(state, rank, check);
    model_.copies().EndCopy(rank);
    return copied;
  });
}

absl::Status DaemonImages::FillRank(const HeldState& state, int rank, CheckContinue check) {
  const PinnedState pinned = PinnedState::At("save", model_.spec().name, state.numbers, state.generation);
  const auto check_shard = [&](const Shard& shard) ABSL_SHARED_LOCKS_REQUIRED(shard.mutex()) {
    RETURN_IF_ERROR(check());
    if (model_.copies().is_given_up()) {
      return absl::AbortedError(
          absl::StrCat("save ", model_.spec().name, ": the copy timed out: the next commit did not wait any longer"));
    }
    return pinned.Check(shard);
  };
  const Shard& shard = *model_.committed().shards[rank];
  return images()[rank]->Fill(shard, state.commits.client_states[rank], check_shard,
                              CopyThreads(shard.memory().device(), ranks()));
}

absl::StatusOr<PartReport> DaemonImages::Write(const std::string& model_folder, const SaveIdentity& identity,
                                               CheckContinue check) {
  const StagingDirectory directory(Disk(calls_), model_folder, identity);
  // Each rank has two threads: one writes, the other one hashes and ends first.
  RETURN_IF_ERROR(OnAllRanks("files of a save", 2 * ranks(), [&](int work) {
    return work < ranks() ? WriteRank(directory, work, check) : images()[work - ranks()]->Hash(check);
  }));
  std::vector<const StateImage*> images;
  for (const auto& image : this->images()) images.push_back(image.get());
  return directory.Finish(model_.world().cluster->node(), images);
}

absl::Status DaemonImages::WriteRank(const StagingDirectory& directory, int rank, CheckContinue check) {
  int64_t known_bytes = 0;
  return directory.WriteRank(*images()[rank], [&](int64_t written_bytes) {
    written_bytes_ += written_bytes - std::exchange(known_bytes, written_bytes);
    return check();
  });
}

}  // namespace paramshard::server
