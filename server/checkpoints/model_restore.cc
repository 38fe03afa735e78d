#include "server/checkpoints/model_restore.h"

#include <unistd.h>

#include <filesystem>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/checkpoint/content_hash.h"
#include "common/model/names.h"
#include "kernels/base/status_macros.h"
#include "server/checkpoints/no_peers.h"
#include "server/observe/log.h"

namespace paramshard::server {
namespace {

// Logs a rollback: it gives up steps that were answered.
void LogRollback(LogLevel level, absl::string_view text, const Model& model, const checkpoint::Manifest& manifest,
                 int64_t from, const std::string& why) {
  Log(level, text,
      {{"model", model.spec().name},
       {"from_commit_number", absl::StrCat(from)},
       {"commit_number", absl::StrCat(manifest.step)},
       {"saved_history", checkpoint::HashText(manifest.history)},
       {"why", why}});
}

}  // namespace

absl::Status CheckGoesBack(const Model& model, const checkpoint::Manifest& manifest) {
  if (!model.usable().ok() || model.fresh()) return absl::OkStatus();
  const History history = model.history();
  if (manifest.history == history.id.value) return absl::OkStatus();
  // The checkpoint may also be the state that the history began with, but none before it: an operator may have chosen
  // it.
  const HistoryParent saved{.history = HistoryId{manifest.history}, .commit_number = manifest.step};
  if (history.parent == saved) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("restore ", DisplayName(model.spec().name), ": want a checkpoint of history ", history.id.ToString(),
                   ", got step ", manifest.step, " of history ", checkpoint::HashText(manifest.history),
                   ", which was saved last; restore the right checkpoint at node 0"));
}

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
  Model& model = turn_.model();
  const std::string rollback_why = peers.RollbackWhy(model);
  const int64_t from = model.state().numbers.commit_number;
  if (!rollback_why.empty()) {
    LogRollback(LogLevel::kWarning, "going back to a saved step", model, manifest(), from, rollback_why);
  }
  const Model::RestoreSteps steps{.begin = [&]() -> absl::Status {
                                    RETURN_IF_ERROR(begun());
                                    return peers.Begin();
                                  },
                                  .goes_on = [&]() -> absl::Status {
                                    RETURN_IF_ERROR(peers.CheckGoesOn());
                                    return restorer_->CheckGoesOn();
                                  },
                                  .conclude = [&] { return peers.Conclude(*restorer_); },
                                  .rollback_why = rollback_why};
  absl::StatusOr<History> history = model.Restore(
      restored, [&] { return peers.Write(*restorer_); }, Watch(peers), steps);
  if (history.ok() && !rollback_why.empty()) {
    LogRollback(LogLevel::kError, "went back to a saved step", model, manifest(), from, rollback_why);
  }
  return history;
}

absl::StatusOr<History> ModelRestore::Run(absl::FunctionRef<absl::Status()> begun) {
  if (const World& world = turn_.model().world(); world.rank_count() != world.world_size) {
    return absl::FailedPreconditionError("restore: other daemons hold ranks of the model too");
  }
  NoPeers nobody(replicas());
  return Run(begun, nobody);
}

}  // namespace paramshard::server
