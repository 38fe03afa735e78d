#include "server/edge/restore_calls.h"

#include <unistd.h>

#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/checkpoint/content_hash.h"
#include "common/model/model_spec_proto.h"
#include "common/model/names.h"
#include "common/rpc/durations.h"
#include "kernels/base/status_macros.h"
#include "server/base/steady_cond_var.h"
#include "server/base/steady_time.h"
#include "server/base/thread.h"
#include "server/checkpoints/model_creation.h"
#include "server/edge/trainer_messages.h"

namespace paramshard::server {
namespace {

// Interval of progress messages of a restore.
constexpr absl::Duration kProgressInterval = absl::Milliseconds(250);
// Largest name of a caller's job.
constexpr size_t kMaxRunBytes = 512;

absl::StatusOr<RestoreSource> ParseSource(const v1::RestoreSource& source, const Call& call) {
  RestoreSource parsed;
  ASSIGN_OR_RETURN(parsed.checkpoint, ParseCheckpointRequest(source.checkpoint()));
  if (parsed.checkpoint.kind == CheckpointRequest::Kind::kPath) {
    RETURN_IF_ERROR(CheckMayNameFolder(call.caller().peer.uid));
  }
  parsed.plan.convert_moments = source.convert_moments();
  return parsed;
}

v1::RestoreSummary ToProto(const RestoreResult& result) {
  v1::RestoreSummary summary;
  summary.set_path(result.path);
  summary.set_save_id(checkpoint::HashText(result.save_id));
  summary.set_step(result.step);
  summary.set_version(result.version);
  summary.set_history_id(result.history.id.ToString());
  summary.set_lineage(result.history.lineage.ToString());
  summary.set_parent_history_id(checkpoint::HashText(result.saved_history));
  summary.set_saved_world_size(result.saved_world_size);
  summary.set_saved_shard_size(result.saved_shard_size);
  summary.set_size_bytes(result.size_bytes);
  *summary.mutable_elapsed() = DurationToProto(result.elapsed);
  return summary;
}

// A restore on a thread of its own, so that a caller that takes no messages does not hold it up.
class RestoreThread {
 public:
  RestoreThread(Restores& restores, std::unique_ptr<RestoreTask> task) : restores_(restores), task_(std::move(task)) {}
  ~RestoreThread() {
    if (thread_.joinable()) thread_.join();
  }

  absl::Status Start(const std::string& model) {
    ASSIGN_OR_RETURN(thread_, StartThread(absl::StrCat("a restore of ", DisplayName(model)), [this] {
                       absl::StatusOr<RestoreResult> result = restores_.Run(std::move(task_));
                       absl::MutexLock lock(&mu_);
                       result_ = std::move(result);
                       changed_.SignalAll();
                     }));
    return absl::OkStatus();
  }

  // Waits for the result for at most `wait`; returns no value then.
  std::optional<absl::StatusOr<RestoreResult>> Await(absl::Duration wait) {
    const SteadyTime deadline = SteadyDeadline(wait);
    absl::MutexLock lock(&mu_);
    while (!result_.has_value() && !changed_.WaitUntil(&mu_, deadline)) {
    }
    return result_;
  }

 private:
  Restores& restores_;
  std::unique_ptr<RestoreTask> task_;  // until it runs
  absl::Mutex mu_;
  SteadyCondVar changed_;
  std::optional<absl::StatusOr<RestoreResult>> result_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;
};

v1::RestoreModelResponse ProgressMessage(const RestoreProgress& progress) {
  v1::RestoreModelResponse response;
  response.mutable_progress()->set_done_bytes(progress.done_bytes);
  response.mutable_progress()->set_all_bytes(progress.all_bytes);
  return response;
}

}  // namespace

absl::Status CheckMayNameFolder(uid_t caller) {
  if (HasDaemonsRights(caller)) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat("restore from a path: want user ", geteuid(), " or root, got user ",
                                                  caller, "; name a checkpoint of the daemon's --save-dir"));
}

absl::Status RestoreModel(const ModelStore& store, Restores& restores, const v1::RestoreModelRequest& request,
                          const Call& call, MessageWriter<v1::RestoreModelResponse>* writer) {
  ASSIGN_OR_RETURN(const std::shared_ptr<Model> model, store.Find(request.model()));
  RETURN_IF_ERROR(restores.CheckLeads(request.model()));
  ASSIGN_OR_RETURN(const RestoreSource source, ParseSource(request.source(), call));
  ASSIGN_OR_RETURN(std::unique_ptr<RestoreTask> task, restores.Prepare(model, source));
  int64_t all_bytes = task->all_bytes();
  bool has_caller = writer->Write(ProgressMessage({.all_bytes = all_bytes}));
  if (!has_caller) return absl::AbortedError("restore: the caller disconnected; nothing was changed");
  RestoreThread thread(restores, std::move(task));
  RETURN_IF_ERROR(thread.Start(request.model()));
  std::optional<absl::StatusOr<RestoreResult>> result = thread.Await(kProgressInterval);
  while (!result.has_value()) {
    const std::optional<RestoreProgress> progress = model->trainers().activity().restore;
    if (progress.has_value()) {
      // The bytes of other daemons are known once they have begun.
      all_bytes = progress->all_bytes;
      if (has_caller) has_caller = writer->Write(ProgressMessage(*progress));
    }
    result = thread.Await(kProgressInterval);
  }
  RETURN_IF_ERROR(result->status());
  writer->Write(ProgressMessage({.done_bytes = all_bytes, .all_bytes = all_bytes}));
  v1::RestoreModelResponse response;
  *response.mutable_summary() = ToProto(**result);
  writer->Write(response);
  return absl::OkStatus();
}

absl::StatusOr<v1::CreateModelResponse> CreateModel(ModelStore& store, Restores& restores,
                                                    const std::optional<CheckpointRequest>& restore,
                                                    const v1::CreateModelRequest& request, const Call& call) {
  ASSIGN_OR_RETURN(ModelSpec spec, ParseModelSpec(request.spec()));
  std::optional<RestoreSource> wanted;
  if (restore.has_value()) wanted = RestoreSource{.checkpoint = *restore};
  if (request.has_restore()) {
    ASSIGN_OR_RETURN(wanted, ParseSource(request.restore(), call));
  }
  if (request.run().size() > kMaxRunBytes) {
    return absl::InvalidArgumentError(absl::StrCat("create model ", DisplayName(spec.name), ": run: want at most ",
                                                   kMaxRunBytes, " bytes, got ", request.run().size()));
  }
  const AnnouncedValues values{.run = RunDigest(request.run()),
                               .values_follow = request.values_follow(),
                               .all_values_follow = request.all_values_follow(),
                               .takes_any_seed = request.takes_any_seed()};
  const auto is_gone = [&call] { return call.IsCancelled(); };
  ASSIGN_OR_RETURN(const CreatedModel created,
                   CreateOrRestore(store, restores, std::move(spec), wanted, is_gone, values));
  const Model& model = *created.model.model;
  v1::CreateModelResponse response;
  response.set_created(created.model.created);
  *response.mutable_model() = ToProto(model);
  response.set_same_run(values.run != 0 && model.state().history().run == values.run);
  if (created.restored.has_value()) *response.mutable_restored() = ToProto(*created.restored);
  return response;
}

}  // namespace paramshard::server
