#include "server/service/restore_calls.h"

#include <unistd.h>

#include <memory>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "kernels/base/status_macros.h"
#include "proto/checkpoint/content_hash.h"
#include "proto/durations.h"
#include "proto/model/model_spec_proto.h"
#include "proto/model/names.h"
#include "server/base/steady_cond_var.h"
#include "server/base/steady_time.h"
#include "server/base/thread.h"
#include "server/log/log.h"
#include "server/log/log_throttle.h"
#include "server/restores/model_restore.h"

namespace paramshard::server {
namespace {

// Between two words about how far a restore is.
constexpr absl::Duration kProgressInterval = absl::Milliseconds(250);

// Callers may restore and create in loops. What a failure does to a model is a line of its own.
ThrottledLog& RestoreLog() {
  static auto* const log = new ThrottledLog();
  return *log;
}

// What is asked for, checked.
struct WantedRestore {
  CheckpointRequest checkpoint;
  RestorePlan::Options plan;
};

absl::StatusOr<WantedRestore> ParseSource(const v1::RestoreSource& source, const Call& call) {
  WantedRestore wanted;
  ASSIGN_OR_RETURN(wanted.checkpoint, ParseCheckpointRequest(source.checkpoint()));
  if (wanted.checkpoint.kind == CheckpointRequest::Kind::kPath) {
    RETURN_IF_ERROR(CheckMayNameFolder(call.caller().peer.uid));
  }
  wanted.plan.convert_moments = source.convert_moments();
  return wanted;
}

// A restore from the choice of the checkpoint to what is told of it.
class Restoration {
 public:
  // At node 0, which chooses; `creates` the model.
  static absl::StatusOr<Restoration> Prepare(const std::shared_ptr<Model>& model, const WantedRestore& wanted,
                                             WorldRestores& restores, bool creates) {
    const SteadyTime begin = SteadyNow();
    ASSIGN_OR_RETURN(CheckpointChoice choice,
                     ChooseCheckpoint(model->save_dir(), model->spec().name, wanted.checkpoint));
    ASSIGN_OR_RETURN(std::unique_ptr<ModelRestore> restore, ModelRestore::Prepare(model, choice.path, wanted.plan));
    ASSIGN_OR_RETURN(std::unique_ptr<RestorePeers> peers,
                     restores.LeadRestore(*model, choice, *restore,
                                          {.by_path = wanted.checkpoint.kind == CheckpointRequest::Kind::kPath,
                                           .convert_moments = wanted.plan.convert_moments,
                                           .creates = creates}));
    return Restoration(begin, std::move(choice), std::move(restore), std::move(peers));
  }
  // Elsewhere, of what node 0 has chosen.
  static absl::StatusOr<Restoration> Follow(const std::shared_ptr<Model>& model,
                                            std::unique_ptr<FollowingRestore> following) {
    const SteadyTime begin = SteadyNow();
    absl::StatusOr<OrderedRestore> ordered = PrepareOrdered(model, following->order());
    if (ordered.ok()) {
      return Restoration(begin, std::move(ordered->choice), std::move(ordered->restore), std::move(following));
    }
    following->Finish(ordered.status());
    return ordered.status();
  }

  int64_t all_bytes() const { return restore_->all_bytes(); }

  // Once; then the model's turn is given back.
  absl::StatusOr<v1::RestoreSummary> Run(const std::string& model, absl::FunctionRef<absl::Status()> begun);

 private:
  Restoration(SteadyTime begin, CheckpointChoice choice, std::unique_ptr<ModelRestore> restore,
              std::unique_ptr<RestorePeers> peers)
      : begin_(begin), choice_(std::move(choice)), peers_(std::move(peers)), restore_(std::move(restore)) {}
  v1::RestoreSummary Summarize(const History& history) const;

  SteadyTime begin_;
  CheckpointChoice choice_;
  std::unique_ptr<RestorePeers> peers_;  // null in a world of one daemon; told of the end behind the restore's
  std::unique_ptr<ModelRestore> restore_;
};

absl::StatusOr<v1::RestoreSummary> Restoration::Run(const std::string& model, absl::FunctionRef<absl::Status()> begun) {
  const absl::StatusOr<History> history = restore_->Run(begun, peers_.get());
  v1::RestoreSummary summary;
  if (history.ok()) summary = Summarize(*history);
  restore_.reset();
  peers_.reset();
  RETURN_IF_ERROR(history.status());
  RestoreLog().Write(LogLevel::kInfo, "model restored",
                     {{"model", model},
                      {"checkpoint", choice_.path},
                      {"step", absl::StrCat(summary.step())},
                      {"history", summary.history_id()},
                      {"elapsed", absl::FormatDuration(DurationFromProto(summary.elapsed()))}});
  return summary;
}

v1::RestoreSummary Restoration::Summarize(const History& history) const {
  const checkpoint::Manifest& manifest = restore_->manifest();
  v1::RestoreSummary summary;
  summary.set_path(choice_.path);
  summary.set_save_id(checkpoint::HashText(manifest.save_id));
  summary.set_step(manifest.step);
  summary.set_version(manifest.version);
  summary.set_history_id(history.id.ToString());
  summary.set_lineage(history.lineage.ToString());
  summary.set_parent_history_id(checkpoint::HashText(manifest.history));
  summary.set_saved_world_size(manifest.world.size);
  summary.set_saved_shard_size(manifest.world.shard_size);
  summary.set_size_bytes(manifest.size_bytes());
  *summary.mutable_elapsed() = DurationToProto(absl::FromChrono(SteadyNow() - begin_));
  return summary;
}

// A restore on a thread of its own, so that a caller who takes nothing holds up nobody but itself.
class RestoreThread {
 public:
  explicit RestoreThread(Restoration restoration) : restoration_(std::move(restoration)) {}
  ~RestoreThread() {
    if (thread_.joinable()) thread_.join();
  }

  absl::Status Start(const std::string& model) {
    ASSIGN_OR_RETURN(thread_, StartThread(absl::StrCat("a restore of ", DisplayName(model)), [this, model] {
                       absl::StatusOr<v1::RestoreSummary> result =
                           restoration_.Run(model, [] { return absl::OkStatus(); });
                       absl::MutexLock lock(&mu_);
                       result_ = std::move(result);
                       changed_.SignalAll();
                     }));
    return absl::OkStatus();
  }

  // Waits for the result, but not longer than `wait`: null then.
  std::optional<absl::StatusOr<v1::RestoreSummary>> Await(absl::Duration wait) {
    const SteadyTime deadline = SteadyDeadline(wait);
    absl::MutexLock lock(&mu_);
    while (!result_.has_value() && !changed_.WaitUntil(&mu_, deadline)) {
    }
    return result_;
  }

 private:
  Restoration restoration_;
  absl::Mutex mu_;
  SteadyCondVar changed_;
  std::optional<absl::StatusOr<v1::RestoreSummary>> result_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;
};

v1::RestoreModelResponse ProgressMessage(const Model::RestoreProgress& progress) {
  v1::RestoreModelResponse response;
  response.mutable_progress()->set_done_bytes(progress.done_bytes);
  response.mutable_progress()->set_all_bytes(progress.all_bytes);
  return response;
}

// Whether a model that is created begins with a checkpoint: `latest` of none is a fresh start. A folder that cannot be
// read is an error to whoever restores from it.
bool BeginsWithCheckpoint(const ModelStore& store, const std::string& name,
                          const std::optional<WantedRestore>& wanted) {
  if (!wanted.has_value()) return false;
  if (wanted->checkpoint.kind != CheckpointRequest::Kind::kLatest || store.save_dir().empty()) return true;
  return HasCheckpoint(store.save_dir(), name).value_or(true);
}

// With the state that a restore brings.
absl::StatusOr<CreatedModel> CreateRestored(ModelStore& store, WorldRestores& restores, ModelSpec spec,
                                            const WantedRestore& wanted) {
  CreatedModel created;
  const auto fill = [&](const std::shared_ptr<Model>& model, ModelStore::Show show) -> absl::Status {
    ASSIGN_OR_RETURN(Restoration restoration, Restoration::Prepare(model, wanted, restores, /*creates=*/true));
    ASSIGN_OR_RETURN(created.restored, restoration.Run(model->spec().name, show));
    return absl::OkStatus();
  };
  ASSIGN_OR_RETURN(created.model, store.CreateOrJoin(std::move(spec), fill));
  return created;
}

// With the state that node 0 has ordered.
absl::StatusOr<CreatedModel> CreateOrdered(ModelStore& store, WorldRestores& restores, ModelSpec spec,
                                           absl::uint128 order) {
  CreatedModel created;
  const auto fill = [&](const std::shared_ptr<Model>& model, ModelStore::Show show) -> absl::Status {
    ASSIGN_OR_RETURN(std::unique_ptr<FollowingRestore> following, restores.Follow(model->spec().name, order));
    ASSIGN_OR_RETURN(Restoration restoration, Restoration::Follow(model, std::move(following)));
    ASSIGN_OR_RETURN(created.restored, restoration.Run(model->spec().name, show));
    return absl::OkStatus();
  };
  const std::string name = spec.name;
  absl::StatusOr<ModelStore::Created> made = store.CreateOrJoin(std::move(spec), fill);
  if (!made.ok()) {
    // Of a model that could not even be made nobody has told node 0.
    restores.RefuseOrder(name, order, made.status());
    return made.status();
  }
  created.model = *std::move(made);
  return created;
}

// With initial values, as other daemons do that wait for this one's word.
absl::StatusOr<CreatedModel> CreateFresh(ModelStore& store, WorldRestores& restores, ModelSpec spec,
                                         bool wants_restore) {
  CreatedModel created;
  ASSIGN_OR_RETURN(created.model, store.CreateOrJoin(std::move(spec)));
  const std::string& name = created.model.model->spec().name;
  if (!created.model.created) return created;
  if (wants_restore) {
    RestoreLog().Write(LogLevel::kInfo, "fresh start: no checkpoint to restore",
                       {{"model", name}, {"save_dir", store.save_dir()}});
  }
  restores.OnCreatedFresh(name);
  return created;
}

// One that somebody else was creating a moment ago.
absl::StatusOr<CreatedModel> Join(ModelStore& store, ModelSpec spec) {
  const std::string name = spec.name;
  const auto fail = [&](const std::shared_ptr<Model>&, ModelStore::Show) {
    return absl::UnavailableError(
        absl::StrCat("create model ", DisplayName(name), ": another creation of it has failed; try again"));
  };
  CreatedModel joined;
  ASSIGN_OR_RETURN(joined.model, store.CreateOrJoin(std::move(spec), fail));
  return joined;
}

// At another node than 0, which chooses for all.
absl::StatusOr<CreatedModel> CreateFollowing(ModelStore& store, WorldRestores& restores, ModelSpec spec,
                                             bool wants_restore, const Call& call) {
  WorldRestores::Word word;
  if (wants_restore || restores.HasOrder(spec.name)) {
    ASSIGN_OR_RETURN(word, restores.AwaitOrder(spec.name, [&] { return call.IsCancelled(); }));
  }
  if (word.order.has_value()) return CreateOrdered(store, restores, std::move(spec), word.order->id);
  if (word.is_here) return Join(store, std::move(spec));
  return CreateFresh(store, restores, std::move(spec), wants_restore);
}

}  // namespace

absl::Status CheckMayNameFolder(uid_t caller) {
  if (HasDaemonsRights(caller)) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat("restore from a path: user ", geteuid(),
                                                  " expected, with whose rights it is read, got user ", caller,
                                                  "; name a checkpoint of the daemon's --save-dir"));
}

absl::Status RestoreModel(const ModelStore& store, WorldRestores& restores, const v1::RestoreModelRequest& request,
                          const Call& call, MessageWriter<v1::RestoreModelResponse>* writer) {
  ASSIGN_OR_RETURN(const std::shared_ptr<Model> model, store.Find(request.model()));
  RETURN_IF_ERROR(restores.CheckLeads(request.model()));
  ASSIGN_OR_RETURN(const WantedRestore wanted, ParseSource(request.source(), call));
  ASSIGN_OR_RETURN(Restoration restoration, Restoration::Prepare(model, wanted, restores, /*creates=*/false));
  const int64_t all_bytes = restoration.all_bytes();
  bool has_caller = writer->Write(ProgressMessage({.all_bytes = all_bytes}));
  if (!has_caller) return absl::AbortedError("restore: the caller has gone; nothing was changed");
  RestoreThread thread(std::move(restoration));
  RETURN_IF_ERROR(thread.Start(request.model()));
  std::optional<absl::StatusOr<v1::RestoreSummary>> result = thread.Await(kProgressInterval);
  while (!result.has_value()) {
    const std::optional<Model::RestoreProgress> progress = model->activity().restore;
    if (has_caller && progress.has_value()) has_caller = writer->Write(ProgressMessage(*progress));
    result = thread.Await(kProgressInterval);
  }
  RETURN_IF_ERROR(result->status());
  writer->Write(ProgressMessage({.done_bytes = all_bytes, .all_bytes = all_bytes}));
  v1::RestoreModelResponse response;
  *response.mutable_summary() = **result;
  writer->Write(response);
  return absl::OkStatus();
}

absl::StatusOr<CreatedModel> CreateModel(ModelStore& store, WorldRestores& restores,
                                         const std::optional<CheckpointRequest>& restore,
                                         const v1::CreateModelRequest& request, const Call& call) {
  ASSIGN_OR_RETURN(ModelSpec spec, ParseModelSpec(request.spec()));
  std::optional<WantedRestore> wanted;
  if (restore.has_value()) wanted = WantedRestore{.checkpoint = *restore, .plan = {}};
  if (request.has_restore()) {
    ASSIGN_OR_RETURN(wanted, ParseSource(request.restore(), call));
  }
  if (!restores.leads()) return CreateFollowing(store, restores, std::move(spec), wanted.has_value(), call);
  if (BeginsWithCheckpoint(store, spec.name, wanted)) {
    return CreateRestored(store, restores, std::move(spec), *wanted);
  }
  return CreateFresh(store, restores, std::move(spec), wanted.has_value());
}

}  // namespace paramshard::server
