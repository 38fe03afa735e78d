#include "server/restores/model_restore.h"

#include <unistd.h>

#include <filesystem>
#include <vector>

#include "kernels/base/status_macros.h"

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

Model::RestoreWatch ModelRestore::Watch(RestorePeers* peers) const {
  return {.progress =
              [restorer = restorer_.get()] {
                const Restorer::Progress progress = restorer->progress();
                return Model::RestoreProgress{.done_bytes = progress.done_bytes, .all_bytes = progress.all_bytes};
              },
          .cancel =
              [restorer = restorer_.get(), peers] {
                restorer->Cancel();
                if (peers != nullptr) peers->Cancel();
              }};
}

absl::StatusOr<History> ModelRestore::Run(absl::FunctionRef<absl::Status()> begun, RestorePeers* peers) {
  if (const World& world = turn_.model().world(); peers == nullptr && world.rank_count() != world.world_size) {
    return absl::FailedPreconditionError("restore: the other daemons of the world expected, got none");
  }
  Model::Restored restored = restorer_->restored();
  Model::RestoreSteps steps;
  steps.begin = [&] { return begun(); };
  if (peers == nullptr) {
    restored.source = source_;
  } else {
    restored.source = {.kind = ChangeSource::Kind::kCheckpoint, .text = {}};
    restored.history = peers->history();
    steps.begin = [&]() -> absl::Status {
      RETURN_IF_ERROR(begun());
      return peers->Begin();
    };
    steps.conclude = [&] { return peers->Conclude(*restorer_); };
  }
  absl::StatusOr<History> history = turn_.model().Restore(
      restored, [&] { return Write(peers); }, Watch(peers), steps);
  if (peers != nullptr) peers->Finish(history.status());
  return history;
}

// The sums are those of all ranks: who has peers compares them together with theirs.
absl::Status ModelRestore::Write(const RestorePeers* peers) {
  RETURN_IF_ERROR(restorer_->Write());
  return peers == nullptr ? restorer_->Check(restorer_->content(), replicas()) : absl::OkStatus();
}

}  // namespace paramshard::server
