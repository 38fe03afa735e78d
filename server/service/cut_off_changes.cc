#include "server/service/cut_off_changes.h"

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "kernels/base/status_macros.h"
#include "server/base/steady_time.h"
#include "server/base/thread.h"
#include "server/log/log.h"
#include "server/restores/model_restore.h"
#include "server/service/file_import.h"
#include "server/store/import_turn.h"

namespace paramshard::server {
namespace {

absl::Status RestoreAgain(const std::shared_ptr<Model>& model, const ChangeSource& source) {
  ASSIGN_OR_RETURN(ImportTurn turn, ImportTurn::BeginAgain(model));
  ASSIGN_OR_RETURN(const std::unique_ptr<ModelRestore> restore,
                   ModelRestore::Prepare(std::move(turn), source.text, {.convert_moments = source.convert_moments}));
  return restore->Run().status();
}

}  // namespace

absl::StatusOr<std::unique_ptr<CutOffChanges>> CutOffChanges::Start(ModelStore* store,
                                                                    std::vector<ModelStore::CutOffChange> changes) {
  std::unique_ptr<CutOffChanges> started(new CutOffChanges(store, std::move(changes)));
  if (started->changes_.empty()) return started;
  ASSIGN_OR_RETURN(started->thread_,
                   StartThread("changes that were cut off", [changes = started.get()] { changes->Run(); }));
  return started;
}

CutOffChanges::~CutOffChanges() {
  stopping_ = true;
  Await();
}

void CutOffChanges::Await() {
  if (thread_.joinable()) thread_.join();
}

// A model that is lost ends with its change.
void CutOffChanges::Run() {
  for (ModelStore::CutOffChange& cut_off : changes_) {
    const ModelStore::CutOffChange change = std::move(cut_off);
    if (stopping_) return;
    const SteadyTime begin = SteadyNow();
    const absl::Status status = Make(change);
    store_->FinishChange(change.model, status);
    if (!status.ok()) continue;
    Log(LogLevel::kInfo, "a change that was cut off is made",
        {{"model", change.model->spec().name},
         {"history", change.model->history().id.ToString()},
         {"elapsed", absl::FormatDuration(absl::FromChrono(SteadyNow() - begin))}});
  }
}

absl::Status CutOffChanges::Make(const ModelStore::CutOffChange& change) const {
  switch (change.source.kind) {
    case ChangeSource::Kind::kStream:
    case ChangeSource::Kind::kReplica:
      break;
    case ChangeSource::Kind::kFiles:
      return ImportFileAgain(change.model, change.source.text, [this] { return stopping_.load(); });
    case ChangeSource::Kind::kCheckpoint:
      return RestoreAgain(change.model, change.source);
  }
  return absl::DataLossError("an import was cut off, and whoever sent it is gone");
}

}  // namespace paramshard::server
