#include "server/checkpoints/daemon_images.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/cleanup/cleanup.h"
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

checkpoint::World DaemonsOwnWorld(const Layout& layout, const World& world) {
  return {.size = world.rank_count(), .shard_size = layout.ranks()};
}

absl::StatusOr<std::unique_ptr<DaemonImages>> DaemonImages::Create(Model& model, DiskCalls* calls,
                                                                   std::function<void(int rank)> before_copy,
                                                                   bool alone) {
  auto images = std::unique_ptr<DaemonImages>(new DaemonImages(model, calls, std::move(before_copy)));
  const checkpoint::World world =
      alone ? DaemonsOwnWorld(model.layout(), model.world()) : WorldOf(model.layout(), model.world());
  const int first_rank = alone ? 0 : model.world().first_rank;
  for (int rank = 0; rank < model.world().rank_count(); ++rank) {
    ASSIGN_OR_RETURN(auto image,
                     StateImage::Create(model.layout(), world, first_rank + rank, model.shards()[rank]->device()));
    images->images_.push_back(std::move(image));
  }
  return images;
}

int64_t DaemonImages::memory_bytes() const {
  int64_t bytes = 0;
  for (const auto& image : images_) bytes += image->size_bytes();
  return bytes;
}

int64_t DaemonImages::file_bytes() const {
  int64_t bytes = 0;
  for (const auto& image : images_) {
    for (int i = 0; i < image->file_count(); ++i) bytes += static_cast<int64_t>(image->Bytes(i).size());
  }
  return bytes;
}

absl::Status DaemonImages::Fill(const Model::HeldState& state, GoOn go_on) {
  const absl::Cleanup release = [this] { model_.ReleaseState(); };
  return OnAllRanks("a copy for a save", ranks(), [&](int rank) {
    before_copy_(rank);
    const absl::Status copied = FillRank(state, rank, go_on);
    model_.ReleaseState(rank);
    return copied;
  });
}

absl::Status DaemonImages::FillRank(const Model::HeldState& state, int rank, GoOn go_on) {
  const PinnedState pinned = PinnedState::At("save", model_.spec().name, state.numbers, state.generation);
  const auto check = [&](const Shard& shard) ABSL_SHARED_LOCKS_REQUIRED(shard.mutex()) {
    RETURN_IF_ERROR(go_on());
    RETURN_IF_ERROR(model_.CheckHeld());
    return pinned.Check(shard);
  };
  const Shard& shard = *model_.shards()[rank];
  return images_[rank]->Fill(shard, state.commits.client_states[rank], check, CopyThreads(shard.device(), ranks()));
}

absl::StatusOr<PartReport> DaemonImages::Write(const std::string& model_folder, const SaveIdentity& identity,
                                               GoOn go_on) {
  const SaveFolder folder(Disk(calls_), model_folder, identity);
  // Each rank has two threads: one writes, the other one hashes and ends first.
  RETURN_IF_ERROR(OnAllRanks("files of a save", 2 * ranks(), [&](int work) {
    return work < ranks() ? WriteRank(folder, work, go_on) : images_[work - ranks()]->Hash(go_on);
  }));
  std::vector<const StateImage*> images;
  for (const auto& image : images_) images.push_back(image.get());
  return folder.Finish(model_.world().cluster->node(), images);
}

absl::Status DaemonImages::WriteRank(const SaveFolder& folder, int rank, GoOn go_on) {
  int64_t known_bytes = 0;
  return folder.WriteRank(*images_[rank], [&](int64_t written_bytes) {
    written_bytes_ += written_bytes - std::exchange(known_bytes, written_bytes);
    return go_on();
  });
}

}  // namespace paramshard::server
