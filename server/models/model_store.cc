#include "server/models/model_store.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/model/model_spec_difference.h"
#include "common/model/names.h"
#include "kernels/base/status_macros.h"

namespace paramshard::server {
namespace {

// Largest number of remembered deletions: enough for every client that could still repeat one.
constexpr size_t kMaxRememberedDeletions = 1024;
// Largest number of models that an error lists.
constexpr size_t kMaxNamedModels = 8;
// Pause between two attempts to take over a model for which there is no memory.
constexpr absl::Duration kPauseForRoom = absl::Milliseconds(50);
// Largest size of a request id that is remembered.
constexpr size_t kMaxRequestIdBytes = 512;

int64_t BytesOf(const Model& model) {
  int64_t bytes = model.slots_bytes() * model.world().rank_count();
  for (const auto& shard : model.shards()) bytes += shard->bytes().Total();
  for (const int64_t scratch : model.ScratchBytesByRank()) bytes += scratch;
  // Images and copies of planes are host memory, which the limit of GPUs does not count.
  if (model.world().devices.front()->id().kind == DeviceKind::kCpu) {
    bytes += model.image_bytes() + model.plane_copy_bytes();
  }
  return bytes;
}

// Each GPU has memory of its own; cpu devices share the host's.
int64_t AvailableBytesOf(const std::vector<ComputeDevice*>& devices) {
  if (devices.front()->id().kind == DeviceKind::kCpu) return devices.front()->AvailableBytes();
  int64_t available = 0;
  for (const ComputeDevice* device : devices) available += device->AvailableBytes();
  return available;
}

// Initial values count only where the model has them, and the caller does not replace them all.
bool DoInitialValuesCount(const Model& model, const ValuesToCome& values) {
  const ValueOrigin origin = model.origin();
  if (values.all_values_follow) return false;
  return origin == ValueOrigin::kInitial || (origin == ValueOrigin::kImporting && values.values_follow);
}

absl::Status CheckJoined(const Model& model, ModelSpec spec, const ValuesToCome& values) {
  if (ModelSpecFingerprint(spec) == ModelSpecFingerprint(model.spec())) return absl::OkStatus();
  ModelSpec expected = model.spec();
  if (values.takes_any_seed) spec.seed = expected.seed;
  if (!DoInitialValuesCount(model, values)) {
    expected = WithoutInitialValues(std::move(expected));
    spec = WithoutInitialValues(std::move(spec));
  }
  if (ModelSpecFingerprint(expected) == ModelSpecFingerprint(spec)) return absl::OkStatus();
  return absl::AlreadyExistsError(absl::StrCat("create model ", spec.name, ": ", FirstDifference(expected, spec)));
}

// Waits for the saves of a model without an epoch: none begins by itself.
void AwaitSaves(const ModelSaver& saver, SteadyTime deadline) {
  for (const SaveRecord& record : saver.records()) {
    if (!IsOver(record.state)) saver.Await(record.number, deadline).IgnoreError();
  }
}

}  // namespace

ModelStore::ModelStore(Options options)
    : options_(std::move(options)),
      lost_({.kept = options_.kept,
             .is_one_of_several = options_.world.rank_count() != options_.world.world_size,
             .log = log_}),
      deletion_marks_(options_.kept) {
  options_.world.cluster->SetListener(this);
}

// The listener goes first: nothing may call into models that are being destroyed.
ModelStore::~ModelStore() { options_.world.cluster->SetListener(nullptr); }

absl::StatusOr<ModelStore::Created> ModelStore::CreateOrJoin(ModelSpec spec, IsGone is_gone,
                                                             const ValuesToCome& values) {
  RETURN_IF_ERROR(lost_.Check(spec.name));
  const auto fill = [](const std::shared_ptr<Model>&, Show) { return absl::OkStatus(); };
  return MakeOrJoin(
      std::move(spec), [&](ModelSpec made) { return MakeFull(std::move(made), values, fill); }, is_gone, values);
}

absl::StatusOr<ModelStore::Created> ModelStore::CreateOrJoin(ModelSpec spec, Fill fill, IsGone is_gone,
                                                             const ValuesToCome& values) {
  return MakeOrJoin(
      std::move(spec), [&](ModelSpec made) { return MakeFull(std::move(made), {}, fill); }, is_gone, values);
}

absl::StatusOr<ModelStore::Created> ModelStore::CreateToBeHealed(ModelSpec spec, absl::string_view why, IsGone is_gone,
                                                                 const ValuesToCome& values) {
  const auto make = [&](ModelSpec made) -> absl::StatusOr<std::shared_ptr<Model>> {
    ASSIGN_OR_RETURN(std::shared_ptr<Model> model, Make(std::move(made), values));
    RETURN_IF_ERROR(model->AwaitReplica(why));
    return model;
  };
  return MakeOrJoin(std::move(spec), make, is_gone, values);
}

absl::StatusOr<ModelStore::Created> ModelStore::MakeOrJoin(ModelSpec spec, MakeModel make, IsGone is_gone,
                                                           const ValuesToCome& values) {
  // A caller that joins a full model does not wait for other creations.
  ASSIGN_OR_RETURN(std::shared_ptr<Model> found, Join(spec, values));
  if (found != nullptr) return Created{.model = std::move(found), .created = false};
  ASSIGN_OR_RETURN(const CreationTurns::Turn turn, turns_.Take(spec, is_gone));
  ASSIGN_OR_RETURN(found, Join(spec, values));
  if (found != nullptr) return Created{.model = std::move(found), .created = false};
  const std::string name = spec.name;
  // The memory of a lost model may be as large as the model that is made.
  RETURN_IF_ERROR(lost_.Free(name));
  ASSIGN_OR_RETURN(std::shared_ptr<Model> model, make(std::move(spec)));
  lost_.End(name);
  absl::MutexLock lock(&mu_);
  // A model that was shown may have been deleted since it was full.
  if (filling_ != model) models_[model->spec().name] = model;
  filling_ = nullptr;
  return Created{.model = std::move(model), .created = true};
}

absl::StatusOr<std::shared_ptr<Model>> ModelStore::MakeFull(ModelSpec spec, const ValuesToCome& values, Fill fill) {
  ASSIGN_OR_RETURN(std::shared_ptr<Model> model, Make(std::move(spec), values));
  absl::Status filled = fill(model, [&] { return ShowFilling(model); });
  if (filled.ok()) filled = CheckNotLost(*model);
  if (filled.ok()) filled = model->Publish();
  if (filled.ok()) return model;
  DropFilling(model);
  Discard(*model);
  return filled;
}

Model::Options ModelStore::OptionsFor(ModelSpec spec) const {
  return {.spec = std::move(spec),
          .world = options_.world,
          .step_timeout = options_.step_timeout,
          .clock = options_.clock,
          .available_bytes = AvailableBytes(),
          .save_dir = options_.save_dir,
          .savers = options_.savers,
          .moves = options_.moves,
          .draw_history = options_.draw_history,
          .before_answer = options_.before_answer,
          .log = log_};
}

absl::StatusOr<std::shared_ptr<Model>> ModelStore::Make(ModelSpec spec, const ValuesToCome& values) {
  const std::string name = spec.name;
  Model::Options options = OptionsFor(std::move(spec));
  options.values = values;
  options.deletion = deletion_marks_.SerialOf(name);
  if (options_.kept != nullptr) options.memory = std::make_unique<KeptMemory>(name, options_.kept);
  absl::StatusOr<std::unique_ptr<Model>> made = Model::Create(std::move(options));
  if (made.ok() || options_.kept == nullptr) return made;
  // If that fails, the next server finds a model that was being made, and drops it.
  const absl::Status dropped = lost_.Contains(name) ? lost_.Free(name) : KeptMemory(name, options_.kept).Drop();
  if (!dropped.ok()) LogStillKept(name, dropped);
  return made;
}

void ModelStore::Discard(Model& model) const {
  // A caller that still holds the model must not hold its folder of checkpoints.
  if (model.saver() != nullptr) model.saver()->Stop();
  const std::string& name = model.spec().name;
  const absl::Status dropped = lost_.Contains(name) ? model.DropMemoryBut(kLostPiece) : model.DropMemory();
  if (!dropped.ok()) LogStillKept(name, dropped);
}

void ModelStore::LogStillKept(const std::string& name, const absl::Status& why) const {
  log_->Write(LogLevel::kWarning, "memory of a model is still kept", {{"model", name}, {"why", why.ToString()}});
}

// --- What another server has left

absl::StatusOr<std::vector<ModelStore::InterruptedChange>> ModelStore::TakeOver() {
  std::vector<InterruptedChange> cut_off;
  if (options_.kept == nullptr) return cut_off;
  // News from other daemons, for example of a save, is heard once the models are here.
  options_.world.cluster->SetListener(nullptr);
  const absl::Cleanup listen = [this] { options_.world.cluster->SetListener(this); };
  ASSIGN_OR_RETURN(KeptStore::Descriptors all, options_.kept->TakeAll());
  deletion_marks_.TakeOver(all);
  KeptModels kept = KeptModels::Sort(std::move(all));
  for (const std::string& stranger : kept.strangers) {
    log_->Write(LogLevel::kWarning, "the keeper holds an unknown entry", {{"name", stranger}});
  }
  const SteadyTime deadline = After(options_.clock->Now(), options_.room_timeout);
  for (auto& [name, pieces] : kept.models) {
    RETURN_IF_ERROR(TakeOverWithRoom(name, std::move(pieces), deadline, cut_off));
  }
  return cut_off;
}

// A failed attempt leaves what is kept such that the next one comes to the same state, as a server's death does.
absl::Status ModelStore::TakeOverWithRoom(const std::string& name, KeptStore::Descriptors pieces, SteadyTime deadline,
                                          std::vector<InterruptedChange>& cut_off) {
  for (bool is_first = true;; is_first = false) {
    const absl::Status taken_over = TakeOverModel(name, std::move(pieces), cut_off);
    if (!absl::IsResourceExhausted(taken_over) || options_.clock->Now() >= deadline) return taken_over;
    if (is_first) {
      log_->Write(LogLevel::kWarning, "a model waits for memory", {{"model", name}, {"why", taken_over.ToString()}});
    }
    options_.pause(kPauseForRoom);
    ASSIGN_OR_RETURN(pieces, KeptMemory::TakePieces(name, *options_.kept));
  }
}

absl::Status ModelStore::TakeOverModel(const std::string& name, KeptStore::Descriptors pieces,
                                       std::vector<InterruptedChange>& cut_off) {
  ASSIGN_OR_RETURN(LeftModel left, LeftModel::Read(name, options_.kept, std::move(pieces)));
  const RecoveryPlan plan = left.plan;
  if (plan.action == RecoveryAction::kDrop) return left.memory->Drop();
  if (IsOfSeveral(plan)) {
    // All daemons make the restore again when trainers come.
    const absl::Status why = absl::DataLossError("a restore of several daemons was cut off");
    ReportLost(name, why);
    lost_.Add(name, why.message(), plan.change, /*was_restored=*/true);
    return absl::OkStatus();
  }
  absl::StatusOr<std::shared_ptr<Model>> model = Resume(name, std::move(left));
  if (absl::IsDataLoss(model.status())) {
    ReportLost(name, model.status());
    const bool was_restored = plan.change.has_value() && plan.change->kind == ChangeSource::Kind::kCheckpoint;
    lost_.Add(name, model.status().message(), std::nullopt, was_restored);
    return absl::OkStatus();
  }
  if (!model.ok()) {
    return absl::Status(model.status().code(), absl::StrCat("model ", name, ": ", model.status().message()));
  }
  if (plan.action == RecoveryAction::kRedoChange) cut_off.push_back({.model = *model, .source = *plan.change});
  log_->Write(LogLevel::kInfo, "model taken over",
              {{"model", name},
               {"commit_number", absl::StrCat((*model)->commit_log().numbers().commit_number)},
               {"action", RecoveryActionName(plan.action)},
               {"torn_bands", absl::StrCat(TornBands(plan))}});
  absl::MutexLock lock(&mu_);
  models_[name] = *std::move(model);
  return absl::OkStatus();
}

// Returns true if a restore was cut off that this daemon cannot make again on its own.
bool ModelStore::IsOfSeveral(const RecoveryPlan& plan) const {
  return plan.action == RecoveryAction::kRedoChange && plan.change->kind == ChangeSource::Kind::kCheckpoint &&
         options_.world.rank_count() != options_.world.world_size;
}

absl::StatusOr<std::shared_ptr<Model>> ModelStore::Resume(const std::string& name, LeftModel left) const {
  ASSIGN_OR_RETURN(ModelSpec spec, left.Spec());
  if (spec.name != name) return absl::DataLossError(absl::StrCat("its journal belongs to model ", spec.name));
  if (left.plan.action == RecoveryAction::kQueryNode0) {
    RETURN_IF_ERROR(left.AskNode0(spec, *options_.world.cluster));
    if (left.plan.action == RecoveryAction::kDataLoss) return absl::DataLossError(left.plan.loss);
  }
  Model::Options options = OptionsFor(std::move(spec));
  options.left = std::make_unique<LeftModel>(std::move(left));
  return Model::Create(std::move(options));
}

void ModelStore::FinishChange(const std::shared_ptr<Model>& model, const absl::Status& status) {
  if (status.ok()) return;
  {
    absl::MutexLock lock(&mu_);
    if (!MayLose(model)) return;
  }
  // A caller that still holds the model must not hold its folder of checkpoints.
  if (model->saver() != nullptr) model->saver()->Stop();
  SetLost(model, status);
}

bool ModelStore::MayLose(const std::shared_ptr<Model>& model) const {
  const auto found = models_.find(model->spec().name);
  return !draining_ && found != models_.end() && found->second == model;
}

// A deletion that has found the model, and drops its memory late, must not drop the memory that the name has by then.
void ModelStore::SetLost(const std::shared_ptr<Model>& model, const absl::Status& why) {
  const std::string& name = model->spec().name;
  model->LeaveMemory([&] {
    {
      absl::MutexLock lock(&mu_);
      if (!MayLose(model)) return false;
    }
    model->Silence();
    ReportLost(name, why);
    absl::MutexLock lock(&mu_);
    // Still true, unless a drain has begun, with which node 0 forgets this daemon.
    if (!MayLose(model)) return false;
    models_.erase(name);
    lost_.Add(name, why.message());
    return true;
  });
}

void ModelStore::ReportLost(const std::string& name, const absl::Status& why) const {
  ModelReport report;
  report.model = name;
  report.lost = lost_.Describe(name, why.message());
  options_.world.cluster->Report(report);
}

absl::Status ModelStore::CheckNotLost(const Model& made) const {
  return made.history().parent.has_value() ? absl::OkStatus() : lost_.Check(made.spec().name);
}

absl::Status ModelStore::ShowFilling(const std::shared_ptr<Model>& model) {
  absl::MutexLock lock(&mu_);
  // The drain must not miss a model.
  if (draining_) return absl::UnavailableError("create model: the daemon drains; ask another daemon");
  models_[model->spec().name] = model;
  filling_ = model;
  return absl::OkStatus();
}

void ModelStore::DropFilling(const std::shared_ptr<Model>& model) {
  absl::MutexLock lock(&mu_);
  if (filling_ != model) return;
  models_.erase(model->spec().name);
  filling_ = nullptr;
}

absl::StatusOr<std::shared_ptr<Model>> ModelStore::Join(const ModelSpec& spec, const ValuesToCome& values) const {
  std::shared_ptr<Model> model;
  {
    absl::MutexLock lock(&mu_);
    if (draining_) return absl::UnavailableError("create model: the daemon drains; ask another daemon");
    const auto found = models_.find(spec.name);
    if (found == models_.end() || found->second == filling_) return std::shared_ptr<Model>();
    model = found->second;
  }
  RETURN_IF_ERROR(CheckJoined(*model, spec, values));
  return model;
}

int64_t ModelStore::AvailableBytes() const {
  const int64_t available = AvailableBytesOf(options_.world.devices);
  if (options_.memory_limit_bytes == 0) return available;
  int64_t used = 0;
  for (const auto& model : List()) used += BytesOf(*model);
  return std::min(available, options_.memory_limit_bytes - used);
}

absl::StatusOr<std::shared_ptr<Model>> ModelStore::Find(absl::string_view name) const {
  absl::MutexLock lock(&mu_);
  const auto found = models_.find(std::string(name));
  if (found != models_.end()) return found->second;
  RETURN_IF_ERROR(lost_.Check(name));
  const absl::string_view object = name.substr(0, kMaxNameBytes);
  if (models_.empty()) {
    return absl::NotFoundError(absl::StrCat("model ", object, ": not found; this daemon holds no models"));
  }
  return absl::NotFoundError(absl::StrCat("model ", object, ": not found; this daemon holds [", Names(), "]"));
}

std::string ModelStore::Names() const {
  std::vector<absl::string_view> named;
  for (auto model = models_.begin(); model != models_.end() && named.size() < kMaxNamedModels; ++model) {
    named.push_back(model->first);
  }
  const std::string names = absl::StrJoin(named, ", ");
  if (named.size() == models_.size()) return names;
  return absl::StrCat(names, " and ", models_.size() - named.size(), " more");
}

std::vector<std::shared_ptr<Model>> ModelStore::List() const {
  absl::MutexLock lock(&mu_);
  std::vector<std::shared_ptr<Model>> models;
  for (const auto& [name, model] : models_) models.push_back(model);
  return models;
}

absl::Status ModelStore::Delete(const std::string& name, const std::string& request_id) {
  if (request_id.size() > kMaxRequestIdBytes) {
    return absl::InvalidArgumentError(absl::StrCat("delete model ", DisplayName(name),
                                                   ": want a request id of at most ", kMaxRequestIdBytes,
                                                   " bytes, got ", request_id.size()));
  }
  ASSIGN_OR_RETURN(bool is_answered, IsDeleted(name, request_id));
  if (is_answered) return absl::OkStatus();
  ASSIGN_OR_RETURN(is_answered, DeleteLost(name, request_id));
  if (is_answered) return absl::OkStatus();
  absl::StatusOr<std::shared_ptr<Model>> found = Find(name);
  if (!found.ok()) {
    // The call that this one repeats may have finished since.
    ASSIGN_OR_RETURN(is_answered, IsDeleted(name, request_id));
    return is_answered ? absl::OkStatus() : found.status();
  }
  return DeleteFound(*std::move(found), request_id);
}

absl::Status ModelStore::DeleteFound(const std::shared_ptr<Model>& model, const std::string& request_id) {
  const std::string& name = model->spec().name;
  // A caller that still holds the model cannot disturb a new model of that name.
  RETURN_IF_ERROR(model->Close(absl::NotFoundError(absl::StrCat("model ", name, " was deleted"))));
  // The mark comes first: a server that dies in between leaves a model that was created before it.
  RETURN_IF_ERROR(deletion_marks_.Add(name));
  RETURN_IF_ERROR(model->DropMemory());
  if (EraseDeleted(model, request_id)) return absl::OkStatus();
  // It was lost meanwhile, or another call has deleted it: a new model of that name may exist by now.
  ASSIGN_OR_RETURN(const bool is_answered, DeleteLost(name, request_id));
  if (is_answered) return absl::OkStatus();
  absl::MutexLock lock(&mu_);
  RememberDeletion(name, request_id);
  return absl::OkStatus();
}

bool ModelStore::EraseDeleted(const std::shared_ptr<Model>& model, const std::string& request_id) {
  absl::MutexLock lock(&mu_);
  const auto found = models_.find(model->spec().name);
  if (found == models_.end() || found->second != model) return false;
  models_.erase(found);
  RememberDeletion(model->spec().name, request_id);
  return true;
}

absl::StatusOr<bool> ModelStore::IsDeleted(const std::string& name, const std::string& request_id) const {
  absl::MutexLock lock(&mu_);
  const auto deleted = deletions_.find(request_id);
  if (request_id.empty() || deleted == deletions_.end()) return false;
  if (deleted->second == name) return true;
  return absl::InvalidArgumentError(
      absl::StrCat("delete model ", name, ": want a new request id, got the one that deleted ", deleted->second));
}

void ModelStore::RememberDeletion(const std::string& name, const std::string& request_id) {
  if (request_id.empty()) return;
  if (deletions_.size() >= kMaxRememberedDeletions) deletions_.clear();
  deletions_[request_id] = name;
}

// No model of that name is made meanwhile; callers that create or look up other models do not wait for the keeper.
absl::StatusOr<bool> ModelStore::DeleteLost(const std::string& name, const std::string& request_id) {
  if (!lost_.Contains(name)) return false;
  ASSIGN_OR_RETURN(const CreationTurns::Turn turn, turns_.TakeToFree(name));
  // The call that held the turn may have been the one that this one repeats.
  ASSIGN_OR_RETURN(const bool is_deleted, IsDeleted(name, request_id));
  if (is_deleted || !lost_.Contains(name)) return is_deleted;
  RETURN_IF_ERROR(deletion_marks_.Add(name));
  RETURN_IF_ERROR(lost_.FreeAll(name));
  {
    // Both change at once: a call that does not find the model finds the answer.
    absl::MutexLock lock(&mu_);
    lost_.Forget(name);
    RememberDeletion(name, request_id);
  }
  options_.world.cluster->Forget(name);
  return true;
}

void ModelStore::Drain(SteadyTime deadline, const absl::Status& why, DrainSaves saves) {
  {
    absl::MutexLock lock(&mu_);
    draining_ = true;
  }
  const std::vector<std::shared_ptr<Model>> models = List();
  for (const auto& model : models) model->BeginDrain(why);
  for (const auto& model : models) model->FinishDrain(deadline);
  if (options_.savers == nullptr) return;
  const SteadyTime saved = SteadyDeadline(options_.savers->drain_timeout());
  for (const auto& model : models) {
    saves == DrainSaves::kUnsaved ? model->saver()->Drain(saved) : AwaitSaves(*model->saver(), saved);
  }
  if (saves == DrainSaves::kUnsaved) NoteUnsaved(models);
}

void ModelStore::NoteUnsaved(const std::vector<std::shared_ptr<Model>>& models) {
  for (const auto& model : models) {
    if (!IsLeftUnsaved(*model)) continue;
    left_unsaved_ = true;
    log_->Write(LogLevel::kError, "stopping with unsaved commits",
                {{"model", model->spec().name}, {"commit", absl::StrCat(model->state().numbers.commit_number)}});
  }
}

bool ModelStore::IsDraining() const {
  absl::MutexLock lock(&mu_);
  return draining_;
}

bool ModelStore::IsLeftUnsaved(const Model& model) {
  return model.usable().ok() && model.unfinished().ok() && model.saver() != nullptr && !model.saver()->IsDrained();
}

void ModelStore::DropKept() const {
  for (const auto& model : List()) {
    if (IsLeftUnsaved(*model)) {
      LogStillKept(model->spec().name, absl::FailedPreconditionError("it could not be saved"));
      continue;
    }
    if (const absl::Status dropped = model->DropMemory(); !dropped.ok()) LogStillKept(model->spec().name, dropped);
  }
}

void ModelStore::OnEpochStart(const std::string& name, const EpochStart& start) {
  if (const auto model = Find(name); model.ok()) (*model)->OnEpochStart(start);
}

void ModelStore::OnLastCommand(const std::string& name, int64_t epoch, int64_t command) {
  if (const auto model = Find(name); model.ok()) (*model)->OnLastCommand(epoch, command);
}

void ModelStore::OnCommandsWanted(const std::string& name, int64_t epoch, const CommandsThrough& unless) {
  if (const auto model = Find(name); model.ok()) (*model)->OnCommandsWanted(epoch, unless);
}

void ModelStore::OnEpochEnd(const std::string& name, int64_t epoch, const absl::Status& why) {
  if (const auto model = Find(name); model.ok()) (*model)->OnEpochEnd(epoch, why);
}

void ModelStore::OnEpochRefused(const std::string& name, const absl::Status& why) {
  if (const auto model = Find(name); model.ok()) (*model)->OnEpochRefused(why);
}

void ModelStore::OnSaveNews(const SaveNews& news) {
  if (std::holds_alternative<SaveLeaderLost>(news.what)) {
    for (const auto& model : List()) {
      if (model->saver() != nullptr) model->saver()->OnNews(news);
    }
    return;
  }
  const auto model = Find(news.model);
  if (model.ok() && (*model)->saver() != nullptr) return (*model)->saver()->OnNews(news);
  RefuseSave(news, model.ok() ? absl::FailedPreconditionError("--save-dir is required for saves") : model.status());
}

void ModelStore::SetRestoreListener(RestoreListener* listener) {
  absl::MutexLock lock(&hearing_);
  restore_listener_ = listener;
}

void ModelStore::OnRestoreNews(const RestoreNews& news) {
  absl::MutexLock lock(&hearing_);
  if (restore_listener_ != nullptr) return restore_listener_->OnRestoreNews(news);
  const absl::Status why = absl::UnavailableError("the daemon is starting or stopping");
  RestoreNews answer{.model = news.model, .what = RollbackEnd{.status = why}};
  if (const auto* const order = std::get_if<RestoreOrder>(&news.what); order != nullptr) {
    answer.what = RestoreReport{.id = order->id, .status = why};
  } else if (!std::holds_alternative<RollbackNeed>(news.what)) {
    return;
  }
  options_.world.cluster->TellRestore(answer).IgnoreError();
}

// Lets node 0 stop waiting for this daemon's part, and another node for an answer to its request.
void ModelStore::RefuseSave(const SaveNews& news, const absl::Status& why) {
  SaveNews answer{.model = news.model, .what = SaveEnd{.why = why}};
  if (const auto* const order = std::get_if<SaveOrder>(&news.what); order != nullptr) {
    answer.what = SavePart{.id = order->id, .status = why};
  } else if (!std::holds_alternative<SaveWish>(news.what)) {
    return;
  }
  options_.world.cluster->TellSave(answer).IgnoreError();
}

}  // namespace paramshard::server
