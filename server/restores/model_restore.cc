#include "server/restores/model_restore.h"

#include <unistd.h>

#include <filesystem>
#include <vector>

#include "kernels/base/status_macros.h"
#include "server/restores/no_peers.h"

namespace paramshard::server {
absl::StatusOr<std::unique_ptr<ModelRestore>> ModelRestore::Prepare(std::shared_ptr<Model> model,
                                                                    const std::string& folder,
                                                                    const RestorePlan::Options& options) {
  ASSIGN_OR_RETURN(ImportTurn turn, ImportTurn::BeginRestore(std::move(model)));
  return Prepare(std::move(turn), folder, options);
}

absl::StatusOr<std::unique_ptr<ModelRestore>> ModelRestore::Prepare(ImportTurn turn, const std::string& folder,
                                                                    const RestorePlan::Options& options) {
  // Many threads read each file once, from end to end.
  constexpr auto kPageCache = safetensors::RegularFile::PageCache::kAvoided;
  ASSIGN_OR_RETURN(checkpoint::Reader reader,
                   checkpoint::Reader::Open(folder, {.owner = geteuid(), .page_cache = kPageCache}));
  ChangeSource source{.kind = ChangeSource::Kind::kCheckpoint,
                      .text = std::filesystem::absolute(folder),
                      .convert_moments = options.convert_moments};
  std::unique_ptr<ModelRestore> restore(new ModelRestore(std::move(turn), std::move(source), std::move(reader)));
  const Model& restored = restore->turn_.model();
  ASSIGN_OR_RETURN(RestorePlan plan, RestorePlan::Create(restored.spec(), restore->reader_.spec(), options));
  std::vector<Shard*> shards;
  for (const auto& shard : restored.shards()) shards.push_back(shard.get());
  ASSIGN_OR_RETURN(restore->restorer_, Restorer::Create({.reader = &restore->reader_,
                                                         .plan = std::move(plan),
                                                         .spec = &restored.spec(),
                                                         .shards = std::move(shards),
                                                         .first_rank = restored.world().first_rank}));
  return restore;
}

int ModelRestore::replicas() const { return turn_.model().world().world_size / turn_.model().topology().shard_size(); }

Model::RestoreWatch ModelRestore::Watch(RestorePeers& peers) const {
  return {.progress =
              [restorer = restorer_.get(), &peers] {
                const Restorer::Progress progress = peers.Whole(restorer->progress());
                return Model::RestoreProgress{.done_bytes = progress.done_bytes, .all_bytes = progress.all_bytes};
              },
          .cancel =
              [restorer = restorer_.get(), &peers] {
                restorer->Cancel();
                peers.Cancel();
              }};
}

absl::StatusOr<History> ModelRestore::Run(absl::FunctionRef<absl::Status()> begun, RestorePeers& peers) {
  Model::Restored restored = restorer_->restored();
  restored.source = source_;
  if (!peers.can_redo()) restored.source.text.clear();
  restored.history = peers.history();
  const Model::RestoreSteps steps{.begin = [&]() -> absl::Status {
                                    RETURN_IF_ERROR(begun());
                                    return peers.Begin();
                                  },
                                  .goes_on = [&]() -> absl::Status {
                                    RETURN_IF_ERROR(peers.CheckGoesOn());
                                    return restorer_->CheckGoesOn();
                                  },
                                  .conclude = [&] { return peers.Conclude(*restorer_); }};
  return turn_.model().Restore(
      restored, [&] { return peers.Write(*restorer_); }, Watch(peers), steps);
}

absl::StatusOr<History> ModelRestore::Run(absl::FunctionRef<absl::Status()> begun) {
  if (const World& world = turn_.model().world(); world.rank_count() != world.world_size) {
    return absl::FailedPreconditionError("restore: the other daemons of the world expected, got none");
  }
  NoPeers nobody(replicas());
  return Run(begun, nobody);
}

}  // namespace paramshard::server
