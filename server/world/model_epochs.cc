#include "server/world/model_epochs.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/status_macros.h"
#include "server/observe/log.h"
#include "server/world/ordered_healing.h"
#include "server/world/quorum.h"

namespace paramshard::server {
namespace {

Nodes AllOf(int nodes) {
  Nodes all(nodes);
  std::iota(all.begin(), all.end(), 0);
  return all;
}

absl::Status NodeLostError(const std::string& node, const std::string& model) {
  return absl::UnavailableError(
      absl::StrCat(node, " lost: attach again when its daemon serves again. Without a keeper its shards of ", model,
                   " are gone unless another daemon holds a replica, or they were saved or exported"));
}

absl::Status PartsForgottenError(const CommitVote& vote) {
  return absl::AbortedError(absl::StrCat("get parts of ", vote.model,
                                         ": parts are dropped at the epoch's first commit: commit ", vote.commit_number,
                                         " is decided"));
}

void ForgetAttached(ModelReports& reports, const Nodes& nodes) {
  for (const int node : nodes) {
    if (reports[node].has_value()) reports[node]->attached_ranks.clear();
  }
}

// Makes the next epoch's number greater than all numbers that nodes have heard of: this coordinator does not know the
// epochs of other coordinators.
void SkipEpochsOfOthers(ModelFacts& model) {
  for (const std::optional<ModelReport>& report : model.reports) {
    if (!report.has_value() || report->last_epoch <= model.last_epoch) continue;
    model.last_epoch = model.epoch_floor = report->last_epoch;
  }
}

// An operator who permits fewer nodes relies on it for all models.
void WarnIfAllAreNeeded(const ModelFacts& model, const WorldContext& world) {
  const int nodes = world.members.nodes();
  if (world.policy.Needed(nodes) == nodes || MayBeFewer(model, world.members)) return;
  Log(LogLevel::kWarning, "model needs all nodes, --min-replicas has no effect",
      {{"model", model.name}, {"why", "its nodes hold parts of it, or its gradients are summed and not averaged"}});
}

// Returns true if a start that was refused for the one report is refused for the other.
bool HoldsTheSame(const ModelReport& a, const ModelReport& b) {
  return a.spec_fingerprint == b.spec_fingerprint && a.lost == b.lost && IsOneState(a, b);
}

// A node with all its trainers waits outside the running epoch.
void LogHeldBack(const ModelFacts& model, const WorldContext& world, int node) {
  if (IsOrderedDonor(model, node)) return;
  const absl::Duration held_for = HeldBackFor(world.members, node, world.policy, SteadyNow());
  if (held_for == absl::ZeroDuration()) return;
  Log(LogLevel::kWarning, "node excluded: repeated failures",
      {{"model", model.name},
       {"node", NodeName(world.members, node)},
       {"losses", absl::StrCat(world.members.losses(node))},
       {"held_for", absl::FormatDuration(absl::Trunc(held_for, absl::Milliseconds(1)))}});
}

}  // namespace

ModelEpochs::ModelEpochs(std::string name, WorldContext* world)
    : world_(*world),
      facts_{.name = std::move(name),
             .reports = ModelReports(world->members.nodes()),
             .is_new = std::vector<bool>(world->members.nodes()),
             .active = AllOf(world->members.nodes()),
             .awaited = AllOf(world->members.nodes())},
      votes_(&facts_, world),
      rendezvous_(world->members.nodes()) {}

void ModelEpochs::AddBefore(const ClosedEpoch& before) {
  const int nodes = world_.members.nodes();
  if (before.epoch > facts_.last_epoch && world_.policy.Needed(nodes) < nodes) {
    const bool is_known = !before.active.empty() && before.active.front() == 0 && before.active.back() < nodes;
    unknown_epoch_ = is_known ? 0 : before.epoch;
    if (is_known) facts_.awaited = before.active;
  }
  SkipEpochs(std::max(facts_.epoch_floor, before.epoch));
  facts_.before.push_back(before);
  if (before.replaced.empty()) return;
  facts_.replaced = {.ids = {before.replaced.begin(), before.replaced.end()}, .by = before.history_id};
}

// --- Messages of nodes ---

void ModelEpochs::Step(int node, const ModelReport& report) {
  // A node that has not heard of that epoch's start has made no commit of it.
  if (node != 0 && report.last_epoch < unknown_epoch_) std::erase(facts_.awaited, node);
  const std::optional<ModelReport> before = std::exchange(facts_.reports[node], report);
  if (!before.has_value() || !HoldsTheSame(*before, report)) refused_ = absl::OkStatus();
  // A node that takes part reports nothing before it hears of the epoch's end: this report is older than the start.
  const bool is_gone = gathering_.has_value() && gathering_->gone.contains(node);
  facts_.is_new[node] = !facts_.running || !facts_.IsActive(node) || is_gone;
  CheckOrder(facts_, node);
  facts_.running ? CheckReturner(node) : TryStart();
}

void ModelEpochs::Step(int node, const ModelDeleted&) {
  facts_.reports[node].reset();
  refused_ = absl::OkStatus();
  // Node 0 leads the rollback, and does not answer for a model that it does not have.
  if (node == 0) facts_.rolls_back.reset();
  if (IsOrderedDonor(facts_, node)) EndOrder(facts_, "its model is deleted");
  if (!facts_.running || !facts_.IsActive(node)) return;
  End(absl::AbortedError(absl::StrCat("model ", facts_.name, ": deleted on ", NodeName(world_.members, node))));
}

void ModelEpochs::Step(int node, const EndEpoch& end) {
  if (!facts_.IsActive(node)) return;
  for (const BadLink& link : end.bad_links) {
    if (link.peer != node && facts_.IsActive(link.peer)) world_.links.Add(node, link, SteadyNow());
  }
  if (!end.bad_links.empty() && !gathering_.has_value()) {
    gathering_ = Gathering{.until = SteadyDeadline(world_.policy.gathering), .gone = {}};
  }
  // Trainers of a node that has reported bad links leave, and connections to it break.
  gathering_.has_value() ? Gather(node) : End(end.why);
}

void ModelEpochs::Step(int node, const CommandReports& reports) {
  if (const absl::Status status = votes_.AddCommands(node, reports.commands); !status.ok()) End(status);
}

void ModelEpochs::Step(int node, const RankDetached& detached) {
  if (!facts_.IsActive(node) || !world_.members.ranks(node).Contains(detached.rank)) return;
  if (detached_.Add(detached.rank, detached.command_count, detached.why)) {
    world_.TellNodes(
        facts_.active,
        LastCommand{.model = facts_.name, .epoch = facts_.last_epoch, .command = *detached_.last_command()});
  }
  EndIfAllIsDone();
}

void ModelEpochs::Step(int node, const CommandsCarriedOut& done) {
  detached_.AddProgress(node, done.command, done.more);
  EndIfAllIsDone();
}

void ModelEpochs::EndIfAllIsDone() {
  int ranks = 0;
  for (const int node : facts_.active) ranks += world_.members.device_counts()[node];
  if (const absl::Status why = detached_.End(ranks); !why.ok()) End(why);
}

void ModelEpochs::Lose(int node) {
  const bool is_order_over = IsOrderedDonor(facts_, node) && facts_.order->epoch() == 0 && facts_.order->HasTwin();
  if (is_order_over) EndOrder(facts_, "the node is lost, and others with its state go on");
  facts_.reports[node].reset();
  if (facts_.running && facts_.IsActive(node)) End(NodeLostError(NodeName(world_.members, node), facts_.name));
  TryStart();
}

// --- Commits ---

std::optional<CommitVotes::Answer> ModelEpochs::Vote(int node, const CommitVote& vote) {
  using Result = CommitLedger::Cast::Result;
  const CommitQuery query{
      .model = vote.model, .history_id = vote.history_id, .epoch = vote.epoch, .commit_number = vote.commit_number};
  if (std::optional<CommitVotes::Answer> answer = votes_.Find(node, query); answer.has_value()) return answer;
  if (!facts_.IsActive(node)) return TakesNoPartError(node, vote.model, vote.epoch);
  const CommitLedger::Cast cast = votes_.Cast(node, vote);
  if (cast.result == Result::kRefused) return cast.why;
  if (cast.result == Result::kDisagrees) {
    End(cast.why, /*by_votes=*/true);
    return cast.why;
  }
  if (cast.result == Result::kUnwritten) End(cast.why);
  if (cast.result == Result::kCounted && votes_.last_commit_number() == vote.commit_number) {
    facts_.awaited = facts_.active;
    EndOrderBehindCommit(facts_);
    // Every voter has read the parts.
    if (rendezvous_.has_parts()) rendezvous_.DropParts(PartsForgottenError(vote), world_.answers);
    // Links that were reported as cut meanwhile did not work: this commit was summed before.
    if (!gathering_.has_value()) world_.links.Worked(facts_.active, SteadyNow());
    EndForReturners();
  }
  return votes_.Find(node, query);
}

absl::StatusOr<CommitDecision> ModelEpochs::QueryCommit(int node, const CommitQuery& query) {
  if (facts_.running && facts_.last_epoch == query.epoch) {
    const bool is_of_it = query.history_id.empty() || query.history_id == facts_.history_id;
    if (!facts_.IsActive(node) || !is_of_it) return InDoubtError(query);
    End(absl::UnavailableError(absl::StrCat(NodeName(world_.members, node),
                                            " was restarted, and asks what became of commit ", query.commit_number)));
  }
  absl::StatusOr<CommitDecision> answer = *votes_.FindDecision(query);  // no decision is open in an ended epoch
  // Votes that disagreed have decided nothing.
  if (absl::IsFailedPrecondition(answer.status())) return UndecidedError(query, answer.status());
  return answer;
}

// --- Start ---

void ModelEpochs::TryStart() {
  while (!world_.stopped && !facts_.running && !facts_.rolls_back.has_value()) {
    const EpochPlan plan = PlanEpoch(facts_, world_.Facts());
    if (const auto* const start = std::get_if<StartEpoch>(&plan); start != nullptr) return Start(*start);
    if (const auto* const wait = std::get_if<WaitToStart>(&plan); wait != nullptr) return LogWait(*wait);
    if (const auto* const back = std::get_if<RollBack>(&plan); back != nullptr) {
      facts_.rolls_back = back->why;
      return world_.Tell(0, RestoreMessage{.model = facts_.name, .what = RollbackNeed{.why = back->why}});
    }
    if (const auto* const refusal = std::get_if<RefuseToStart>(&plan); refusal != nullptr) {
      if (refusal->nodes.empty()) return Refuse(refusal->why);
      for (const auto& [node, why] : refusal->nodes) RefuseNode(node, why);
    } else {
      EndOrder(facts_, "the node has another state now, or none");
    }
  }
}

// Trainers that have still to attach are the usual case.
void ModelEpochs::LogWait(const WaitToStart& wait) {
  using For = WaitToStart::For;
  if (!HasWaitingTrainers(facts_)) return;
  if (std::exchange(logged_, wait.what) == wait.what || wait.what == For::kTrainers) return;
  Log(wait.what == For::kNodes ? LogLevel::kInfo : LogLevel::kWarning, "no epoch starts",
      {{"model", facts_.name}, {"why", wait.why}});
}

std::optional<std::string> ModelEpochs::WhyNoEpoch() const {
  if (facts_.running) return std::nullopt;
  if (facts_.rolls_back.has_value()) return ToText(RollBack{.why = *facts_.rolls_back});
  if (!HasWaitingTrainers(facts_) && refused_.ok()) return std::nullopt;
  std::string text = ToText(PlanEpoch(facts_, world_.Facts()));
  if (!refused_.ok()) absl::StrAppend(&text, "; the last start was refused: ", refused_.message());
  return text;
}

void ModelEpochs::Start(const StartEpoch& plan) {
  const ModelReport& from = *facts_.reports[FirstWithState(plan.nodes, plan.healings)];
  ModelReport state = from;
  // An order to heal gives up other states, which may have gone on under the same history.
  const bool forks = facts_.order.has_value() && !plan.healings.empty() && !facts_.order->HasBegun(from);
  if (forks) state.history_id = state.lineage = DrawHistoryId();
  SkipEpochsOfOthers(facts_);
  // An import may bring a replaced history back.
  facts_.replaced.ids.erase(state.history_id);
  facts_.replaced.by = state.history_id;
  if (const absl::Status written = WriteBegun(state, plan.nodes); !written.ok()) return Refuse(written);
  ++facts_.last_epoch;
  unknown_epoch_ = 0;
  refused_ = absl::OkStatus();
  logged_ = {};
  facts_.running = true;
  facts_.active = plan.nodes;
  std::erase_if(facts_.awaited, [&](int node) { return !facts_.IsActive(node); });
  facts_.history_id = state.history_id;
  facts_.is_new.assign(world_.members.nodes(), false);
  votes_.StartEpoch(state);
  detached_ = DetachedRanks(facts_.active);
  rendezvous_.StartEpoch(facts_.active);
  ForgetAttached(facts_.reports, facts_.active);
  BeginByOrder(facts_, plan.healings, state.history_id);
  EpochStart start{.model = facts_.name,
                   .epoch = facts_.last_epoch,
                   .lineage = state.lineage,
                   .history_id = state.history_id,
                   .active = facts_.active,
                   .healings = plan.healings};
  if (forks) {
    start.fork = {.history_id = from.history_id, .lineage = from.lineage, .commit_number = from.commit_number};
  }
  world_.TellNodes(facts_.active, start);
  WarnIfAllAreNeeded(facts_, world_);
  for (int node = 0; node < world_.members.nodes(); ++node) {
    if (WaitsOutside(node)) LogHeldBack(facts_, world_, node);
  }
}

absl::Status ModelEpochs::WriteBegun(const ModelReport& state, const Nodes& nodes) {
  if (world_.log == nullptr) return absl::OkStatus();
  const ClosedEpoch begun{.model = facts_.name,
                          .history_id = state.history_id,
                          .epoch = facts_.last_epoch + 1,
                          .commit_number = state.commit_number,
                          .active = nodes,
                          .device_counts = world_.members.device_counts(),
                          .replaced = {facts_.replaced.ids.begin(), facts_.replaced.ids.end()}};
  const absl::Status written = world_.WriteInLog([&] { return world_.log->BeginEpoch(begun); });
  if (written.ok()) return written;
  return absl::Status(written.code(), absl::StrCat("start epoch of ", facts_.name, ": node 0 failed to write to its ",
                                                   "--state-dir: ", written.message()));
}

void ModelEpochs::Refuse(const absl::Status& why) {
  if (!HasWaitingTrainers(facts_)) return;
  refused_ = why;
  ForgetAttached(facts_.reports, AllOf(world_.members.nodes()));
  world_.TellAll(EpochRefused{.model = facts_.name, .why = why});
}

void ModelEpochs::RefuseNode(int node, const absl::Status& why) {
  ForgetAttached(facts_.reports, {node});
  world_.Tell(node, EpochRefused{.model = facts_.name, .why = why});
}

// --- End ---

void ModelEpochs::End(const absl::Status& why, bool by_votes) {
  facts_.running = false;
  votes_.EndEpoch(why, by_votes);
  rendezvous_.Clear(EpochOverError(facts_.name, facts_.last_epoch), world_.answers);
  // The links stay cut, whatever ends the epoch.
  if (gathering_.has_value() && MayLeaveOut()) world_.links.LeaveOut(SteadyNow());
  // A returner may have ended the epoch if there was no commit with it. Nodes with cut links are left out anyway.
  for (const int node : facts_.active) {
    if (Has(facts_.awaited, node) || !world_.members.present(node) || world_.links.IsLeftOut(node)) continue;
    world_.members.CountLoss(node);
  }
  const std::set<int> gone = std::exchange(gathering_, std::nullopt).value_or(Gathering()).gone;
  for (const int node : facts_.active) {
    // Nodes that have ended the epoch may have reported since. Trainers of other nodes wait for the next epoch.
    if (gone.contains(node)) continue;
    ForgetAttached(facts_.reports, {node});
    world_.Tell(node, EpochEnded{.model = facts_.name, .epoch = facts_.last_epoch, .why = why});
  }
}

void ModelEpochs::Stop() {
  votes_.Stop();
  rendezvous_.Clear(WorldContext::StoppedError(), world_.answers);
}

// --- Cut links ---

void ModelEpochs::Gather(int node) {
  gathering_->gone.insert(node);
  // If no node can be left out there is nothing to gather.
  const bool may_others_tell = MayLeaveOut() && gathering_->gone.size() < facts_.active.size();
  if (!may_others_tell || SteadyNow() >= gathering_->until) EndGathering();
  world_.changed.SignalAll();
}

void ModelEpochs::EndGathering() {
  if (MayLeaveOut()) world_.links.LeaveOut(SteadyNow());
  End(BadLinksError());
  TryStart();
}

void ModelEpochs::Look() {
  if (gathering_.has_value() && SteadyNow() >= gathering_->until) EndGathering();
  TryStart();
}

std::optional<SteadyTime> ModelEpochs::NextLook() const {
  return gathering_.has_value() ? std::optional(gathering_->until) : std::nullopt;
}

absl::Status ModelEpochs::BadLinksError() const {
  const Nodes left_out = LeftOut(SteadyNow());
  const std::string then = left_out.empty() ? "epochs need them all: mend the network, and attach again"
                                            : absl::StrCat("the next epochs are without node ",
                                                           absl::StrJoin(left_out, ", node "), ": attach again");
  return absl::UnavailableError(
      absl::StrCat("data addresses do not reach each other: ", absl::StrJoin(world_.links.Texts(), ", "), "; ", then));
}

Nodes ModelEpochs::LeftOut(SteadyTime now) const {
  if (!MayLeaveOut()) return {};
  const auto is_ready = [&](int node) { return facts_.IsActive(node) || IsAttached(facts_, world_.members, node); };
  const Nodes left_out = world_.links.left_out();
  const std::optional<Nodes> next =
      NextActive(world_.members, facts_.awaited, is_ready, world_.policy, /*may_be_fewer=*/true, left_out, now);
  if (!next.has_value()) return left_out;
  Nodes without;
  std::set_difference(left_out.begin(), left_out.end(), next->begin(), next->end(), std::back_inserter(without));
  return without;
}

// --- Nodes that are back ---

bool ModelEpochs::WaitsOutside(int node) const {
  return facts_.running && !facts_.IsActive(node) && IsAttached(facts_, world_.members, node);
}

void ModelEpochs::CheckReturner(int node) {
  if (!WaitsOutside(node)) return;
  const absl::Status fits =
      CheckMayReturn(facts_, world_.members, node, facts_.active[0], facts_.history_id, votes_.last_commit_number());
  fits.ok() ? LogHeldBack(facts_, world_, node) : RefuseNode(node, fits);
}

void ModelEpochs::EndForReturners() {
  if (static_cast<int>(facts_.active.size()) == world_.members.nodes()) return;
  const SteadyTime now = SteadyNow();
  world_.links.TryAgain(now);
  for (int node = 0; node < world_.members.nodes(); ++node) {
    if (!WaitsOutside(node) || world_.links.IsLeftOut(node)) continue;
    if (!MayReturn(world_.members, node, world_.policy, now)) continue;
    return End(absl::UnavailableError(
        absl::StrCat(NodeName(world_.members, node), " is back, and takes part in the next epoch: attach again")));
  }
}

// --- Healing, restores and rollbacks ---

absl::StatusOr<HealingAnswer> ModelEpochs::OrderHealing(int donor) {
  ASSIGN_OR_RETURN(HealingAnswer answer, PreviewOrder(facts_, world_.members, votes_.last_commit_number(), donor));
  if (!answer.ordered) return answer;
  const NodeState& right = answer.nodes[donor];
  facts_.order.emplace(donor, right.history_id, right.commit_number);
  for (const NodeState& state : answer.nodes) facts_.order->Show(state);
  TryStart();
  return answer;
}

void ModelEpochs::EndRollback(const absl::Status& status) {
  if (!std::exchange(facts_.rolls_back, std::nullopt).has_value()) return;
  status.ok() ? TryStart() : Refuse(WithWayOut(facts_, world_.members, status));
}

absl::Status ModelEpochs::WriteReplaced(const std::string& history, int64_t commit_number, const Nodes& nodes) {
  std::set<std::string> replaced = facts_.replaced.ids;
  replaced.insert(facts_.history_id);
  for (const ClosedEpoch& before : facts_.before) replaced.insert(before.history_id);
  for (const std::optional<ModelReport>& report : facts_.reports) {
    if (report.has_value()) replaced.insert(report->history_id);
  }
  replaced.erase("");
  const ClosedEpoch begun{.model = facts_.name,
                          .history_id = history,
                          .epoch = facts_.last_epoch,
                          .commit_number = commit_number,
                          .active = nodes,
                          .device_counts = world_.members.device_counts(),
                          .replaced = {replaced.begin(), replaced.end()}};
  RETURN_IF_ERROR(world_.WriteInLog([&] { return world_.log->BeginEpoch(begun); }));
  facts_.replaced = {.ids = std::move(replaced), .by = history};
  // The first epoch of the new history does not need the absent nodes, which have not trained in it.
  facts_.before.push_back(begun);
  return absl::OkStatus();
}

ModelEpochs* Find(Models& models, absl::string_view name) {
  const auto found = models.find(name);
  return found == models.end() ? nullptr : &found->second;
}

ModelEpochs* FindRunning(Models& models, absl::string_view name, int64_t epoch) {
  ModelEpochs* const model = Find(models, name);
  return model != nullptr && model->facts().running && model->facts().last_epoch == epoch ? model : nullptr;
}

}  // namespace paramshard::server
