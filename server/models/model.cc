#include "server/models/model.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "common/model/layout_fingerprint.h"
#include "common/model/model_spec_difference.h"
#include "kernels/base/status_macros.h"
#include "kernels/formats/format.h"
#include "server/base/thread.h"
#include "server/observe/log.h"

namespace paramshard::server {
namespace {

// Largest imbalance of shards that is not logged as a warning.
constexpr double kImbalanceWarning = 1.25;

absl::StatusOr<Topology> TopologyOf(const ModelSpec& spec, const World& world) {
  absl::StatusOr<Topology> topology = Topology::Create({.device_counts = world.cluster->device_counts(),
                                                        .node = world.cluster->node(),
                                                        .device_kind = world.devices.front()->id().kind,
                                                        .mesh_inside = world.engines.mesh_inside},
                                                       spec.shard_size);
  if (topology.ok()) return topology;
  return absl::Status(topology.status().code(),
                      absl::StrCat("create model ", spec.name, ": ", topology.status().message()));
}

// Planes without a master are made once, before other daemons can be asked for their amaxes.
absl::Status CheckFrozen(const ModelSpec& spec, const Topology& topology) {
  if (!topology.spans_daemons()) return absl::OkStatus();
  for (const UnitSpec& unit : spec.units) {
    for (const ParameterSpec& parameter : unit.parameters) {
      const Format format = EncodingOf(parameter.encoding).format;
      if (parameter.master_type.has_value() || !NeedsAmax(format)) continue;
      return absl::InvalidArgumentError(absl::StrCat("create model ", spec.name, ": parameter ", parameter.name,
                                                     ": master_type is required for a frozen parameter of ",
                                                     FormatName(format), " whose rows several daemons own"));
    }
  }
  return absl::OkStatus();
}

// Returns where the adopted state of a rank lies; meaningless if it is to be replaced.
int64_t PositionOf(const LeftModel* left, int rank) {
  return left == nullptr || !left->plan.numbers.has_value() ? 0 : left->plan.numbers->positions[rank];
}

// Returns ABORTED if the epoch that node 0 announces cannot be one of this daemon.
absl::Status CheckActive(const EpochStart& start, const Topology& topology) {
  const std::vector<int>& active = start.active;
  const bool ascends = std::adjacent_find(active.begin(), active.end(), std::greater_equal<>()) == active.end();
  const bool fits = ascends && !active.empty() && active.front() >= 0 && active.back() < topology.nodes() &&
                    std::binary_search(active.begin(), active.end(), topology.node());
  const bool is_whole = static_cast<int>(active.size()) == topology.nodes();
  if (fits && (is_whole || topology.has_replicas())) return absl::OkStatus();
  return absl::AbortedError(absl::StrCat("start epoch ", start.epoch, ": want nodes of this world with node ",
                                         topology.node(), ", got [", absl::StrJoin(active, ", "), "]"));
}

// Returns FAILED_PRECONDITION while an announced import is to replace the state: it is neither trained on nor saved.
absl::Status CheckValuesHaveCome(absl::string_view operation, absl::string_view model, const History& history) {
  if (!history.values_follow) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(operation, " ", model,
                   ": the values that its creator announced have not come; import them, or delete the model"));
}

// Returns null if the node is not healed.
const Healing* HealingOf(const EpochStart& start, int node) {
  const auto found = std::find_if(start.healings.begin(), start.healings.end(),
                                  [node](const Healing& healing) { return healing.receiver == node; });
  return found == start.healings.end() ? nullptr : &*found;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> Model::Create(Options options) {
  ASSIGN_OR_RETURN(Topology topology, TopologyOf(options.spec, options.world));
  RETURN_IF_ERROR(CheckFrozen(options.spec, topology));
  const std::unique_ptr<LeftModel> left = std::exchange(options.left, nullptr);
  if (left != nullptr) options.memory = std::move(left->memory);
  std::unique_ptr<Model> model(new Model(std::move(options), std::move(topology)));
  RETURN_IF_ERROR(model->CheckDevices());
  model->layout_ = std::make_unique<Layout>(model->spec(), model->topology().shard_size());
  std::vector<int64_t> image_bytes;
  if (const SaverSource* const savers = model->options_.savers; savers != nullptr) {
    ASSIGN_OR_RETURN(image_bytes, savers->ImageBytes(model->layout(), model->world()));
  }
  model->budget_.emplace(ModelBudget::Options{.spec = &model->spec(),
                                              .layout = model->layout_.get(),
                                              .topology = &model->topology(),
                                              .devices = model->world().devices,
                                              .available_bytes = model->options_.available_bytes,
                                              .image_bytes = std::move(image_bytes),
                                              .moves = model->options_.moves});
  // Adopted memory is no longer part of the available memory.
  if (left == nullptr) RETURN_IF_ERROR(model->budget_->Check());
  RETURN_IF_ERROR(model->OpenJournal(left.get()));
  RETURN_IF_ERROR(model->AllocateShards(left.get()));
  RETURN_IF_ERROR(left == nullptr ? model->EncodePlanes({}) : model->ResumeState(*left));
  model->layout_fingerprint_ = LayoutFingerprint(*model->layout_);
  if (const SaverSource* const savers = model->options_.savers; savers != nullptr) {
    // A model that exists already is not given up because of its folder.
    const auto trouble =
        left == nullptr ? SaverSource::FolderTrouble::kIsRefused : SaverSource::FolderTrouble::kEndsSaves;
    ASSIGN_OR_RETURN(model->saver_, savers->Make(*model, trouble));
    if (left != nullptr) model->SaveAnswered(left->plan);
  }
  if (left != nullptr) model->DropStalePieces();
  model->LogBudget();
  return model;
}

Model::Model(Options options, Topology topology)
    : options_(std::move(options)),
      topology_(std::move(topology)),
      fingerprint_(ModelSpecFingerprint(WithoutInitialValues(options_.spec))),
      lineage_of_creation_(LineageOfCreation(ModelSpecFingerprint(options_.spec))),
      deletion_(options_.deletion),
      scaling_book_(options_.spec),
      commit_log_(options_.world.rank_count()),
      copy_gate_(options_.world.rank_count(), options_.clock),
      condition_(options_.spec.name, options_.log),
      history_({.id = options_.draw_history(),
                .lineage = lineage_of_creation_,
                .run = options_.values.run,
                .values_follow = options_.values.values_follow}) {}

Model::~Model() {
  {
    absl::MutexLock lock(&mu_);
    closed_ = true;  // a model whose creation failed was never reported, and is not now
  }
  Drain(SteadyTime::min(), absl::UnavailableError("the model was deleted"));
  std::thread thread;
  {
    absl::MutexLock lock(&mu_);
    thread = std::move(epoch_thread_);
  }
  if (thread.joinable()) thread.join();
  saver_.reset();
}

absl::Status Model::CheckDevices() const {
  for (const ComputeDevice* device : world().devices) RETURN_IF_ERROR(device->health().status());
  return absl::OkStatus();
}

void Model::LogBudget() const {
  ShardBytes bytes;
  for (const auto& shard : shards_) bytes += shard->bytes();
  const std::vector<int64_t> scratch = ScratchBytesByRank();
  static_assert(kMomentCount == 2, "a moment that is not logged");
  options_.log->Write(LogLevel::kInfo, "model opened",
                      {{"model", spec().name},
                       {"shard_size", absl::StrCat(topology_.shard_size())},
                       {"master_bytes", absl::StrCat(bytes.master)},
                       {"exp_avg_bytes", absl::StrCat(bytes.moments[MomentKind::kExpAvg])},
                       {"exp_avg_sq_bytes", absl::StrCat(bytes.moments[MomentKind::kExpAvgSq])},
                       {"room_bytes", absl::StrCat(bytes.room)},
                       {"gradients_bytes", absl::StrCat(bytes.gradients)},
                       {"planes_bytes", absl::StrCat(bytes.planes)},
                       {"slots_bytes_per_trainer", absl::StrCat(slots_bytes())},
                       {"scratch_bytes", absl::StrCat(std::accumulate(scratch.begin(), scratch.end(), int64_t{0}))},
                       {"gradient_sums", budget_->sums_at_commit() ? "at commit" : "at push"}});
  if (layout_->Imbalance() <= kImbalanceWarning) return;
  options_.log->Write(LogLevel::kWarning, "shards are uneven: fewer ranks would share the model as well",
                      {{"model", spec().name}, {"busiest_over_fair_share", absl::StrCat(layout_->Imbalance())}});
}

absl::Status Model::OpenJournal(const LeftModel* left) {
  KeptMemory* const memory = options_.memory.get();
  if (memory == nullptr) return absl::OkStatus();
  const JournalIdentity identity = ModelJournal::Describe(spec(), layout(), topology(), options_.moves);
  if (left == nullptr) {
    ASSIGN_OR_RETURN(journal_, ModelJournal::Create(*memory, identity, *world().devices.front()));
  } else {
    ASSIGN_OR_RETURN(journal_, ModelJournal::Adopt(*left->journal, identity, *world().devices.front()));
  }
  journal_->BeforeAnswer(options_.before_answer);
  return absl::OkStatus();
}

void Model::DropStalePieces() {
  const absl::StatusOr<std::vector<std::string>> dropped = options_.memory->DropUnclaimed();
  if (!dropped.ok()) {
    options_.log->Write(LogLevel::kWarning, "memory of a model is still kept",
                        {{"model", spec().name}, {"why", dropped.status().ToString()}});
    return;
  }
  for (const std::string& piece : *dropped) {
    options_.log->Write(LogLevel::kInfo, "freed an unknown piece of a model's memory",
                        {{"model", spec().name}, {"piece", absl::CHexEscape(piece)}});
  }
}

absl::Status Model::AllocateShards(const LeftModel* left) {
  for (int rank = 0; rank < world().rank_count(); ++rank) {
    ASSIGN_OR_RETURN(auto shard,
                     Shard::Create(options_.spec, *layout_, topology_.GroupRank(rank), world().devices[rank],
                                   {.moves = options_.moves,
                                    .memory = options_.memory.get(),
                                    .world_rank = world().first_rank + rank,
                                    .position = PositionOf(left, rank)}));
    shards_.push_back(std::move(shard));
  }
  return absl::OkStatus();
}

absl::Status Model::Publish() {
  absl::MutexLock lock(&mu_);
  if (journal_ == nullptr || is_published()) return absl::OkStatus();
  return journal_->SetUsable(EpochOf(history_, history_begin_, generation_), commit_log_.state(), journaled_state());
}

absl::Status Model::ResumeState(const LeftModel& left) {
  const RecoveryPlan& plan = left.plan;
  if (plan.action == RecoveryAction::kRedoChange) {
    const bool restores = plan.change->kind == ChangeSource::Kind::kCheckpoint;
    absl::MutexLock lock(&mu_);
    condition_.Resume(restores ? ChangeKind::kRestore : ChangeKind::kImport);
  }
  // A checkpoint replaces everything.
  if (!plan.numbers.has_value()) return absl::OkStatus();
  RETURN_IF_ERROR(RecoverState(plan, journaled_state(), topology_.spans_daemons(), commit_log_, *journal_));
  for (const auto& shard : shards_) {
    RETURN_IF_ERROR(shard->BringBackPlanes());
    RETURN_IF_ERROR(shard->EncodePlanes(scaling_book_));
  }
  const JournalEpoch& epoch = *plan.epoch;
  absl::MutexLock lock(&mu_);
  history_ = {.id = epoch.history,
              .lineage = epoch.lineage,
              .parent = epoch.parent,
              .run = epoch.run,
              .values_follow = epoch.values_follow};
  deletion_ = epoch.deletion;
  history_begin_ = epoch.history_begin;
  generation_ = epoch.generation;
  last_epoch_ = epoch.epoch;
  if (!left.doubt.ok()) condition_.SetInDoubt(commit_log_.numbers().commit_number, left.doubt);
  return absl::OkStatus();
}

// Begins the saves that fall due with a commit that this server has answered.
void Model::SaveAnswered(const RecoveryPlan& plan) {
  if (plan.action != RecoveryAction::kAnswerSkip && plan.action != RecoveryAction::kRedoApply) return;
  saver_->OnCommitted(*commit_log_.state().last_answer, plan.prepared->save);
}

JournalEpoch Model::EpochOf(const History& history, int64_t history_begin, int64_t generation) const {
  return {.history = history.id,
          .lineage = history.lineage,
          .parent = history.parent,
          .history_begin = history_begin,
          .generation = generation,
          .epoch = last_epoch_,
          .run = history.run,
          .values_follow = history.values_follow,
          .deletion = deletion_};
}

absl::Status Model::EncodePlanes(absl::Span<const ScalingBook::Record> scaling, Shard::GoesOn goes_on) {
  scaling_book_.Restart();
  for (const auto& shard : shards_) RETURN_IF_ERROR(shard->MeasureAmaxes(scaling_book_, goes_on));
  scaling_book_.Settle(scaling_book_.Offer());
  scaling_book_.Restore(scaling);
  for (const auto& shard : shards_) {
    RETURN_IF_ERROR(shard->EncodePlanes(scaling_book_, goes_on));
    RETURN_IF_ERROR(shard->KeepPlanes());
  }
  return absl::OkStatus();
}

// --- Trainers ---

void Model::Tell(const Trainer& trainer, const absl::Status& why) const {
  trainer.on_ended({.epoch = std::nullopt, .numbers = commit_log_.numbers(), .why = why});
}

absl::Status Model::Attach(Trainer trainer) {
  absl::MutexLock lock(&mu_);
  const int rank = trainer.rank;
  if (draining_) return drain_reason_;
  RETURN_IF_ERROR(CheckDevices());
  // Where the state may come back, node 0 decides what becomes of this trainer.
  if (!may_come_back()) RETURN_IF_ERROR(StateLoss());
  if (StateLoss().ok()) {
    RETURN_IF_ERROR(condition_.doubt());
    RETURN_IF_ERROR(CheckValuesHaveCome("attach", spec().name, history_));
  }
  RETURN_IF_ERROR(condition_.CheckSettled("attach"));
  if (!world().Serves(rank)) {
    return absl::InvalidArgumentError(absl::StrCat("attach ", spec().name, ": want a rank in [", world().first_rank,
                                                   ", ", world().first_rank + world().rank_count(), "), got ", rank));
  }
  if (const Holder holder = HolderLocked(rank); holder.session != 0) {
    return absl::AlreadyExistsError(
        absl::StrCat("attach ", spec().name, ": rank ", rank, " is held by process ", holder.pid));
  }
  waiting_[rank] = std::move(trainer);
  Report();
  return absl::OkStatus();
}

std::shared_ptr<const Recorder> Model::recorder() const {
  absl::MutexLock lock(&mu_);
  return recorder_;
}

std::shared_ptr<Epoch> Model::current_epoch() const {
  absl::MutexLock lock(&mu_);
  return epoch_;
}

Model::Holder Model::HolderOf(int rank) const {
  absl::MutexLock lock(&mu_);
  return HolderLocked(rank);
}

Model::Holder Model::HolderLocked(int rank) const {
  const auto holder = [](const Trainer& trainer) {
    return Holder{.session = trainer.session, .pid = trainer.pid, .uid = trainer.uid};
  };
  if (const auto found = waiting_.find(rank); found != waiting_.end()) return holder(found->second);
  if (Running() && world().Serves(rank) && !epoch_->HasLeft(local(rank))) {
    return holder(epoch_->trainers()[local(rank)]);
  }
  return {};
}

bool Model::LeaveIfWaiting(int64_t session, const absl::Status& why) {
  Trainer left;
  {
    absl::MutexLock lock(&mu_);
    const auto found = std::find_if(waiting_.begin(), waiting_.end(),
                                    [&](const auto& entry) { return entry.second.session == session; });
    if (found == waiting_.end()) return false;
    left = std::move(found->second);
    waiting_.erase(found);
    changed_.SignalAll();
    Report();
  }
  Tell(left, why);
  return true;
}

void Model::Leave(int64_t session, const absl::Status& why) {
  if (LeaveIfWaiting(session, why)) return;
  const std::shared_ptr<Epoch> epoch = current_epoch();
  if (epoch == nullptr) return;
  for (const Trainer& trainer : epoch->trainers()) {
    if (trainer.session != session) continue;
    epoch->MarkGone(local(trainer.rank));
    if (epoch->HasLeft(local(trainer.rank))) {
      absl::MutexLock lock(&mu_);
      changed_.SignalAll();
      return;
    }
    const absl::Status reason(why.code(), absl::StrCat("rank ", trainer.rank, ": ", why.message()));
    // Tells the world first: other daemons then know the reason when this one's engines close their connections.
    options_.world.cluster->EndEpoch(spec().name, epoch->number(), reason);
    OnEpochEnd(epoch->number(), reason);
  }
}

absl::Status Model::Detach(int64_t session, int64_t command_count) {
  if (LeaveIfWaiting(session, absl::AbortedError("the trainer has left"))) return absl::OkStatus();
  const std::shared_ptr<Epoch> epoch = current_epoch();
  if (epoch == nullptr) return absl::OkStatus();
  for (const Trainer& trainer : epoch->trainers()) {
    if (trainer.session == session) return epoch->Detach(local(trainer.rank), command_count);
  }
  return absl::OkStatus();
}

std::vector<const Trainer*> Model::Present() const {
  std::vector<const Trainer*> present;
  if (!Running()) return present;
  for (const Trainer& trainer : epoch_->trainers()) {
    if (!epoch_->HasLeft(local(trainer.rank))) present.push_back(&trainer);
  }
  return present;
}

absl::Status Model::Submit(int64_t session, const v1::Command& command) {
  std::shared_ptr<Epoch> epoch;
  {
    absl::MutexLock lock(&mu_);
    for (const auto& [rank, trainer] : waiting_) {
      if (trainer.session != session) continue;
      return absl::FailedPreconditionError(
          absl::StrCat("command ", command.number(), " of rank ", rank, ": sent before `started`"));
    }
    epoch = epoch_;
  }
  if (epoch == nullptr) return absl::OkStatus();
  for (const Trainer& trainer : epoch->trainers()) {
    if (trainer.session == session) return epoch->Submit(local(trainer.rank), command);
  }
  return absl::OkStatus();
}

// --- Epochs ---

// The cluster starts an epoch when the reports of all daemons cover all ranks. Nothing is reported while an epoch runs
// or ends: trainers that wait for the next one are reported when it is over.
void Model::Report() {
  if (!Idle() || closed_ || silent_) return;
  const CommitLog::Numbers numbers = commit_log_.numbers();
  ModelReport report{.model = spec().name,
                     .spec_fingerprint = fingerprint_,
                     .commit_number = numbers.commit_number,
                     .version = numbers.version,
                     .lineage = history_.lineage.ToString(),
                     .history_id = history_.id.ToString(),
                     .untouched = Untouched(),
                     .fresh = Fresh(),
                     .last_epoch = last_epoch_,
                     .shard_size = topology_.shard_size(),
                     .attached_ranks = {},
                     .needs_every_node = spec().gradient_reduction != GradientReduction::kMean,
                     .lost = may_come_back() ? StateLoss() : absl::OkStatus()};
  ReportPrevious(report);
  for (const auto& [rank, trainer] : waiting_) report.attached_ranks.push_back(rank);
  options_.world.cluster->Report(report);
}

void Model::OnEpochStart(const EpochStart& start) {
  std::thread finished;
  std::vector<Trainer> refused;
  absl::Status started;
  {
    absl::MutexLock lock(&mu_);
    started = StartEpoch(start, finished, refused);
    if (!started.ok()) {
      if (!refused.empty()) last_end_ = started.ToString();
      options_.world.cluster->EndEpoch(spec().name, start.epoch, started);
      Report();
    }
  }
  if (finished.joinable()) finished.join();
  for (const Trainer& trainer : refused) Tell(trainer, started);
}

bool Model::Untouched() const { return commit_log_.numbers().commit_number == history_begin_; }

bool Model::Fresh() const { return Untouched() && history_begin_ == 0 && history_.lineage == lineage_of_creation_; }

// An import over commits leaves their number, and moments: they stay trained.
ValueOrigin Model::OriginOfValues() const {
  if (!StateLoss().ok()) return ValueOrigin::kLost;
  if (condition_.is_restoring() || (Untouched() && history_.parent.has_value())) return ValueOrigin::kRestored;
  if (commit_log_.numbers().commit_number > 0) return ValueOrigin::kTrained;
  if (!Fresh()) return ValueOrigin::kImported;
  return history_.values_follow || condition_.is_importing() ? ValueOrigin::kImporting : ValueOrigin::kInitial;
}

// A commit that could not be written down leaves a whole state: that doubt is not a loss.
absl::Status Model::StateLoss() const {
  RETURN_IF_ERROR(condition_.usable());
  return absl::IsDataLoss(condition_.doubt()) ? condition_.doubt() : absl::OkStatus();
}

absl::Status Model::AdoptHistory(const EpochStart& start) {
  if (start.fork.has_value()) return ForkHistory(start);
  if (start.history_id == history_.id.ToString()) return absl::OkStatus();
  const absl::StatusOr<HistoryId> id = HistoryId::Parse(start.history_id);
  if (!id.ok() || !Untouched() || start.lineage != history_.lineage.ToString()) {
    return absl::AbortedError(absl::StrCat("start epoch ", start.epoch, " of ", spec().name, ": want history ",
                                           history_.id.ToString(), ", got ", start.history_id,
                                           ": the state was replaced after the daemons had agreed; attach again"));
  }
  history_.id = *id;
  return absl::OkStatus();
}

absl::Status Model::StartEpoch(const EpochStart& start, std::thread& finished, std::vector<Trainer>& refused) {
  // A trainer may have left since the report.
  if (!Idle() || draining_ || static_cast<int>(waiting_.size()) != world().rank_count()) {
    return absl::AbortedError("a trainer left before the epoch began");
  }
  RETURN_IF_ERROR(CheckActive(start, topology_));
  const Healing* const healing = HealingOf(start, topology_.node());
  // The journal's record of the epoch begins when the epoch exists.
  RETURN_IF_ERROR(healing != nullptr ? CheckMayHeal(start, *healing) : AdoptHistory(start));
  if (journal_ != nullptr && healing == nullptr) {
    RETURN_IF_ERROR(journal_->BeginEpoch(start.epoch, history_, history_begin_));
  }
  Epoch::Options options{
      .number = start.epoch,
      .history_id = start.history_id,
      .topology = std::make_shared<const Topology>(topology_.Among(start.active)),
      .spec = &options_.spec,
      .layout = layout_.get(),
      .cluster = options_.world.cluster,
      .commit_log = &commit_log_,
      .scaling_book = &scaling_book_,
      .shards = shards_,
      .trainers = {},
      .first_rank = world().first_rank,
      .step_timeout = spec().step_timeout.value_or(options_.step_timeout),
      .clock = options_.clock,
      .engines = world().engines,
      .sums_at_commit = budget_->sums_at_commit(),
      .layout_fingerprint = layout_fingerprint_,
      .copy_gate = &copy_gate_,
      .journal = journal_.get(),
      .metrics = world().metrics,
      .healings = start.healings,
      .send_state = [this](int node, auto engines, SteadyTime deadline) { return SendState(node, engines, deadline); },
      .receive_state = [this, history_id = start.history_id](
                           int node, auto engines,
                           SteadyTime deadline) { return ReceiveState(history_id, node, engines, deadline); }};
  options.on_answered = [this](const CommitAnswer& answer, bool save) {
    last_commit_nanoseconds_ = absl::ToUnixNanos(absl::Now());
    if (saver_ != nullptr) saver_->OnCommitted(answer, save);
  };
  if (saver_ != nullptr) {
    options.may_save = true;
    options.on_save_order = [this](const SaveOrder& order) {
      saver_->OnNews({.model = options_.spec.name, .what = order});
    };
  }
  for (auto& [rank, trainer] : waiting_) options.trainers.push_back(std::move(trainer));
  waiting_.clear();
  last_epoch_ = start.epoch;
  const auto epoch = std::make_shared<Epoch>(std::move(options));
  absl::StatusOr<std::thread> thread =
      StartThread(absl::StrCat("an epoch of ", spec().name), [this, epoch] { RunEpoch(*epoch); });
  if (!thread.ok()) {
    refused = epoch->trainers();
    return thread.status();
  }
  epoch_ = epoch;
  recorder_ = epoch->recorder();
  finished = std::exchange(epoch_thread_, *std::move(thread));
  return absl::OkStatus();
}

void Model::RunEpoch(Epoch& epoch) {
  const std::string number = absl::StrCat(epoch.number());
  options_.log->Write(LogLevel::kInfo, "epoch started", {{"model", spec().name}, {"epoch", number}});
  if (epoch.leaves_nodes_out()) {
    options_.log->Write(LogLevel::kWarning, "replicas go on without some daemons",
                        {{"model", spec().name},
                         {"epoch", number},
                         {"nodes", absl::StrJoin(epoch.topology().active(), ",")},
                         {"of", absl::StrCat(topology_.nodes())}});
  }
  world().metrics->Add(Metric::kEpochsStarted);
  const absl::Status why = epoch.Run();
  world().metrics->AddEpochEnd(epoch.LeftInOrder() ? absl::OkStatus() : why);
  const std::string end = epoch.LeftInOrder() ? "all trainers have detached" : why.ToString();
  options_.log->Write(LogLevel::kInfo, "epoch ended", {{"model", spec().name}, {"epoch", number}, {"why", end}});
  if (!epoch.LeftInOrder()) {
    for (const std::string& words : epoch.last_words()) {
      options_.log->Write(LogLevel::kInfo, "at the end of the epoch",
                          {{"model", spec().name}, {"epoch", number}, {"was", words}});
    }
  }
  absl::Status lost;
  std::map<int, Trainer> refused;
  {
    absl::MutexLock lock(&mu_);
    Settle(epoch);
    copy_gate_.EndCommit();
    epoch_ = nullptr;
    changed_.SignalAll();
    lost = condition_.usable().ok() ? condition_.doubt() : condition_.usable();
    last_end_ = lost.ok() ? end : lost.ToString();
    // Trainers may have attached while the epoch ended. Trainers that attach later are not refused: as soon as the lock
    // is given up an import may settle the doubt.
    const bool may_wait = may_come_back() && !StateLoss().ok();
    if (!lost.ok() && !may_wait) refused = std::exchange(waiting_, {});
    Report();
  }
  if (saver_ != nullptr) saver_->OnSettled();
  for (const auto& [rank, trainer] : refused) Tell(trainer, lost);
}

std::optional<absl::Time> Model::last_commit_time() const {
  const int64_t nanoseconds = last_commit_nanoseconds_;
  return nanoseconds == 0 ? std::nullopt : std::optional(absl::FromUnixNanos(nanoseconds));
}

void Model::Settle(const Epoch& epoch) {
  const int64_t last = commit_log_.numbers().commit_number;
  if (const absl::Status torn = epoch.torn(); !torn.ok()) condition_.BreakCommit(last, torn);
  if (const absl::Status unwritten = epoch.unwritten(); !unwritten.ok()) condition_.SetUnwritten(unwritten);
  if (const absl::Status unknown = epoch.doubt(); !unknown.ok()) condition_.SetInDoubt(last, unknown);
}

void Model::OnLastCommand(int64_t number, int64_t command) {
  const std::shared_ptr<Epoch> epoch = current_epoch();
  if (epoch != nullptr && epoch->number() == number) epoch->SetLastCommand(command);
}

void Model::OnCommandsWanted(int64_t number, const CommandsThrough& unless) {
  const std::shared_ptr<Epoch> epoch = current_epoch();
  if (epoch != nullptr && epoch->number() == number) epoch->ReportCommands(unless);
}

void Model::OnEpochEnd(int64_t number, const absl::Status& why) {
  absl::MutexLock lock(&mu_);
  if (epoch_ != nullptr && epoch_->number() == number) epoch_->End(why);
  changed_.SignalAll();
}

void Model::OnEpochRefused(const absl::Status& why) {
  std::map<int, Trainer> refused;
  {
    absl::MutexLock lock(&mu_);
    refused = std::exchange(waiting_, {});
    last_end_ = why.ToString();
    Report();
    changed_.SignalAll();
  }
  for (const auto& [rank, trainer] : refused) Tell(trainer, why);
}

void Model::BeginDrain(const absl::Status& why) {
  std::shared_ptr<Epoch> epoch;
  {
    absl::MutexLock lock(&mu_);
    draining_ = true;
    drain_reason_ = why;
    epoch = epoch_;
    condition_.Cancel();
  }
  OnEpochRefused(why);
  if (epoch != nullptr) epoch->EndAfterCommits(why);
  absl::MutexLock lock(&mu_);
  changed_.SignalAll();
}

void Model::FinishDrain(SteadyTime deadline) {
  const Clock& clock = *options_.clock;
  absl::MutexLock lock(&mu_);
  while ((!Idle() || condition_.is_changing()) && clock.Now() < deadline) {
    changed_.WaitUntil(&mu_, After(SteadyNow(), Until(deadline, clock.Now())));
  }
  if (!Idle()) epoch_->End(drain_reason_);
}

absl::Status Model::CheckVacant(absl::string_view operation) const {
  const Trainer* trainer = nullptr;
  if (!waiting_.empty()) trainer = &waiting_.begin()->second;
  if (const std::vector<const Trainer*> present = Present(); !present.empty()) trainer = present.front();
  if (trainer == nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(operation, " ", spec().name, ": rank ", trainer->rank, " is held by process ", trainer->pid));
}

void Model::AwaitSettledEpoch() const {
  const SteadyTime deadline = SteadyDeadline(spec().step_timeout.value_or(options_.step_timeout));
  while (Running() && Present().empty() && !changed_.WaitUntil(&mu_, deadline)) {
  }
  // An epoch that has ended is soon over.
  const auto settled = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return Idle() || Running(); };
  mu_.Await(absl::Condition(&settled));
}

absl::Status Model::AwaitVacant(absl::string_view operation) const {
  AwaitSettledEpoch();
  RETURN_IF_ERROR(CheckVacant(operation));
  if (Idle()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(operation, " ", spec().name, ": epoch ", epoch_->number(),
                                                    " still runs at other daemons; let their trainers leave"));
}

int64_t Model::plane_copy_bytes() const {
  int64_t bytes = 0;
  for (const auto& shard : shards_) bytes += shard->plane_copy_bytes();
  return bytes;
}

void Model::Silence() {
  absl::MutexLock lock(&mu_);
  silent_ = true;
}

bool Model::outlives_server() const { return journal_ != nullptr; }

// A second deletion must not drop the memory of another model of that name. The keeper drops all pieces at once: the
// journal, to which an epoch that ends may still write, does not record it.
absl::Status Model::DropMemory(absl::FunctionRef<absl::Status(KeptMemory& memory)> drop) {
  absl::MutexLock lock(&dropping_);
  if (options_.memory == nullptr || memory_dropped_) return absl::OkStatus();
  RETURN_IF_ERROR(drop(*options_.memory));
  memory_dropped_ = true;
  return absl::OkStatus();
}

absl::Status Model::DropMemory() {
  return DropMemory([](KeptMemory& memory) { return memory.Drop(); });
}

absl::Status Model::DropMemoryBut(const std::string& piece) {
  return DropMemory([&](KeptMemory& memory) { return memory.DropAllBut(piece); });
}

void Model::LeaveMemory(absl::FunctionRef<bool()> leave) {
  absl::MutexLock lock(&dropping_);
  if (leave()) memory_dropped_ = true;
}

absl::Status Model::Close(const absl::Status& why) {
  if (saver_ != nullptr) RETURN_IF_ERROR(saver_->CheckIdle("delete model"));
  RETURN_IF_ERROR(CloseToTrainers(why));
  // Another model of this name may need the folder while a caller still holds this one.
  if (saver_ != nullptr) saver_->Stop();
  return absl::OkStatus();
}

absl::Status Model::CloseToTrainers(const absl::Status& why) {
  absl::MutexLock lock(&mu_);
  RETURN_IF_ERROR(CheckVacant("delete model"));
  RETURN_IF_ERROR(condition_.CheckSettled("delete model"));
  if (!closed_) {
    draining_ = true;
    closed_ = true;
    drain_reason_ = why;
    // Also ends a vote that is in doubt: the fate of its commit does not matter here any more. A silent model has lost
    // its name, which another model may have.
    if (!silent_) options_.world.cluster->Forget(spec().name);
    // Its own trainers have left the epoch. The world's word for the end may never come: node 0 may hang.
    if (epoch_ != nullptr) epoch_->End(absl::AbortedError(absl::StrCat("model ", spec().name, " was deleted")));
  }
  const auto idle = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return Idle(); };
  mu_.Await(absl::Condition(&idle));
  return absl::OkStatus();
}

// --- Copies ---

absl::StatusOr<Model::HeldState> Model::HoldState() {
  HeldState held;
  {
    absl::MutexLock lock(&mu_);
    RETURN_IF_ERROR(condition_.usable());
    RETURN_IF_ERROR(condition_.CheckSettled("save"));
    RETURN_IF_ERROR(CheckValuesHaveCome("save", spec().name, history_));
    if (topology_.spans_daemons() && !scaling_book_.is_settled()) {
      return absl::UnavailableError(absl::StrCat("save ", spec().name,
                                                 ": amaxes of the last commit are not shared by all daemons yet; "
                                                 "save after the next epoch has started"));
    }
    if (!copy_gate_.BeginCopy()) {
      return absl::AbortedError(absl::StrCat("save ", spec().name, ": a commit is in progress"));
    }
    held = {.numbers = StateLocked().numbers,
            .generation = generation_,
            .parent = history_.parent,
            .commits = commit_log_.state()};
  }
  // Histories may be many megabytes, and only steps and changes wait for this copy of them.
  held.scaling = scaling_book_.records();
  return held;
}

bool Model::untouched() const {
  absl::MutexLock lock(&mu_);
  return Untouched();
}

bool Model::fresh() const {
  absl::MutexLock lock(&mu_);
  return Fresh();
}

ValueOrigin Model::origin() const {
  absl::MutexLock lock(&mu_);
  return OriginOfValues();
}

bool Model::idle() const {
  absl::MutexLock lock(&mu_);
  return Idle();
}

void Model::ReleaseState(int rank) {
  copy_gate_.EndCopy(rank);
  absl::MutexLock lock(&mu_);
  changed_.SignalAll();
}

void Model::ReleaseState() {
  copy_gate_.EndCopies();
  absl::MutexLock lock(&mu_);
  changed_.SignalAll();
}

absl::Status Model::CheckHeld() const {
  if (!copy_gate_.is_given_up()) return absl::OkStatus();
  return absl::AbortedError(
      absl::StrCat("save ", spec().name, ": the copy timed out: the next commit did not wait any longer"));
}

Model::State Model::StateLocked() const {
  const CommitLog::Numbers numbers = commit_log_.numbers();
  return {.numbers = {.history = history_.id, .commit_number = numbers.commit_number, .version = numbers.version},
          .lineage = history_.lineage,
          .generation = generation_};
}

Model::State Model::state() const {
  absl::MutexLock lock(&mu_);
  return StateLocked();
}

History Model::history() const {
  absl::MutexLock lock(&mu_);
  return history_;
}

absl::StatusOr<Model::State> Model::Look(absl::string_view operation) const {
  absl::MutexLock lock(&mu_);
  RETURN_IF_ERROR(condition_.usable());
  RETURN_IF_ERROR(condition_.CheckSettled(operation));
  return StateLocked();
}

absl::Status Model::usable() const {
  absl::MutexLock lock(&mu_);
  return condition_.usable();
}

absl::Status Model::doubt() const {
  absl::MutexLock lock(&mu_);
  return condition_.doubt();
}

absl::Status Model::unfinished() const {
  absl::MutexLock lock(&mu_);
  return condition_.unfinished();
}

// --- Inspection ---

Model::Activity Model::activity() const {
  std::shared_ptr<Epoch> epoch;
  Activity activity;
  {
    absl::MutexLock lock(&mu_);
    epoch = epoch_;
    activity.epoch = last_epoch_;
    activity.running = Running();
    activity.last_end = last_end_;
    activity.restore = condition_.progress();
    activity.rollback = rollback_;
    for (const auto& [rank, trainer] : waiting_)
      activity.trainers.push_back({.trainer = trainer, .waits_for = "other ranks"});
  }
  if (epoch == nullptr) return activity;
  // Memory is held until the epoch's thread has finished, also while the epoch ends.
  activity.slots_bytes = epoch->slots_bytes();
  activity.words_bytes = epoch->words_bytes();
  for (int rank = 0; rank < world().rank_count(); ++rank) activity.scratch_bytes.push_back(epoch->scratch_bytes(rank));
  if (!activity.running) return activity;
  for (const Trainer& trainer : epoch->trainers()) {
    if (epoch->HasLeft(local(trainer.rank))) continue;
    activity.trainers.push_back({.trainer = trainer,
                                 .epoch = epoch->number(),
                                 .last_command = epoch->last_command(local(trainer.rank)),
                                 .waits_for = epoch->WaitsFor(local(trainer.rank))});
  }
  activity.engine = epoch->engine();
  if (epoch->leaves_nodes_out()) activity.active_nodes = epoch->topology().active();
  return activity;
}

std::vector<int> Model::MissingRanks() const {
  absl::MutexLock lock(&mu_);
  std::vector<int> missing;
  if (Running()) return missing;
  for (int i = 0; i < world().rank_count(); ++i) {
    if (!waiting_.contains(world().first_rank + i)) missing.push_back(world().first_rank + i);
  }
  return missing;
}

}  // namespace paramshard::server
