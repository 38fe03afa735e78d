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

// Largest number of models that an error lists.
constexpr size_t kMaxNamedModels = 8;
// Largest size of a request id that is remembered.
constexpr size_t kMaxRequestIdBytes = 512;

int64_t BytesOf(const Model& model) {
  int64_t bytes = 0;
  for (const int64_t slots : model.budget().SlotsBytesByRank()) bytes += slots;
  for (const auto& shard : model.committed().shards) bytes += shard->extents().bytes().Total() + shard->muon_bytes();
  for (const int64_t scratch : model.budget().ScratchBytesByRank()) bytes += scratch;
  // Images and copies of planes are host memory, which the limit of GPUs does not count.
  if (model.world().devices.front()->id().kind == DeviceKind::kCpu) {
    bytes += model.image_bytes() + model.committed().plane_copy_bytes();
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
bool DoInitialValuesCount(const Model& model, const AnnouncedValues& values) {
  const ValueOrigin origin = model.state().origin();
  if (values.all_values_follow) return false;
  return origin == ValueOrigin::kInitial || (origin == ValueOrigin::kImporting && values.values_follow);
}

absl::Status CheckJoined(const Model& model, ModelSpec spec, const AnnouncedValues& values) {
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

// Returns true if the model is whole, and the drain should have saved it and has not.
bool IsLeftUnsaved(const Model& model) {
  const ModelState& state = model.state();
  return state.usable().ok() && state.unfinished().ok() && model.saver() != nullptr && !model.saver()->IsDrained();
}

// Lists a few of the models, and how many more there are.
std::string NamesOf(const std::map<std::string, std::shared_ptr<Model>, std::less<>>& models) {
  std::vector<absl::string_view> named;
  for (auto model = models.begin(); model != models.end() && named.size() < kMaxNamedModels; ++model) {
    named.push_back(model->first);
  }
  const std::string names = absl::StrJoin(named, ", ");
  if (named.size() == models.size()) return names;
  return absl::StrCat(names, " and ", models.size() - named.size(), " more");
}

// Lets node 0 stop waiting for this daemon's part, and another node for an answer to its request.
void RefuseSave(Cluster& cluster, const SaveMessage& message, const absl::Status& why) {
  SaveMessage answer{.model = message.model, .what = SaveEnd{.why = why}};
  if (const auto* const order = std::get_if<SaveOrder>(&message.what); order != nullptr) {
    answer.what = SavePart{.id = order->id, .status = why};
  } else if (!std::holds_alternative<SaveRequest>(message.what)) {
    return;
  }
  cluster.Send(answer).IgnoreError();
}

}  // namespace

ModelStore::ModelStore(Options options)
    : options_(std::move(options)),
      lost_({.kept = options_.kept,
             .is_one_of_several = options_.world.rank_count() != options_.world.world_size,
             .log = log_}),
      deletion_marks_(options_.kept),
      left_readers_({.log = log_,
                     .kept = options_.kept,
                     .ends = options_.end_stuck_readers,
                     .is_trainer = [this](pid_t pid) { return IsTrainer(pid); },
                     .metrics = options_.world.metrics}) {
  options_.world.cluster->SetListener(this);
}

// The listener goes first: nothing may call into models that are being destroyed.
ModelStore::~ModelStore() { options_.world.cluster->SetListener(nullptr); }

absl::StatusOr<ModelStore::Created> ModelStore::CreateOrJoin(ModelSpec spec, IsGone is_gone,
                                                             const AnnouncedValues& values) {
  RETURN_IF_ERROR(lost_.Check(spec.name));
  const auto fill = [](const std::shared_ptr<Model>&, Show) { return absl::OkStatus(); };
  return MakeOrJoin(
      std::move(spec), [&](ModelSpec made) { return MakeFull(std::move(made), values, fill); }, is_gone, values);
}

absl::StatusOr<ModelStore::Created> ModelStore::CreateOrJoin(ModelSpec spec, Fill fill, IsGone is_gone,
                                                             const AnnouncedValues& values) {
  return MakeOrJoin(
      std::move(spec), [&](ModelSpec made) { return MakeFull(std::move(made), {}, fill); }, is_gone, values);
}

absl::StatusOr<ModelStore::Created> ModelStore::CreateToBeHealed(ModelSpec spec, absl::string_view why, IsGone is_gone,
                                                                 const AnnouncedValues& values) {
  const auto make = [&](ModelSpec made) -> absl::StatusOr<std::shared_ptr<Model>> {
    ASSIGN_OR_RETURN(std::shared_ptr<Model> model, Make(std::move(made), values));
    RETURN_IF_ERROR(model->state().AwaitReplica(why));
    return model;
  };
  return MakeOrJoin(std::move(spec), make, is_gone, values);
}

absl::StatusOr<ModelStore::Created> ModelStore::MakeOrJoin(ModelSpec spec, MakeModel make, IsGone is_gone,
                                                           const AnnouncedValues& values) {
  RETURN_IF_ERROR(options_.refusal);
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

absl::StatusOr<std::shared_ptr<Model>> ModelStore::MakeFull(ModelSpec spec, const AnnouncedValues& values, Fill fill) {
  ASSIGN_OR_RETURN(std::shared_ptr<Model> model, Make(std::move(spec), values));
  absl::Status filled = fill(model, [&] { return ShowFilling(model); });
  // Only a restore makes a lost model anew.
  if (filled.ok() && !model->state().history().parent.has_value()) filled = lost_.Check(model->spec().name);
  if (filled.ok()) filled = model->state().Publish();
  if (filled.ok()) {
    model->state().PublishPlanes();
    return model;
  }
  DropFilling(model);
  Discard(*model);
  return filled;
}

Model::Options ModelStore::OptionsFor(ModelSpec spec) const {
  return {.spec = std::move(spec),
          .world = options_.world,
          .step_timeout = options_.step_timeout,
          .reader_hold = options_.reader_hold,
          .clock = options_.clock,
          .publications = publications_,
          .available_bytes = AvailableBytes(),
          .save_dir = options_.save_dir,
          .savers = options_.savers,
          .moves = options_.moves,
          .log = log_,
          .hooks = options_.hooks};
}

absl::StatusOr<std::shared_ptr<Model>> ModelStore::Make(ModelSpec spec, const AnnouncedValues& values) {
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
  const absl::Status dropped =
      lost_.Contains(name) ? model.durability().DropAllBut(kLostPiece) : model.durability().Drop();
  if (!dropped.ok()) LogStillKept(name, dropped);
}

void ModelStore::LogStillKept(const std::string& name, const absl::Status& why) const {
  log_->Write(LogLevel::kWarning, "memory of a model is still kept", {{"model", name}, {"why", why.ToString()}});
}

// --- What another server has left

absl::StatusOr<std::vector<InterruptedChange>> ModelStore::TakeOver() {
  std::vector<InterruptedChange> interrupted;
  if (options_.kept == nullptr) return interrupted;
  // Messages from other daemons, for example about a save, are heard once the models are here.
  options_.world.cluster->SetListener(nullptr);
  const absl::Cleanup listen = [this] { options_.world.cluster->SetListener(this); };
  ASSIGN_OR_RETURN(KeptStore::Descriptors all, options_.kept->TakeAll());
  deletion_marks_.TakeOver(all);
  // Before the models, which wait for memory that these may hold.
  left_readers_.TakeOver(all);
  KeptModels kept = KeptModels::Sort(std::move(all));
  for (const std::string& stranger : kept.strangers) {
    log_->Write(LogLevel::kWarning, "the keeper holds an unknown entry", {{"name", stranger}});
  }
  const auto options_for = [this](ModelSpec spec) { return OptionsFor(std::move(spec)); };
  const ModelTakeover takeover({.world = options_.world,
                                .kept = *options_.kept,
                                .lost = lost_,
                                .log = *log_,
                                .clock = *options_.clock,
                                .deadline = After(options_.clock->Now(), options_.room_timeout),
                                .pause = options_.hooks.pause,
                                .options_for = options_for});
  for (auto& [name, pieces] : kept.models) {
    ASSIGN_OR_RETURN(ModelTakeover::Taken taken, takeover.TakeOver(name, std::move(pieces)));
    if (taken.model == nullptr) continue;
    if (taken.interrupted.has_value()) interrupted.push_back({.model = taken.model, .source = *taken.interrupted});
    absl::MutexLock lock(&mu_);
    models_[name] = std::move(taken.model);
  }
  return interrupted;
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
  model->durability().Leave([&] {
    {
      absl::MutexLock lock(&mu_);
      if (!MayLose(model)) return false;
    }
    model->trainers().Silence();
    lost_.Report(*options_.world.cluster, name, why.message());
    absl::MutexLock lock(&mu_);
    // Still true, unless a drain has begun, with which node 0 forgets this daemon.
    if (!MayLose(model)) return false;
    models_.erase(name);
    lost_.Add(name, why.message());
    return true;
  });
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

absl::StatusOr<std::shared_ptr<Model>> ModelStore::Join(const ModelSpec& spec, const AnnouncedValues& values) const {
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
  RETURN_IF_ERROR(options_.refusal);
  absl::MutexLock lock(&mu_);
  const auto found = models_.find(std::string(name));
  if (found != models_.end()) return found->second;
  RETURN_IF_ERROR(lost_.Check(name));
  const absl::string_view object = name.substr(0, kMaxNameBytes);
  if (models_.empty()) {
    return absl::NotFoundError(absl::StrCat("model ", object, ": not found; this daemon holds no models"));
  }
  return absl::NotFoundError(absl::StrCat("model ", object, ": not found; this daemon holds [", NamesOf(models_), "]"));
}

std::vector<std::shared_ptr<Model>> ModelStore::List() const {
  absl::MutexLock lock(&mu_);
  std::vector<std::shared_ptr<Model>> models;
  for (const auto& [name, model] : models_) models.push_back(model);
  return models;
}

bool ModelStore::IsTrainer(pid_t pid) const {
  for (const std::shared_ptr<Model>& model : List()) {
    for (const AttachedTrainer& attached : model->trainers().activity().trainers) {
      if (attached.trainer.pid == pid) return true;
    }
  }
  return false;
}

absl::Status ModelStore::Delete(const std::string& name, const std::string& request_id) {
  if (request_id.size() > kMaxRequestIdBytes) {
    return absl::InvalidArgumentError(absl::StrCat("delete model ", DisplayName(name),
                                                   ": want a request id of at most ", kMaxRequestIdBytes,
                                                   " bytes, got ", request_id.size()));
  }
  const auto is_deleted = [&]() -> absl::StatusOr<bool> {
    absl::MutexLock lock(&mu_);
    return deletions_.Find(name, request_id);
  };
  ASSIGN_OR_RETURN(bool is_answered, is_deleted());
  if (is_answered) return absl::OkStatus();
  ASSIGN_OR_RETURN(is_answered, DeleteLost(name, request_id));
  if (is_answered) return absl::OkStatus();
  absl::StatusOr<std::shared_ptr<Model>> found = Find(name);
  if (!found.ok()) {
    // The call that this one repeats may have finished since.
    ASSIGN_OR_RETURN(is_answered, is_deleted());
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
  RETURN_IF_ERROR(model->durability().Drop());
  left_readers_.Watch(name, model->committed().publication);
  if (EraseDeleted(model, request_id)) return absl::OkStatus();
  // It was lost meanwhile, or another call has deleted it: a new model of that name may exist by now.
  ASSIGN_OR_RETURN(const bool is_answered, DeleteLost(name, request_id));
  if (is_answered) return absl::OkStatus();
  absl::MutexLock lock(&mu_);
  deletions_.Add(name, request_id);
  return absl::OkStatus();
}

bool ModelStore::EraseDeleted(const std::shared_ptr<Model>& model, const std::string& request_id) {
  absl::MutexLock lock(&mu_);
  const auto found = models_.find(model->spec().name);
  if (found == models_.end() || found->second != model) return false;
  models_.erase(found);
  deletions_.Add(model->spec().name, request_id);
  return true;
}

// No model of that name is made meanwhile; callers that create or look up other models do not wait for the keeper.
absl::StatusOr<bool> ModelStore::DeleteLost(const std::string& name, const std::string& request_id) {
  if (!lost_.Contains(name)) return false;
  ASSIGN_OR_RETURN(const CreationTurns::Turn turn, turns_.TakeToFree(name));
  // The call that held the turn may have been the one that this one repeats.
  {
    absl::MutexLock lock(&mu_);
    ASSIGN_OR_RETURN(const bool is_deleted, deletions_.Find(name, request_id));
    if (is_deleted || !lost_.Contains(name)) return is_deleted;
  }
  RETURN_IF_ERROR(deletion_marks_.Add(name));
  RETURN_IF_ERROR(lost_.FreeAll(name));
  {
    // Both change at once: a call that does not find the model finds the answer.
    absl::MutexLock lock(&mu_);
    lost_.Forget(name);
    deletions_.Add(name, request_id);
  }
  options_.world.cluster->Send(ModelDeleted{.model = name}).IgnoreError();
  return true;
}

void ModelStore::Drain(SteadyTime deadline, const absl::Status& why, DrainSaves saves) {
  {
    absl::MutexLock lock(&mu_);
    draining_ = true;
  }
  const std::vector<std::shared_ptr<Model>> models = List();
  for (const auto& model : models) model->trainers().BeginDrain(why);
  for (const auto& model : models) model->trainers().FinishDrain(deadline);
  if (options_.savers == nullptr) return;
  const SteadyTime saved = SteadyDeadline(options_.savers->drain_timeout());
  for (const auto& model : models) {
    saves == DrainSaves::kUnsaved ? model->saver()->Drain(saved) : AwaitSaves(*model->saver(), saved);
  }
  if (saves != DrainSaves::kUnsaved) return;
  for (const auto& model : models) {
    if (!IsLeftUnsaved(*model)) continue;
    left_unsaved_ = true;
    log_->Write(
        LogLevel::kError, "stopping with unsaved commits",
        {{"model", model->spec().name}, {"commit", absl::StrCat(model->state().snapshot().numbers.commit_number)}});
  }
}

bool ModelStore::IsDraining() const {
  absl::MutexLock lock(&mu_);
  return draining_;
}

void ModelStore::DropKept() const {
  for (const auto& model : List()) {
    if (IsLeftUnsaved(*model)) {
      LogStillKept(model->spec().name, absl::FailedPreconditionError("it could not be saved"));
      continue;
    }
    if (const absl::Status dropped = model->durability().Drop(); !dropped.ok())
      LogStillKept(model->spec().name, dropped);
  }
}

void ModelStore::Hear(const ToNode& message) {
  const auto tell = [this](const std::string& name, auto call) {
    if (const auto model = Find(name); model.ok()) call((*model)->trainers());
  };
  const Overloaded hear = {
      [&](const EpochStart& start) { tell(start.model, [&](TrainerGate& gate) { gate.OnEpochStart(start); }); },
      [&](const LastCommand& last) {
        tell(last.model, [&](TrainerGate& gate) { gate.OnLastCommand(last.epoch, last.command); });
      },
      [&](const CommandsWanted& wanted) {
        tell(wanted.model, [&](TrainerGate& gate) { gate.OnCommandsWanted(wanted.epoch, wanted.unless); });
      },
      [&](const EpochEnded& ended) {
        tell(ended.model, [&](TrainerGate& gate) { gate.OnEpochEnd(ended.epoch, ended.why); });
      },
      [&](const EpochRefused& refused) {
        tell(refused.model, [&](TrainerGate& gate) { gate.OnEpochRefused(refused.why); });
      },
      [this](const SaveMessage& message) { OnSaveMessage(message); },
      [this](const RestoreMessage& message) { OnRestoreMessage(message); },
      // The cluster's own.
      [](const Welcome&) {},
      [](const Moved&) {},
      [](const Probe&) {},
  };
  std::visit(hear, message);
}

void ModelStore::OnSaveMessage(const SaveMessage& message) {
  if (std::holds_alternative<SaveLeaderLost>(message.what)) {
    for (const auto& model : List()) {
      if (model->saver() != nullptr) model->saver()->OnMessage(message);
    }
    return;
  }
  const auto model = Find(message.model);
  if (model.ok() && (*model)->saver() != nullptr) return (*model)->saver()->OnMessage(message);
  RefuseSave(*options_.world.cluster, message,
             model.ok() ? absl::FailedPreconditionError("--save-dir is required for saves") : model.status());
}

void ModelStore::SetRestoreListener(RestoreListener* listener) {
  absl::MutexLock lock(&hearing_);
  restore_listener_ = listener;
}

void ModelStore::OnRestoreMessage(const RestoreMessage& message) {
  absl::MutexLock lock(&hearing_);
  if (restore_listener_ != nullptr) return restore_listener_->OnRestoreMessage(message);
  const absl::Status why = absl::UnavailableError("the daemon is starting or stopping");
  RestoreMessage answer{.model = message.model, .what = RollbackEnd{.status = why}};
  if (const auto* const order = std::get_if<RestoreOrder>(&message.what); order != nullptr) {
    answer.what = RestoreReport{.id = order->id, .status = why};
  } else if (!std::holds_alternative<RollbackNeed>(message.what)) {
    return;
  }
  options_.world.cluster->Send(answer).IgnoreError();
}

}  // namespace paramshard::server
