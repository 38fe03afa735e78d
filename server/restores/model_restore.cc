#include "server/restores/model_restore.h"

#include <unistd.h>

#include <filesystem>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "proto/model/names.h"

namespace paramshard::server {
namespace {

// The sums of the content are those of all ranks, and other daemons' are not told here.
absl::Status CheckHasAllRanks(const Model& model) {
  if (model.world().rank_count() == model.world().world_size) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat("restore ", DisplayName(model.spec().name),
                                               ": a world of one daemon expected, got ranks of several daemons"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<ModelRestore>> ModelRestore::Prepare(std::shared_ptr<Model> model,
                                                                    const std::string& folder,
                                                                    const RestorePlan::Options& options) {
  RETURN_IF_ERROR(CheckHasAllRanks(*model));
  ASSIGN_OR_RETURN(ImportTurn turn, ImportTurn::Begin(std::move(model)));
  return Prepare(std::move(turn), folder, options);
}

absl::StatusOr<std::unique_ptr<ModelRestore>> ModelRestore::Prepare(ImportTurn turn, const std::string& folder,
                                                                    const RestorePlan::Options& options) {
  RETURN_IF_ERROR(CheckHasAllRanks(turn.model()));
  ASSIGN_OR_RETURN(checkpoint::Reader reader, checkpoint::Reader::Open(folder, {.owner = geteuid()}));
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

absl::StatusOr<History> ModelRestore::Run(absl::FunctionRef<absl::Status()> begun) {
  const Model::RestoreWatch watch{.progress =
                                      [restorer = restorer_.get()] {
                                        const Restorer::Progress progress = restorer->progress();
                                        return Model::RestoreProgress{.done_bytes = progress.done_bytes,
                                                                      .all_bytes = progress.all_bytes};
                                      },
                                  .cancel = [restorer = restorer_.get()] { restorer->Cancel(); }};
  const auto write = [&]() -> absl::Status {
    RETURN_IF_ERROR(begun());
    return Write();
  };
  Model::Restored restored = restorer_->restored();
  restored.source = source_;
  return turn_.model().Restore(restored, write, watch);
}

absl::Status ModelRestore::Write() {
  RETURN_IF_ERROR(restorer_->Write());
  const Model& model = turn_.model();
  return restorer_->Check(restorer_->content(), model.world().world_size / model.topology().shard_size());
}

}  // namespace paramshard::server
