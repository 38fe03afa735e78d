#include "server/cluster/coordinator.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <numeric>
#include <set>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "kernels/base/status_macros.h"
#include "server/cluster/state_difference.h"
#include "server/log/log.h"

namespace paramshard::server {
namespace {

absl::Status EpochOverError(absl::string_view model, int64_t epoch) {
  return absl::AbortedError(absl::StrCat("epoch ", epoch, " of ", model, ": over"));
}

CommitQuery QueryOf(const CommitVote& vote) {
  return {.model = vote.model, .history_id = vote.history_id, .epoch = vote.epoch, .commit_number = vote.commit_number};
}

// The epoch is one of a coordinator or a model that is gone, and so are its decisions.
absl::Status InDoubtError(const CommitQuery& query) {
  return absl::DataLossError(absl::StrCat("vote ", query.model, " commit ", query.commit_number, ": epoch ",
                                          query.epoch,
                                          " is unknown to node 0, which was restarted or has deleted the model"));
}

absl::Status ForgottenError(const CommitQuery& query) {
  return absl::DataLossError(absl::StrCat("vote ", query.model, " commit ", query.commit_number,
                                          ": node 0 has decided later ones, or goes on from another state, and ",
                                          "remembers the last ", kKeptDecisions, " decisions of the one that counts"));
}

// Of epochs that a node may name: there are numbers behind it.
constexpr int64_t kLastEpoch = int64_t{1} << 62;

absl::Status LastEpochError(const ModelReport& report) {
  return absl::InvalidArgumentError(absl::StrCat("report of ", report.model, ": a last epoch in [0, ", kLastEpoch,
                                                 "] expected, got ", report.last_epoch));
}

// Of one node: what it says lies here.
constexpr int64_t kMostModels = 1000;

absl::Status TooManyModelsError(const std::string& model, int node) {
  return absl::ResourceExhaustedError(
      absl::StrCat("report of ", model, ": ", kMostModels, " models of node ", node, " at most expected"));
}

absl::Status UndecidedError(const CommitQuery& query, const absl::Status& why) {
  return absl::AbortedError(absl::StrCat("vote ", query.model, " commit ", query.commit_number, ": epoch ", query.epoch,
                                         " ended before the decision: ", why.message()));
}

// Of an epoch that this coordinator has not started. Another one that had the same history wrote each decision down
// before it told it, and has none about the commit behind the last one.
absl::StatusOr<CommitDecision> AnswerFromBefore(const std::vector<ClosedEpoch>& closed, const CommitQuery& query) {
  const auto before = std::find_if(closed.begin(), closed.end(),
                                   [&](const ClosedEpoch& epoch) { return epoch.history_id == query.history_id; });
  if (before == closed.end()) return InDoubtError(query);
  const std::optional<ClosedEpoch::Decided>& last = before->last_decision;
  if (last.has_value() && last->epoch == query.epoch && last->commit_number == query.commit_number) {
    return last->decision;
  }
  const bool is_known = before->may_be_old ? query.epoch == before->epoch : query.epoch >= before->epoch;
  if (!is_known || query.commit_number != before->commit_number + 1) return InDoubtError(query);
  return UndecidedError(query, absl::UnavailableError("node 0 was restarted"));
}

absl::Status NodeLostError(const std::string& node, const std::string& model) {
  return absl::UnavailableError(
      absl::StrCat(node, " lost: attach again when its daemon serves again. Without a keeper its shards of ", model,
                   " are gone unless another daemon holds a replica, or they were saved or exported"));
}

absl::Status SpecsDifferError(const std::string& model, const std::string& node, const ModelReport& report,
                              const std::string& other, const ModelReport& other_report) {
  return absl::FailedPreconditionError(
      absl::StrFormat("start epoch of %s: one spec on all nodes expected, got fingerprint %016x on "
                      "%s, %016x on %s: delete the model on "
                      "one of them and create it with the other's spec",
                      model, report.spec_fingerprint, node, other_report.spec_fingerprint, other));
}

// Of a node that the others have gone on without.
absl::Status NoPartError(const std::string& model, const std::string& node, const ModelReport& report,
                         absl::string_view history_id, int64_t commit_number) {
  return absl::FailedPreconditionError(absl::StrCat(
      "start epoch of ", model, ": on ", node,
      ", which the others have gone on without, none of it or an earlier state of history ", history_id,
      " expected, got commit ", report.commit_number, " of history ", report.history_id, " beside commit ",
      commit_number, ": if its state is not wanted delete the model on that node, or say which node is right, `",
      HealCommand(model), "` at node 0; or import the same into every daemon"));
}

absl::Status TakesNoPartError(int node, absl::string_view model, int64_t epoch) {
  return absl::FailedPreconditionError(absl::StrCat("epoch ", epoch, " of ", model,
                                                    ": a node that takes part expected, node ", node,
                                                    " does not: attach its trainers again"));
}

// Whether a state that others have gone on from, by a commit of this epoch or an earlier one, or none at all.
bool MayBeHealed(const ModelReport& report, absl::string_view history_id, int64_t commit_number,
                 const ReplacedHistories& replaced) {
  if (replaced.GivesWay(report.history_id, history_id)) return true;
  if (!report.lost.ok() || report.fresh || (report.untouched && report.commit_number == 0)) return true;
  return report.history_id == history_id && report.commit_number <= commit_number;
}

bool Attaches(const ModelReport& report, RankRange ranks) {
  for (int rank = ranks.begin; rank < ranks.end; ++rank) {
    if (std::find(report.attached_ranks.begin(), report.attached_ranks.end(), rank) == report.attached_ranks.end()) {
      return false;
    }
  }
  return true;
}

bool IsReceiver(const std::vector<Healing>& healings, int node) {
  return std::any_of(healings.begin(), healings.end(), [node](const Healing& one) { return one.receiver == node; });
}

// Requires that one of the nodes is not healed.
int FirstWithState(const std::vector<int>& nodes, const std::vector<Healing>& healings) {
  return *std::find_if(nodes.begin(), nodes.end(), [&](int node) { return !IsReceiver(healings, node); });
}

// Trainers wait for an epoch.
bool IsAwaited(const std::vector<std::optional<ModelReport>>& reports) {
  return std::any_of(reports.begin(), reports.end(),
                     [](const auto& report) { return report.has_value() && !report->attached_ranks.empty(); });
}

void ForgetAttached(ModelReports& reports, const std::vector<int>& nodes) {
  for (const int node : nodes) {
    if (reports[node].has_value()) reports[node]->attached_ranks.clear();
  }
}

absl::Status PartsForgottenError(const CommitVote& vote) {
  return absl::AbortedError(absl::StrCat("get parts of ", vote.model,
                                         ": a reader before the epoch's first commit expected, commit ",
                                         vote.commit_number, " is decided"));
}

absl::Status NoRoomError(absl::string_view model, absl::string_view key, int node) {
  return absl::ResourceExhaustedError(absl::StrCat("put ", key, " of ", model, ": ", RendezvousBook::kMostBytes,
                                                   " bytes of node ", node, " in an epoch at most expected"));
}

// What a node puts lies under a key of its own.
std::string KeyOf(int node, absl::string_view key) { return absl::StrCat(node, "/", key); }

absl::Status LateError() { return absl::DeadlineExceededError("no answer yet"); }

// `ask` asks, with who is to be called, and says who waits. `late` is the answer when there is none after `wait`.
template <typename Answer, typename Ask>
Answer AwaitAnswer(Coordinator& coordinator, absl::Duration wait, Ask ask, absl::Status late) {
  const SteadyTime deadline = SteadyDeadline(wait);
  const auto awaited = std::make_shared<AwaitedAnswer<Answer>>();
  const Coordinator::Wait waiting = ask([awaited](const Answer& answer) { awaited->Set(answer); });
  if (std::optional<Answer> answer = awaited->AwaitUntil(deadline); answer.has_value()) return *std::move(answer);
  if (coordinator.GiveUp(waiting)) return late;
  return awaited->Await();
}

}  // namespace

class ABSL_SCOPED_LOCKABLE Coordinator::Lock {
 public:
  explicit Lock(Coordinator* coordinator) ABSL_EXCLUSIVE_LOCK_FUNCTION(coordinator->mu_) ABSL_NO_THREAD_SAFETY_ANALYSIS
      : coordinator_(coordinator) {
    coordinator_->mu_.Lock();
  }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;
  ~Lock() ABSL_UNLOCK_FUNCTION() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    const PendingAnswers answers = std::exchange(coordinator_->answers_, {});
    coordinator_->mu_.Unlock();
    for (const std::function<void()>& answer : answers) answer();
  }

 private:
  Coordinator* const coordinator_;
};

Coordinator::Model::Model(int nodes) : reports(nodes), awaited(nodes), is_new(nodes), rendezvous(nodes) {
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
    Model& model = models_.try_emplace(before.model, options_.nodes).first->second;
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
    const bool is_order_over =
        IsOrderedDonor(model, node) && model.healing_order->epoch() == 0 && model.healing_order->HasTwin();
    if (is_order_over) EndOrder(name, model, "the node is lost, and others with its state go on");
    model.reports[node].reset();
    if (model.running && Has(model.active, node)) End(name, model, NodeLostError(NodeName(members_, node), name));
    TryStart(name, model);
  }
  world_changed_.SignalAll();
}

void Coordinator::ServeAbsences() {
  while (true) {
    const Lock lock(this);
    if (stopped_) return;
    const SteadyTime now = SteadyNow();
    links_.TryAgain(now);
    for (auto& [name, model] : models_) {
      if (model.gathering.has_value() && now >= model.gathering->until) EndGathering(name, model);
      TryStart(name, model);
    }
    const std::optional<SteadyTime> next = NextLook(now);
    next.has_value() ? static_cast<void>(world_changed_.WaitUntil(&mu_, *next)) : world_changed_.Wait(&mu_);
  }
}

// What has fallen due behind `now` is looked at once more, at once.
std::optional<SteadyTime> Coordinator::NextLook(SteadyTime now) const {
  std::optional<SteadyTime> next = NextGivenUp(members_, options_.attendance, now);
  if (const std::optional<SteadyTime> again = links_.NextTry()) next = std::min(*again, next.value_or(*again));
  for (const auto& [name, model] : models_) {
    if (!model.gathering.has_value()) continue;
    next = std::min(model.gathering->until, next.value_or(model.gathering->until));
  }
  return next;
}

void Coordinator::AskWorld(int node) {
  absl::MutexLock lock(&mu_);
  if (sinks_[node] != nullptr) sinks_[node]->OnWorld(members_.device_counts());
}

WorldView Coordinator::ViewWorld() {
  absl::MutexLock lock(&mu_);
  const SteadyTime now = SteadyNow();
  links_.TryAgain(now);
  WorldView view{.cut_links = links_.Texts()};
  std::set<int> left_out;
  for (const auto& [name, model] : models_) {
    for (const int node : LeftOut(model, now)) left_out.insert(node);
  }
  view.left_out.assign(left_out.begin(), left_out.end());
  for (int node = 0; node < members_.nodes(); ++node) {
    if (const absl::Duration held_for = HeldBack(node, now); held_for > absl::ZeroDuration()) {
      view.held_back.push_back({.node = node, .held_for = held_for, .losses = members_.losses(node)});
    }
    if (members_.present(node)) continue;
    view.absent.push_back({.node = node,
                           .absent_for = absl::FromChrono(now - members_.changed_at(node)),
                           .losses = members_.losses(node)});
  }
  return view;
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
  Model* const known = Find(report.model);
  // An epoch of this coordinator may have a higher number.
  if (report.last_epoch < 0 || report.last_epoch > std::max(kLastEpoch, known == nullptr ? 0 : known->last_epoch)) {
    return sinks_[node]->OnEpochRefused(report.model, LastEpochError(report));
  }
  if (known == nullptr && ModelsOf(node) >= kMostModels) {
    return sinks_[node]->OnEpochRefused(report.model, TooManyModelsError(report.model, node));
  }
  auto [it, added] = models_.try_emplace(report.model, members_.nodes());
  Model& model = it->second;
  if (added) model.last_epoch = model.epoch_floor = forgotten_epoch_;
  // Who has not heard of the start of that epoch has made no commit of it either.
  if (node != 0 && report.last_epoch < model.unknown_epoch) std::erase(model.awaited, node);
  model.reports[node] = report;
  // One that takes part says nothing more before it has heard of the end: this was said before the start.
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
  // Node 0 leads, and says nothing more of a model that it has not.
  if (node == 0) model->rolls_back = false;
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
  // Somebody may still ask about an epoch that another coordinator began.
  if (options_.log != nullptr && model.last_epoch > model.epoch_floor) options_.log->Forget(name);
  models_.erase(it);
}

void Coordinator::EndEpoch(int node, absl::string_view name, int64_t epoch, const absl::Status& why) {
  const Lock lock(this);
  Model* const model = FindRunning(name, epoch);
  if (model == nullptr || !Has(model->active, node)) return;
  // Trainers of a node that has told of its links leave, and connections to it break.
  model->gathering.has_value() ? Gather(node, std::string(name), *model) : End(std::string(name), *model, why);
}

void Coordinator::EndOnBadLinks(int node, absl::string_view name, int64_t epoch, const std::vector<BadLink>& links) {
  const Lock lock(this);
  Model* const model = FindRunning(name, epoch);
  if (model == nullptr || !Has(model->active, node)) return;
  for (const BadLink& link : links) {
    if (link.peer != node && Has(model->active, link.peer)) links_.Add(node, link, SteadyNow());
  }
  if (!model->gathering.has_value()) {
    model->gathering = Gathering{.until = SteadyDeadline(options_.attendance.gathering), .gone = {}};
  }
  Gather(node, std::string(name), *model);
}

void Coordinator::Gather(int node, const std::string& name, Model& model) {
  model.gathering->gone.insert(node);
  // Where nobody can be left out there is nothing to find out.
  const bool may_others_tell = MayLeaveOut(model) && model.gathering->gone.size() < model.active.size();
  if (!may_others_tell || SteadyNow() >= model.gathering->until) EndGathering(name, model);
  world_changed_.SignalAll();
}

void Coordinator::EndGathering(const std::string& name, Model& model) {
  if (MayLeaveOut(model)) links_.LeaveOut(SteadyNow());
  End(name, model, BadLinksError(model));
  TryStart(name, model);
}

absl::Status Coordinator::BadLinksError(const Model& model) const {
  const Nodes left_out = LeftOut(model, SteadyNow());
  const std::string then = left_out.empty() ? "epochs need them all: mend the network, and attach again"
                                            : absl::StrCat("the next epochs are without node ",
                                                           absl::StrJoin(left_out, ", node "), ": attach again");
  return absl::UnavailableError(
      absl::StrCat("data addresses do not reach each other: ", absl::StrJoin(links_.Texts(), ", "), "; ", then));
}

Coordinator::Nodes Coordinator::LeftOut(const Model& model, SteadyTime now) const {
  if (!MayLeaveOut(model)) return {};
  const auto is_ready = [&](int node) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return Has(model.active, node) || IsAttached(model, node);
  };
  const Nodes left_out = links_.left_out();
  const std::optional<Nodes> next =
      NextActive(members_, model.awaited, is_ready, options_.attendance, /*may_be_fewer=*/true, left_out, now);
  if (!next.has_value()) return left_out;
  Nodes without;
  std::set_difference(left_out.begin(), left_out.end(), next->begin(), next->end(), std::back_inserter(without));
  return without;
}

// One that has reported alone is compared with one that has voted: with whom else, if nobody has?
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

absl::Status Coordinator::CheckNotLost(const std::string& name, const Model& model, const Nodes& nodes) const {
  for (const int node : nodes) {
    const std::optional<ModelReport>& report = model.reports[node];
    if (!report.has_value() || report->lost.ok()) continue;
    return absl::DataLossError(absl::StrCat("start epoch of ", name, ": its state on all nodes expected, got none on ",
                                            NodeName(members_, node), ": ", report->lost.message()));
  }
  return absl::OkStatus();
}

bool Coordinator::IsAttached(const Model& model, int node) const {
  const std::optional<ModelReport>& report = model.reports[node];
  return report.has_value() && Attaches(*report, members_.ranks(node));
}

bool Coordinator::AreAttached(const Model& model, const Nodes& nodes) const {
  for (const int node : nodes) {
    if (!IsAttached(model, node)) return false;
  }
  return true;
}

bool Coordinator::HasFreshBesideTrained(const Model& model, const Nodes& nodes) const {
  const ModelReport* trained = nullptr;
  bool has_fresh = false;
  for (const int node : nodes) {
    const ModelReport& report = *model.reports[node];
    if (report.spec_fingerprint != model.reports[nodes[0]]->spec_fingerprint) return false;
    if (report.fresh) {
      has_fresh = true;
      continue;
    }
    // Where those who have trained differ among themselves a person is to say which of them counts.
    if (trained != nullptr && !IsOneState(*trained, report)) return false;
    trained = &report;
  }
  return has_fresh && trained != nullptr;
}

absl::Status Coordinator::CheckEqual(const std::string& name, const Model& model, const Nodes& nodes) const {
  const ModelReport& first = *model.reports[nodes[0]];
  for (const int node : nodes) {
    const ModelReport& report = *model.reports[node];
    if (report.spec_fingerprint == first.spec_fingerprint) continue;
    return SpecsDifferError(name, NodeName(members_, nodes[0]), first, NodeName(members_, node), report);
  }
  const bool are_one =
      std::all_of(nodes.begin(), nodes.end(), [&](int node) { return IsOneState(first, *model.reports[node]); });
  return are_one ? absl::OkStatus() : StatesDifferError(name, model.reports, nodes, members_);
}

bool Coordinator::MayBeFewer(const Model& model) const {
  return HoldReplicas(model.reports, members_.world_size()) &&
         std::none_of(model.reports.begin(), model.reports.end(), [&](const auto& report) {
           return report.has_value() && HasLeadersSpec(model.reports, *report) && report->needs_every_node;
         });
}

bool Coordinator::WouldBegin(const Model& model, const Nodes& nodes) const {
  return std::all_of(nodes.begin(), nodes.end(), [&](int node) {
    const ModelReport& report = *model.reports[node];
    const bool has_begun = report.history_id == model.history_id ||
                           std::any_of(model.before.begin(), model.before.end(),
                                       [&](const ClosedEpoch& epoch) { return epoch.history_id == report.history_id; });
    return !report.lost.ok() || (report.untouched && !has_begun);
  });
}

bool Coordinator::MayLeaveOut(const Model& model) const {
  return options_.attendance.Needed(options_.nodes) < options_.nodes && MayBeFewer(model);
}

std::optional<Coordinator::Nodes> Coordinator::NextNodes(const Model& model) {
  if (!members_.sized()) return std::nullopt;
  if (members_.complete() && options_.attendance.Needed(options_.nodes) == options_.nodes) return model.awaited;
  const SteadyTime now = SteadyNow();
  const auto is_ready = [&](int node) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return IsAttached(model, node); };
  links_.TryAgain(now);
  const auto may_return = [&](int node) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return is_ready(node) && (IsOrderedDonor(model, node) || MayReturn(members_, node, options_.attendance, now));
  };
  const auto next = [&](absl::FunctionRef<bool(int)> takes_part,
                        const Nodes& left_out) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return NextActive(members_, model.awaited, takes_part, options_.attendance, MayBeFewer(model), left_out, now);
  };
  const std::optional<Nodes> nodes = next(may_return, links_.left_out());
  if (nodes.has_value() && !(AreAttached(model, *nodes) && WouldBegin(model, *nodes))) return nodes;
  // Where one is needed that is lost again and again, or whose links are cut, it takes part at once.
  return next(is_ready, nodes.has_value() ? Nodes() : links_.left_out());
}

std::vector<Healing> Coordinator::Healings(const Model& model, const Nodes& nodes) const {
  if (model.healing_order.has_value()) {
    const HealingOrder& order = *model.healing_order;
    return PlanOrderedHealings(model.reports, nodes, members_.world_size(), order.donor(),
                               [&](int node) { return order.MayGiveUp(node, *model.reports[node]); });
  }
  return PlanHealings(model.reports, nodes, members_.world_size(), options_.attendance.Needed(options_.nodes),
                      model.replaced);
}

void Coordinator::TryStart(const std::string& name, Model& model) {
  if (stopped_ || model.running || model.rolls_back) return;
  std::optional<Nodes> nodes = NextNodes(model);
  if (!nodes.has_value()) return;
  // Where a person has said whose state counts, nobody goes on without that.
  if (model.healing_order.has_value()) {
    const int donor = model.healing_order->donor();
    if (!Has(*nodes, donor)) return;
    CheckOrder(name, model, donor);
  }
  const absl::Status lost = CheckNotLost(name, model, *nodes);
  std::vector<Healing> healings = Healings(model, *nodes);
  if (!AreAttached(model, *nodes)) {
    // One that has lost its part may be healed when all are there. What others said before the last epoch tells nothing.
    const bool is_known = AreAllMade(model.reports, *nodes) &&
                          std::all_of(nodes->begin(), nodes->end(), [&](int node) { return model.is_new[node]; });
    const bool may_heal = HoldReplicas(model.reports, members_.world_size()) && (!is_known || !healings.empty());
    if (!lost.ok() && !may_heal) GoBack(name, model, lost);
    return;
  }
  const absl::Status differ = lost.ok() ? CheckEqual(name, model, *nodes) : lost;
  const bool is_whole = static_cast<int>(nodes->size()) == members_.nodes();
  if (differ.ok() || !healings.empty()) {
    const absl::Status newest = CheckNewest(name, model, *nodes, healings);
    if (!is_whole && (WouldBegin(model, *nodes) || !newest.ok())) return;
    if (!newest.ok()) return GoBack(name, model, newest);
  }
  if (differ.ok()) return Start(name, model, *std::move(nodes));
  if (!healings.empty()) return Start(name, model, *std::move(nodes), std::move(healings));
  if (RefuseReturners(name, model, *nodes, differ)) return TryStart(name, model);
  !lost.ok() || HasFreshBesideTrained(model, *nodes) ? GoBack(name, model, differ) : RefuseStart(name, model, differ);
}

absl::Status Coordinator::CheckNewest(const std::string& name, const Model& model, const Nodes& nodes,
                                      const std::vector<Healing>& healings) const {
  // A person may have said otherwise.
  if (!MayLeaveOut(model) || model.healing_order.has_value()) return absl::OkStatus();
  const ModelReport& state = *model.reports[FirstWithState(nodes, healings)];
  for (const ClosedEpoch& before : model.before) {
    if (before.history_id != state.history_id || before.commit_number <= state.commit_number) continue;
    return absl::DataLossError(absl::StrCat("start epoch of ", name, ": commit ", before.commit_number, " of history ",
                                            before.history_id, ", which was decided, on a node at least expected, got ",
                                            state.commit_number, ": who has made it is away, or has lost it"));
  }
  return absl::OkStatus();
}

bool Coordinator::RefuseReturners(const std::string& name, Model& model, const Nodes& nodes, const absl::Status& why) {
  Nodes others, returners;
  for (const int node : nodes) (Has(model.awaited, node) ? others : returners).push_back(node);
  // They do not go on without anybody.
  if (WouldBegin(model, others)) return false;
  const int other =
      *std::find_if(others.begin(), others.end(), [&](int node) { return model.reports[node]->lost.ok(); });
  const ModelReport& state = *model.reports[other];
  Nodes unfit;
  for (const int node : returners) {
    const absl::Status fits = CheckMayReturn(name, model, node, other, state.history_id, state.commit_number);
    if (fits.ok()) continue;
    unfit.push_back(node);
    RefuseNode(name, model, node, fits);
  }
  if (!unfit.empty()) return true;
  for (const int node : returners) RefuseNode(name, model, node, why);
  return !returners.empty();
}

void Coordinator::CheckReturner(const std::string& name, Model& model, int node) {
  if (Has(model.active, node) || !IsAttached(model, node)) return;
  const absl::Status fits =
      CheckMayReturn(name, model, node, model.active[0], model.history_id, model.book.last_commit_number());
  fits.ok() ? LogHeldBack(name, node) : RefuseNode(name, model, node, fits);
}

void Coordinator::LogHeldBack(const std::string& name, int node) const {
  const absl::Duration held_for = HeldBack(node, SteadyNow());
  if (held_for == absl::ZeroDuration()) return;
  Log(LogLevel::kWarning, "a node that was lost again and again is held back",
      {{"model", name},
       {"node", NodeName(members_, node)},
       {"losses", absl::StrCat(members_.losses(node))},
       {"held_for", absl::FormatDuration(absl::Trunc(held_for, absl::Milliseconds(1)))}});
}

absl::Duration Coordinator::HeldBack(int node, SteadyTime now) const {
  bool waits = false;
  for (const auto& [name, model] : models_) {
    const bool is_without = model.running && !Has(model.active, node);
    waits |= is_without && IsAttached(model, node) && !IsOrderedDonor(model, node);
  }
  const bool is_held = waits && members_.present(node);
  return is_held ? HeldBackFor(members_, node, options_.attendance, now) : absl::ZeroDuration();
}

absl::Status Coordinator::CheckMayReturn(const std::string& name, const Model& model, int node, int other,
                                         absl::string_view history_id, int64_t commit_number) const {
  const ModelReport& report = *model.reports[node];
  const ModelReport& state = *model.reports[other];
  if (report.spec_fingerprint != state.spec_fingerprint) {
    return SpecsDifferError(name, NodeName(members_, other), state, NodeName(members_, node), report);
  }
  const bool may_return = (model.healing_order.has_value() && model.healing_order->MayGiveUp(node, report)) ||
                          MayBeHealed(report, history_id, commit_number, model.replaced);
  if (may_return) return absl::OkStatus();
  return NoPartError(name, NodeName(members_, node), report, history_id, commit_number);
}

void Coordinator::EndForReturners(const std::string& name, Model& model) {
  if (static_cast<int>(model.active.size()) == members_.nodes()) return;
  links_.TryAgain(SteadyNow());
  for (int node = 0; node < members_.nodes(); ++node) {
    if (Has(model.active, node) || !IsAttached(model, node) || links_.IsLeftOut(node)) continue;
    if (!MayReturn(members_, node, options_.attendance, SteadyNow())) continue;
    return End(name, model,
               absl::UnavailableError(absl::StrCat(NodeName(members_, node),
                                                   " is back, and takes part in the next epoch: ", "attach again")));
  }
}

absl::Status Coordinator::WithWayOut(const std::string& name, const Model& model, const absl::Status& why) const {
  if (!absl::IsDataLoss(why) || !HoldReplicas(model.reports, members_.world_size())) return why;
  Nodes nodes;
  bool is_anywhere = false;
  for (int node = 0; node < members_.nodes(); ++node) {
    const std::optional<ModelReport>& report = model.reports[node];
    if (!report.has_value()) continue;
    nodes.push_back(node);
    is_anywhere = is_anywhere || (report->lost.ok() && !report->fresh);
  }
  if (!is_anywhere) return why;
  return absl::Status(why.code(), absl::StrCat(why.message(), "; there is ", StatesText(model.reports, nodes, members_),
                                               ": say which node is right, `", HealCommand(name), "` at node 0"));
}

// Which checkpoints there are is not looked at here: that reads a disk.
void Coordinator::GoBack(const std::string& name, Model& model, const absl::Status& why) {
  if (members_.nodes() == 1 || options_.save_dir.empty()) return RefuseStart(name, model, WithWayOut(name, model, why));
  if (!IsAwaited(model.reports)) return;
  model.rolls_back = true;
  sinks_[0]->OnRestoreNews({.model = name, .what = RollbackNeed{.why = why}});
}

// That of the first replica which takes part, or the whole world.
RankRange Coordinator::FirstGroup(const Model& model, const ModelReport& state) const {
  const int begin = members_.ranks(model.active[0]).begin;
  return {begin, begin + state.shard_size};
}

// This coordinator knows nothing of epochs that were another one's.
void Coordinator::SkipEpochsOfOthers(Model& model) {
  for (const std::optional<ModelReport>& report : model.reports) {
    if (!report.has_value() || report->last_epoch <= model.last_epoch) continue;
    model.last_epoch = model.epoch_floor = report->last_epoch;
  }
}

void Coordinator::Start(const std::string& name, Model& model, Nodes nodes, std::vector<Healing> healings) {
  const ModelReport& from = *model.reports[FirstWithState(nodes, healings)];
  ModelReport state = from;
  // A person has given other states up, which may have gone on under the same history.
  const bool forks = model.healing_order.has_value() && !healings.empty() && !model.healing_order->HasBegun(from);
  if (forks) state.history_id = state.lineage = DrawHistoryId();
  SkipEpochsOfOthers(model);
  // One that was replaced may live again, by an import.
  model.replaced.ids.erase(state.history_id);
  model.replaced.by = state.history_id;
  if (const absl::Status written = WriteBegun(name, state, nodes, model.last_epoch + 1); !written.ok()) {
    return RefuseStart(name, model, written);
  }
  ++model.last_epoch;
  model.unknown_epoch = 0;
  model.running = true;
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

// Whoever permits fewer nodes expects all models to go on with them.
void Coordinator::WarnWhoIsNeeded(const std::string& name, const Model& model) const {
  if (options_.attendance.Needed(options_.nodes) == options_.nodes || MayBeFewer(model)) return;
  Log(LogLevel::kWarning, "epochs of a model need all nodes, whatever --min-replicas says",
      {{"model", name}, {"why", "its nodes hold parts of it, or its gradients are summed and not averaged"}});
}

absl::Status Coordinator::WriteBegun(const std::string& name, const ModelReport& state, const Nodes& nodes,
                                     int64_t epoch) {
  if (options_.log == nullptr) return absl::OkStatus();
  const std::set<std::string>& replaced = Find(name)->replaced.ids;
  const absl::Status written = options_.log->BeginEpoch({.model = name,
                                                         .history_id = state.history_id,
                                                         .epoch = epoch,
                                                         .commit_number = state.commit_number,
                                                         .active = nodes,
                                                         .device_counts = members_.device_counts(),
                                                         .replaced = {replaced.begin(), replaced.end()}});
  if (written.ok()) return written;
  return absl::Status(written.code(), absl::StrCat("start epoch of ", name, ": node 0 could not write it down in its ",
                                                   "--state-dir: ", written.message()));
}

void Coordinator::End(const std::string& name, Model& model, const absl::Status& why, bool by_votes) {
  model.running = false;
  model.last_end = {model.last_epoch, why, by_votes};
  model.book.EndEpoch();
  AnswerVoters(name, model, model.book.last_commit_number() + 1);
  model.rendezvous.Clear(EpochOverError(name, model.last_epoch), answers_);
  // Whatever else ends it: the links stay cut.
  if (model.gathering.has_value() && MayLeaveOut(model)) links_.LeaveOut(SteadyNow());
  // One that was back, and with which there was no commit, has perhaps ended it. Whose links are cut is left out anyway.
  for (const int node : model.active) {
    if (!Has(model.awaited, node) && members_.present(node) && !links_.IsLeftOut(node)) members_.CountLoss(node);
  }
  const std::set<int> gone = std::exchange(model.gathering, std::nullopt).value_or(Gathering()).gone;
  for (const int node : model.active) {
    // Whoever is gone may have reported since. Trainers of nodes that took no part wait for the next epoch.
    if (gone.contains(node)) continue;
    ForgetAttached(model.reports, {node});
    if (sinks_[node] != nullptr) sinks_[node]->OnEpochEnd(name, model.last_epoch, why);
  }
}

void Coordinator::RefuseStart(const std::string& name, Model& model, const absl::Status& why) {
  if (!IsAwaited(model.reports)) return;
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

// Commits.

Coordinator::Wait Coordinator::Vote(int node, const CommitVote& vote, VoteAnswered answered) {
  std::optional<absl::StatusOr<CommitDecision>> answer;
  {
    const Lock lock(this);
    answer = TakeVote(node, vote);
    if (!answer.has_value()) {
      Find(vote.model)->voters[node].Add(++last_waiter_, std::move(answered));
      return {.model = vote.model, .node = node, .waiter = last_waiter_};
    }
  }
  answered(*answer);
  return {};
}

absl::StatusOr<CommitDecision> Coordinator::Vote(int node, const CommitVote& vote, absl::Duration wait) {
  const auto ask = [&](VoteAnswered answered) { return Vote(node, vote, std::move(answered)); };
  return AwaitAnswer<absl::StatusOr<CommitDecision>>(
      *this, wait, ask,
      absl::DeadlineExceededError(
          absl::StrCat("vote ", vote.model, " commit ", vote.commit_number, ": other nodes have not voted yet")));
}

bool Coordinator::GiveUp(const Wait& wait) {
  const Lock lock(this);
  Model* const model = Find(wait.model);
  if (model == nullptr) return false;
  if (!wait.key.has_value()) return model->voters[*wait.node].Remove(wait.waiter);
  return model->rendezvous.GiveUp(*wait.key, wait.node, wait.waiter);
}

std::optional<absl::StatusOr<CommitDecision>> Coordinator::TakeVote(int node, const CommitVote& vote) {
  const CommitQuery query = QueryOf(vote);
  std::optional<absl::StatusOr<CommitDecision>> answer = Answer(query);
  if (!answer.has_value()) {
    if (absl::Status cast = CastVote(node, vote); !cast.ok()) return cast;
    answer = Answer(query);
  }
  if (answer.has_value() && answer->ok()) AddPrevious(node, query, **answer);
  return answer;
}

absl::Status Coordinator::CastVote(int node, const CommitVote& vote) {
  Model& model = *Find(vote.model);
  if (!Has(model.active, node)) return TakesNoPartError(node, vote.model, vote.epoch);
  const CommitBook::Cast cast =
      model.book.Add(members_, node, node == 0 && options_.log != nullptr ? WithLog(vote) : vote);
  switch (cast.result) {
    case CommitBook::Cast::Result::kCounted:
      if (model.book.last_commit_number() != vote.commit_number) return absl::OkStatus();
      AnswerVoters(vote.model, model, vote.commit_number);
      model.awaited = model.active;
      EndOrderBehindCommit(vote.model, model);
      // Whoever votes has read the parts.
      if (model.rendezvous.has_parts()) model.rendezvous.DropParts(PartsForgottenError(vote), answers_);
      // Links of which somebody says just now that they are cut have not: this commit was summed before.
      if (!model.gathering.has_value()) links_.Worked(model.active, SteadyNow());
      EndForReturners(vote.model, model);
      return absl::OkStatus();
    case CommitBook::Cast::Result::kRepeated:
      if (model.book.IsFirstVoter(node)) AskTheLate(vote.model, model);
      return absl::OkStatus();
    case CommitBook::Cast::Result::kDiffers:
      DemandCommands(vote.model, model, node);
      DemandCommands(vote.model, model, *model.book.VoterBeside(node));
      return absl::OkStatus();
    case CommitBook::Cast::Result::kRefused:
      return cast.why;
    case CommitBook::Cast::Result::kDisagrees:
      End(vote.model, model, cast.why, /*by_votes=*/true);
      return cast.why;
    case CommitBook::Cast::Result::kUnwritten:
      End(vote.model, model, cast.why);
      return absl::OkStatus();  // the end answers all votes
  }
  return absl::OkStatus();
}

// Before node 0's journal: what its server finds there when it starts again has to be on the disk too.
CommitVote Coordinator::WithLog(const CommitVote& vote) {
  CommitVote logged = vote;
  logged.write_down = [this, model = vote.model, commit_number = vote.commit_number, client_states = vote.client_states,
                       write_down = vote.write_down](const CommitDecision& decision) {
    RETURN_IF_ERROR(options_.log->Decide(model, commit_number, decision, client_states));
    return write_down == nullptr ? absl::OkStatus() : write_down(decision);
  };
  return logged;
}

void Coordinator::DemandCommands(const std::string& name, Model& model, int node) {
  if (!model.commands.Demand(node) || sinks_[node] == nullptr) return;
  sinks_[node]->OnCommandsWanted(name, model.last_epoch, {});
}

// A node is late because it waits for one that has voted, where they are at different commands.
void Coordinator::AskTheLate(const std::string& name, Model& model) {
  for (const int node : model.active) {
    if (model.book.HasVoted(node) || sinks_[node] == nullptr) continue;
    model.commands.Ask(node);
    sinks_[node]->OnCommandsWanted(name, model.last_epoch, model.book.commands());
  }
}

absl::StatusOr<CommitDecision> Coordinator::QueryCommit(int node, const CommitQuery& query) {
  const Lock lock(this);
  if (Model* const model = FindRunning(query.model, query.epoch); model != nullptr) {
    End(query.model, *model,
        absl::UnavailableError(absl::StrCat(NodeName(members_, node), " was restarted, and asks what became of commit ",
                                            query.commit_number)));
  }
  absl::StatusOr<CommitDecision> answer = *Answer(query);  // nothing is open in an epoch that is over
  // Votes that disagreed have decided nothing either.
  if (absl::IsFailedPrecondition(answer.status())) return UndecidedError(query, answer.status());
  return answer;
}

std::optional<absl::StatusOr<CommitDecision>> Coordinator::Answer(const CommitQuery& query) {
  const Model* const model = Find(query.model);
  if (model == nullptr) return InDoubtError(query);
  if (std::optional<CommitDecision> decision = model->book.Find(query.epoch, query.commit_number)) {
    return WithOrder(query.model, query.commit_number, *std::move(decision));
  }
  if (query.epoch <= model->epoch_floor || query.epoch > model->last_epoch) {
    return AnswerFromBefore(model->before, query);
  }
  if (model->running && model->last_epoch == query.epoch) {
    // Nothing is decided any more, which is an answer as well: the node need not stay in doubt.
    if (stopped_) return UndecidedError(query, StoppedError());
    return std::nullopt;
  }
  if (model->book.HasForgotten(query.epoch, query.commit_number)) return ForgottenError(query);
  if (model->last_end.epoch != query.epoch) return EpochOverError(query.model, query.epoch);
  return model->last_end.by_votes ? model->last_end.why : UndecidedError(query, model->last_end.why);
}

void Coordinator::AddPrevious(int node, const CommitQuery& query, CommitDecision& decision) {
  const Model& model = *Find(query.model);
  if (!Has(model.active, node)) return;
  decision.previous_client_states =
      model.book.ClientStates(query.epoch, query.commit_number, PreviousNode(node, model.active));
  if (!decision.previous_client_states.has_value() && options_.log != nullptr) {
    decision.previous_client_states = options_.log->SentByNode0(query, node);
  }
}

void Coordinator::AnswerVoters(const std::string& name, Model& model, int64_t commit_number) {
  const CommitQuery query{.model = name, .epoch = model.last_epoch, .commit_number = commit_number};
  for (auto& [node, voters] : model.voters) {
    if (voters.empty()) continue;
    absl::StatusOr<CommitDecision> answer = *Answer(query);
    if (answer.ok()) AddPrevious(node, query, *answer);
    AnswerAll(voters, answer, answers_);
  }
}

// Rendezvous.

absl::StatusOr<RendezvousBook*> Coordinator::FindRendezvous(absl::string_view name, int64_t epoch, int node) {
  if (stopped_) return StoppedError();
  Model* const model = FindRunning(name, epoch);
  if (model == nullptr) return EpochOverError(name, epoch);
  if (!Has(model->active, node)) return TakesNoPartError(node, name, epoch);
  return &model->rendezvous;
}

absl::Status Coordinator::Put(int node, absl::string_view name, int64_t epoch, absl::string_view key,
                              absl::string_view value) {
  const Lock lock(this);
  ASSIGN_OR_RETURN(RendezvousBook* const book, FindRendezvous(name, epoch, node));
  if (!book->TakeRoom(node, static_cast<int64_t>(key.size() + value.size()))) return NoRoomError(name, key, node);
  if (book->Put(KeyOf(node, key), value, answers_)) return absl::OkStatus();
  return absl::AlreadyExistsError(absl::StrCat("put ", key, " of ", name,
                                               ": one value an epoch expected, got another one: give each daemon a "
                                               "--node of its own"));
}

Coordinator::Wait Coordinator::Get(int node, absl::string_view name, int64_t epoch, absl::string_view key,
                                   ValueAnswered answered) {
  absl::StatusOr<std::string> answer;
  {
    const Lock lock(this);
    const absl::StatusOr<RendezvousBook*> book = FindRendezvous(name, epoch, node);
    const std::string whose = KeyOf(node, key);
    const std::optional<std::string> value = book.ok() ? (*book)->Find(whose) : std::nullopt;
    if (book.ok() && !value.has_value()) {
      (*book)->Await(whose, ++last_waiter_, std::move(answered));
      return {.model = std::string(name), .key = whose, .waiter = last_waiter_};
    }
    answer = book.ok() ? absl::StatusOr<std::string>(*value) : book.status();
  }
  answered(answer);
  return {};
}

absl::StatusOr<std::string> Coordinator::Get(int node, absl::string_view name, int64_t epoch, absl::string_view key,
                                             absl::Duration timeout) {
  const auto ask = [&](ValueAnswered answered) { return Get(node, name, epoch, key, std::move(answered)); };
  return AwaitAnswer<absl::StatusOr<std::string>>(*this, timeout, ask, LateValueError(node, name, key, timeout));
}

absl::Status Coordinator::LateValueError(int node, absl::string_view model, absl::string_view key,
                                         absl::Duration timeout) {
  return absl::DeadlineExceededError(absl::StrCat("get ", key, " of ", model, ": a value of node ", node, " within ",
                                                  absl::FormatDuration(timeout), " expected"));
}

absl::Status Coordinator::PutParts(int node, absl::string_view name, int64_t epoch, absl::string_view key,
                                   Parts parts) {
  if (node < 0 || node >= nodes() || static_cast<int>(parts.size()) != nodes()) {
    return absl::InvalidArgumentError(absl::StrCat("put ", key, " of ", name, ": a part for each of ", nodes(),
                                                   " nodes expected of one of them, got ", parts.size(), " of node ",
                                                   node));
  }
  const Lock lock(this);
  ASSIGN_OR_RETURN(RendezvousBook* const book, FindRendezvous(name, epoch, node));
  int64_t size_bytes = static_cast<int64_t>(key.size());
  for (const std::string& part : parts) size_bytes += static_cast<int64_t>(part.size());
  if (!book->TakeRoom(node, size_bytes)) return NoRoomError(name, key, node);
  book->PutParts(node, key, std::move(parts), answers_);
  return absl::OkStatus();
}

Coordinator::Wait Coordinator::GetParts(int node, absl::string_view name, int64_t epoch, absl::string_view key,
                                        PartsAnswered answered) {
  absl::StatusOr<Parts> answer = absl::InvalidArgumentError(
      absl::StrCat("get ", key, " of ", name, ": a node below ", nodes(), " expected, got ", node));
  if (node >= 0 && node < nodes()) {
    const Lock lock(this);
    const absl::StatusOr<RendezvousBook*> book = FindRendezvous(name, epoch, node);
    std::optional<Parts> parts = book.ok() ? (*book)->FindParts(node, key) : std::nullopt;
    if (book.ok() && !parts.has_value()) {
      (*book)->AwaitParts(node, key, ++last_waiter_, std::move(answered));
      return {.model = std::string(name), .key = std::string(key), .node = node, .waiter = last_waiter_};
    }
    answer = book.ok() ? absl::StatusOr<Parts>(*std::move(parts)) : book.status();
  }
  answered(answer);
  return {};
}

absl::StatusOr<Coordinator::Parts> Coordinator::GetParts(int node, absl::string_view name, int64_t epoch,
                                                         absl::string_view key, absl::Duration timeout) {
  const auto ask = [&](PartsAnswered answered) { return GetParts(node, name, epoch, key, std::move(answered)); };
  absl::StatusOr<Parts> parts = AwaitAnswer<absl::StatusOr<Parts>>(*this, timeout, ask, LateError());
  return absl::IsDeadlineExceeded(parts.status()) ? LatePartsError(name, key, timeout) : std::move(parts);
}

absl::Status Coordinator::LatePartsError(absl::string_view name, absl::string_view key, absl::Duration timeout) {
  absl::MutexLock lock(&mu_);
  std::string missing = "some node";
  if (const Model* const model = Find(name); model != nullptr) {
    const std::optional<int> first = model->rendezvous.FirstWithoutParts(key);
    if (first.has_value()) missing = NodeName(members_, *first);
  }
  return absl::DeadlineExceededError(absl::StrCat("get ", key, " of ", name, ": a part of every node within ",
                                                  absl::FormatDuration(timeout), " expected, got none of ", missing));
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
