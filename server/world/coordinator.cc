#include "server/world/coordinator.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/model/names.h"
#include "kernels/base/status_macros.h"
#include "server/observe/log.h"
#include "server/world/state_difference.h"

namespace paramshard::server {
namespace {

// Largest epoch number accepted from a node, so that larger numbers remain.
constexpr int64_t kLastEpoch = int64_t{1} << 62;

absl::Status LastEpochError(const ModelReport& report) {
  return absl::InvalidArgumentError(absl::StrCat("report of ", report.model, ": want a last epoch in [0, ", kLastEpoch,
                                                 "], got ", report.last_epoch));
}

// Largest number of models and longest reason that a node may report, since the coordinator keeps its reports.
constexpr int64_t kMostModels = 1000;
constexpr size_t kMostReasonBytes = 64 << 10;

// INVALID_ARGUMENT a report is larger than a daemon's can be.
absl::Status CheckReport(const ModelReport& report, int devices) {
  if (const absl::Status name = CheckName(report.model); !name.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("report of a model: invalid name: ", name.message()));
  }
  const bool is_short = report.history_id.size() <= kMaxNameBytes && report.lineage.size() <= kMaxNameBytes &&
                        report.lost.message().size() <= kMostReasonBytes;
  if (is_short && static_cast<int>(report.attached_ranks.size()) <= devices) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("report of ", report.model, ": want ids of at most ", kMaxNameBytes,
                                                 " bytes, a reason of at most ", kMostReasonBytes, ", and at most ",
                                                 devices, " attached ranks, got more"));
}

absl::Status TooManyModelsError(const std::string& model, int node) {
  return absl::ResourceExhaustedError(
      absl::StrCat("report of ", model, ": want at most ", kMostModels, " models of node ", node, ", got more"));
}

absl::Status NodeLostError(const std::string& node, const std::string& model) {
  return absl::UnavailableError(
      absl::StrCat(node, " lost: attach again when its daemon serves again. Without a keeper its shards of ", model,
                   " are gone unless another daemon holds a replica, or they were saved or exported"));
}

void ForgetAttached(ModelReports& reports, const std::vector<int>& nodes) {
  for (const int node : nodes) {
    if (reports[node].has_value()) reports[node]->attached_ranks.clear();
  }
}

}  // namespace

Coordinator::Model::Model(std::string name, int nodes)
    : ModelFacts{.name = std::move(name), .reports = ModelReports(nodes), .is_new = std::vector<bool>(nodes)},
      rendezvous(nodes) {
  awaited.resize(nodes);
  std::iota(awaited.begin(), awaited.end(), 0);
  active = awaited;
}

Coordinator::Coordinator(Options options)
    : options_(std::move(options)),
      members_(options_.nodes),
      links_(options_.attendance.first_stay),
      sinks_(options_.nodes) {
  if (!options_.device_counts.empty()) members_.SetDeviceCounts(options_.device_counts);
  for (const ClosedEpoch& before : options_.closed) {
    Model& model = models_.try_emplace(before.model, before.model, options_.nodes).first->second;
    if (before.epoch > model.last_epoch) TakeActive(before, model);
    model.last_epoch = model.epoch_floor = std::max(model.epoch_floor, before.epoch);
    model.before.push_back(before);
    if (before.replaced.empty()) continue;
    model.replaced = {.ids = {before.replaced.begin(), before.replaced.end()}, .by = before.history_id};
  }
}

void Coordinator::TakeActive(const ClosedEpoch& before, Model& model) {
  if (options_.attendance.Needed(options_.nodes) == options_.nodes) return;
  const std::vector<int>& active = before.active;
  const bool is_known = !active.empty() && active.front() == 0 && active.back() < options_.nodes;
  model.unknown_epoch = is_known ? 0 : before.epoch;
  if (is_known) model.awaited = active;
}

// Membership.

absl::Status Coordinator::Join(int node, int device_count, NodeSink* sink) {
  const Lock lock(this);
  if (stopped_) return StoppedError();
  const bool was_sized = members_.sized();
  RETURN_IF_ERROR(members_.Join(node, device_count));
  sinks_[node] = sink;
  sink->OnWelcome(members_.nodes());
  const std::vector<int>& counts = members_.device_counts();
  if (was_sized) {
    sink->OnWorld(counts);
  } else if (members_.sized()) {
    TellAll([&](NodeSink& other) { other.OnWorld(counts); });
  }
  for (auto& [name, model] : models_) TryStart(name, model);
  world_changed_.SignalAll();
  return absl::OkStatus();
}

absl::Status Coordinator::Move(int node, int64_t connection, NodeSink* sink) {
  const Lock lock(this);
  if (stopped_) return StoppedError();
  sinks_[node]->OnMoved(connection);
  sinks_[node] = sink;
  sink->OnWelcome(members_.nodes());
  return absl::OkStatus();
}

void Coordinator::Leave(int node) {
  const Lock lock(this);
  if (!members_.present(node)) return;
  members_.Leave(node);
  links_.Forget(node);
  sinks_[node] = nullptr;
  TellLostParts(node);
  TellLostRestores(node);
  for (auto& [name, model] : models_) {
    const bool is_order_over = IsOrderedDonor(model, node) && model.order->epoch() == 0 && model.order->HasTwin();
    if (is_order_over) EndOrder(name, model, "the node is lost, and others with its state go on");
    model.reports[node].reset();
    if (model.running && Has(model.active, node)) End(name, model, NodeLostError(NodeName(members_, node), name));
    TryStart(name, model);
  }
  // Forget models that only this node has reported and that were never trained.
  std::erase_if(models_, [](const auto& entry) {
    const Model& model = entry.second;
    return model.last_epoch == model.epoch_floor && model.before.empty() &&
           std::none_of(model.reports.begin(), model.reports.end(),
                        [](const auto& report) { return report.has_value(); });
  });
  world_changed_.SignalAll();
}

void Coordinator::AskWorld(int node) {
  absl::MutexLock lock(&mu_);
  if (sinks_[node] != nullptr) sinks_[node]->OnWorld(members_.device_counts());
}

std::vector<int> Coordinator::device_counts() const {
  absl::MutexLock lock(&mu_);
  return members_.device_counts();
}

absl::Status Coordinator::AwaitWorld(absl::Duration timeout) {
  const SteadyTime deadline = SteadyDeadline(timeout);
  absl::MutexLock lock(&mu_);
  while (!stopped_ && !members_.sized() && !world_changed_.WaitUntil(&mu_, deadline)) {
  }
  if (stopped_) return StoppedError();
  if (members_.sized()) return absl::OkStatus();
  return MissingNodesError(members_.device_counts(), timeout);
}

// Epochs.

void Coordinator::Report(int node, const ModelReport& report) {
  const Lock lock(this);
  if (stopped_ || !members_.present(node)) return;
  if (const absl::Status sound = CheckReport(report, members_.device_counts()[node]); !sound.ok()) {
    return sinks_[node]->OnEpochRefused(report.model.substr(0, kMaxNameBytes), sound);
  }
  Model* const known = Find(report.model);
  // An epoch of this coordinator may have a higher number.
  if (report.last_epoch < 0 || report.last_epoch > std::max(kLastEpoch, known == nullptr ? 0 : known->last_epoch)) {
    return sinks_[node]->OnEpochRefused(report.model, LastEpochError(report));
  }
  if (known == nullptr && ModelsOf(node) >= kMostModels) {
    return sinks_[node]->OnEpochRefused(report.model, TooManyModelsError(report.model, node));
  }
  auto [it, added] = models_.try_emplace(report.model, report.model, members_.nodes());
  Model& model = it->second;
  if (added) model.last_epoch = model.epoch_floor = forgotten_epoch_;
  // A node that has not heard of that epoch's start has made no commit of it.
  if (node != 0 && report.last_epoch < model.unknown_epoch) std::erase(model.awaited, node);
  model.reports[node] = report;
  // A node that takes part reports nothing before it hears of the epoch's end: this report is older than the start.
  const bool is_gone = model.gathering.has_value() && model.gathering->gone.contains(node);
  model.is_new[node] = !model.running || !Has(model.active, node) || is_gone;
  CheckOrder(it->first, model, node);
  model.running ? CheckReturner(it->first, model, node) : TryStart(it->first, model);
}

int64_t Coordinator::ModelsOf(int node) const {
  return std::count_if(models_.begin(), models_.end(),
                       [node](const auto& model) { return model.second.reports[node].has_value(); });
}

void Coordinator::Forget(int node, absl::string_view name) {
  const Lock lock(this);
  Model* const model = Find(name);
  if (model == nullptr) return;
  model->reports[node].reset();
  // Node 0 leads the rollback, and does not answer for a model that it does not have.
  if (node == 0) model->rolls_back.reset();
  if (IsOrderedDonor(*model, node)) EndOrder(std::string(name), *model, "its model is deleted");
  if (model->running && Has(model->active, node)) {
    End(std::string(name), *model,
        absl::AbortedError(absl::StrCat("model ", name, ": deleted on ", NodeName(members_, node))));
  }
  EraseIfForgotten(name);
}

void Coordinator::EraseIfForgotten(absl::string_view name) {
  const auto it = models_.find(name);
  for (const std::optional<ModelReport>& report : it->second.reports) {
    if (report.has_value()) return;
  }
  const Model& model = it->second;
  forgotten_epoch_ = std::max(forgotten_epoch_, model.last_epoch);
  // Nodes may still ask about an epoch that another coordinator began.
  if (options_.log != nullptr && model.last_epoch > model.epoch_floor) {
    WriteInLog([&] {
      options_.log->Forget(name);
      return absl::OkStatus();
    }).IgnoreError();
  }
  models_.erase(it);
}

void Coordinator::EndEpoch(int node, absl::string_view name, int64_t epoch, const absl::Status& why) {
  const Lock lock(this);
  Model* const model = FindRunning(name, epoch);
  if (model == nullptr || !Has(model->active, node)) return;
  // Trainers of a node that has reported bad links leave, and connections to it break.
  model->gathering.has_value() ? Gather(node, std::string(name), *model) : End(std::string(name), *model, why);
}

// A first report is compared with a voter's commands, if there is a voter.
void Coordinator::ReportCommands(int node, absl::string_view name, int64_t epoch,
                                 const std::vector<CommandInWords>& commands) {
  const Lock lock(this);
  Model* const model = FindRunning(name, epoch);
  if (model == nullptr) return;
  if (absl::Status status = model->commands.Add(node, commands); !status.ok()) {
    return End(std::string(name), *model, status);
  }
  const std::optional<int> other = model->book.VoterBeside(node);
  if (other.has_value() && model->commands.HasReported(node)) DemandCommands(std::string(name), *model, *other);
}

void Coordinator::ReportDetached(int node, absl::string_view name, int64_t epoch, int rank, int64_t command_count,
                                 const absl::Status& why) {
  const Lock lock(this);
  Model* const model = FindRunning(name, epoch);
  if (model == nullptr || !Has(model->active, node) || !members_.ranks(node).Contains(rank)) return;
  if (model->departures.Add(rank, command_count, why)) {
    const int64_t last = *model->departures.last_command();
    TellActive(*model, [&](NodeSink& sink) { sink.OnLastCommand(std::string(name), epoch, last); });
  }
  EndIfAllIsDone(std::string(name), *model);
}

void Coordinator::ReportCarriedOut(int node, absl::string_view name, int64_t epoch, int64_t command, bool more) {
  const Lock lock(this);
  Model* const model = FindRunning(name, epoch);
  if (model == nullptr) return;
  model->departures.AddProgress(node, command, more);
  EndIfAllIsDone(std::string(name), *model);
}

void Coordinator::EndIfAllIsDone(const std::string& name, Model& model) {
  if (absl::Status why = model.departures.End(RanksOf(model.active)); !why.ok()) End(name, model, why);
}

Coordinator::Model* Coordinator::Find(absl::string_view name) {
  const auto it = models_.find(name);
  return it == models_.end() ? nullptr : &it->second;
}

Coordinator::Model* Coordinator::FindRunning(absl::string_view name, int64_t epoch) {
  Model* const model = Find(name);
  return model != nullptr && model->running && model->last_epoch == epoch ? model : nullptr;
}

int Coordinator::RanksOf(const Nodes& nodes) const {
  int ranks = 0;
  for (const int node : nodes) ranks += members_.device_counts()[node];
  return ranks;
}

bool Coordinator::IsAttached(const Model& model, int node) const { return server::IsAttached(model, members_, node); }

bool Coordinator::MayLeaveOut(const Model& model) const {
  return server::MayLeaveOut(model, members_, options_.attendance);
}

WorldFacts Coordinator::FactsNow() {
  const SteadyTime now = SteadyNow();
  links_.TryAgain(now);
  return {.members = members_,
          .policy = options_.attendance,
          .left_out = links_.left_out(),
          .has_saves = !options_.terms.save_dir.empty(),
          .now = now};
}

void Coordinator::TryStart(const std::string& name, Model& model) {
  while (!stopped_ && !model.running && !model.rolls_back.has_value()) {
    EpochPlan plan = PlanEpoch(model, FactsNow());
    if (auto* const start = std::get_if<StartEpoch>(&plan); start != nullptr) {
      return Start(name, model, std::move(start->nodes), std::move(start->healings));
    }
    if (const auto* const wait = std::get_if<WaitToStart>(&plan); wait != nullptr) {
      if (IsAwaited(model)) LogWait(model, *wait);
      return;
    }
    if (const auto* const back = std::get_if<RollBack>(&plan); back != nullptr) {
      model.rolls_back = back->why;
      sinks_[0]->OnRestoreNews({.model = name, .what = RollbackNeed{.why = back->why}});
      return;
    }
    if (std::holds_alternative<DropOrder>(plan)) {
      EndOrder(name, model, "the node has another state now, or none");
      continue;
    }
    const auto& refusal = std::get<RefuseToStart>(plan);
    if (refusal.nodes.empty()) return RefuseStart(name, model, refusal.why);
    for (const auto& [node, why] : refusal.nodes) RefuseNode(name, model, node, why);
  }
}

// Trainers that have still to attach are the usual case.
void Coordinator::LogWait(Model& model, const WaitToStart& wait) const {
  using For = WaitToStart::For;
  if (std::exchange(model.waits_for, wait.what) == wait.what || wait.what == For::kTrainers) return;
  Log(wait.what == For::kState ? LogLevel::kWarning : LogLevel::kInfo, "no epoch starts",
      {{"model", model.name}, {"why", wait.why}});
}

std::optional<std::string> Coordinator::WhyNoEpoch(absl::string_view name) {
  absl::MutexLock lock(&mu_);
  const Model* const model = Find(name);
  if (model == nullptr || model->running) return std::nullopt;
  if (!IsAwaited(*model) && !model->rolls_back.has_value() && model->refused.ok()) return std::nullopt;
  if (model->rolls_back.has_value()) return ToText(RollBack{.why = *model->rolls_back});
  std::string text = ToText(PlanEpoch(*model, FactsNow()));
  if (!model->refused.ok()) absl::StrAppend(&text, "; the last start was refused: ", model->refused.message());
  return text;
}

// Returns the ranks of the first replica that takes part, or all ranks.
RankRange Coordinator::FirstGroup(const Model& model, const ModelReport& state) const {
  const int begin = members_.ranks(model.active[0]).begin;
  return {begin, begin + state.shard_size};
}

// This coordinator does not know the epochs of other coordinators.
void Coordinator::SkipEpochsOfOthers(Model& model) {
  for (const std::optional<ModelReport>& report : model.reports) {
    if (!report.has_value() || report->last_epoch <= model.last_epoch) continue;
    model.last_epoch = model.epoch_floor = report->last_epoch;
  }
}

void Coordinator::Start(const std::string& name, Model& model, Nodes nodes, std::vector<Healing> healings) {
  const ModelReport& from = *model.reports[FirstWithState(nodes, healings)];
  ModelReport state = from;
  // An order to heal gives up other states, which may have gone on under the same history.
  const bool forks = model.order.has_value() && !healings.empty() && !model.order->HasBegun(from);
  if (forks) state.history_id = state.lineage = DrawHistoryId();
  SkipEpochsOfOthers(model);
  // An import may bring a replaced history back.
  model.replaced.ids.erase(state.history_id);
  model.replaced.by = state.history_id;
  if (const absl::Status written = WriteBegun(name, state, nodes, model.last_epoch + 1); !written.ok()) {
    return RefuseStart(name, model, written);
  }
  ++model.last_epoch;
  model.unknown_epoch = 0;
  model.running = true;
  model.waits_for = {};
  model.refused = absl::OkStatus();
  model.active = std::move(nodes);
  std::erase_if(model.awaited, [&](int node) { return !Has(model.active, node); });
  model.history_id = state.history_id;
  model.is_new.assign(members_.nodes(), false);
  model.book.StartEpoch(state.commit_number, FirstGroup(model, state), static_cast<int>(model.active.size()));
  model.commands = CommandLedger();
  model.departures = Departures(model.active);
  model.rendezvous.StartEpoch(model.active);
  ForgetAttached(model.reports, model.active);
  BeginByOrder(name, model, healings, state.history_id);
  EpochStart start{.epoch = model.last_epoch,
                   .lineage = state.lineage,
                   .history_id = state.history_id,
                   .active = model.active,
                   .healings = std::move(healings)};
  if (forks) {
    start.fork = {.history_id = from.history_id, .lineage = from.lineage, .commit_number = from.commit_number};
  }
  TellActive(model, [&](NodeSink& sink) { sink.OnEpochStart(name, start); });
  WarnWhoIsNeeded(name, model);
  for (int node = 0; node < members_.nodes(); ++node) {
    if (!Has(model.active, node)) LogHeldBack(name, node);
  }
}

absl::Status Coordinator::WriteBegun(const std::string& name, const ModelReport& state, const Nodes& nodes,
                                     int64_t epoch) {
  if (options_.log == nullptr) return absl::OkStatus();
  const std::set<std::string>& replaced = Find(name)->replaced.ids;
  const ClosedEpoch begun{.model = name,
                          .history_id = state.history_id,
                          .epoch = epoch,
                          .commit_number = state.commit_number,
                          .active = nodes,
                          .device_counts = members_.device_counts(),
                          .replaced = {replaced.begin(), replaced.end()}};
  const absl::Status written = WriteInLog([&] { return options_.log->BeginEpoch(begun); });
  if (written.ok()) return written;
  return absl::Status(written.code(), absl::StrCat("start epoch of ", name, ": node 0 failed to write to its ",
                                                   "--state-dir: ", written.message()));
}

absl::Status Coordinator::WriteInLog(absl::FunctionRef<absl::Status()> write) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  is_writing_ = true;
  mu_.Unlock();
  absl::Status written = write();
  mu_.Lock();
  is_writing_ = false;
  written_.SignalAll();
  return written;
}

void Coordinator::End(const std::string& name, Model& model, const absl::Status& why, bool by_votes) {
  model.running = false;
  model.last_end = {model.last_epoch, why, by_votes};
  model.book.EndEpoch();
  AnswerVoters(name, model, model.book.last_commit_number() + 1);
  model.rendezvous.Clear(EpochOverError(name, model.last_epoch), answers_);
  // The links stay cut, whatever ends the epoch.
  if (model.gathering.has_value() && MayLeaveOut(model)) links_.LeaveOut(SteadyNow());
  // A returner may have ended the epoch if there was no commit with it. Nodes with cut links are left out anyway.
  for (const int node : model.active) {
    if (!Has(model.awaited, node) && members_.present(node) && !links_.IsLeftOut(node)) members_.CountLoss(node);
  }
  const std::set<int> gone = std::exchange(model.gathering, std::nullopt).value_or(Gathering()).gone;
  for (const int node : model.active) {
    // Nodes that have ended the epoch may have reported since. Trainers of other nodes wait for the next epoch.
    if (gone.contains(node)) continue;
    ForgetAttached(model.reports, {node});
    if (sinks_[node] != nullptr) sinks_[node]->OnEpochEnd(name, model.last_epoch, why);
  }
}

void Coordinator::RefuseStart(const std::string& name, Model& model, const absl::Status& why) {
  if (!IsAwaited(model)) return;
  model.refused = why;
  for (std::optional<ModelReport>& report : model.reports) {
    if (report.has_value()) report->attached_ranks.clear();
  }
  TellAll([&](NodeSink& sink) { sink.OnEpochRefused(name, why); });
}

void Coordinator::RefuseNode(const std::string& name, Model& model, int node, const absl::Status& why) {
  model.reports[node]->attached_ranks.clear();
  sinks_[node]->OnEpochRefused(name, why);
}

template <typename Call>
void Coordinator::TellAll(Call call) {
  for (NodeSink* const sink : sinks_) {
    if (sink != nullptr) call(*sink);
  }
}

template <typename Call>
void Coordinator::TellActive(const Model& model, Call call) {
  for (const int node : model.active) {
    if (sinks_[node] != nullptr) call(*sinks_[node]);
  }
}

absl::Status Coordinator::EpochOverError(absl::string_view model, int64_t epoch) {
  return absl::AbortedError(absl::StrCat("epoch ", epoch, " of ", model, ": over"));
}

absl::Status Coordinator::StoppedError() { return absl::UnavailableError("cluster: stopped, the daemon drains"); }

bool Coordinator::Has(const Nodes& nodes, int node) { return std::binary_search(nodes.begin(), nodes.end(), node); }

void Coordinator::Stop() {
  const Lock lock(this);
  if (stopped_) return;
  stopped_ = true;
  TellAll([](NodeSink& sink) { sink.OnStop(); });
  for (auto& [name, model] : models_) {
    AnswerVoters(name, model, model.book.last_commit_number() + 1);
    model.rendezvous.Clear(StoppedError(), answers_);
  }
  world_changed_.SignalAll();
}

}  // namespace paramshard::server
