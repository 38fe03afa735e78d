// Epochs without nodes that are lost or whose links are cut, and the return of these nodes.

#include <algorithm>
#include <iterator>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/observe/log.h"
#include "server/world/coordinator.h"
#include "server/world/state_difference.h"

namespace paramshard::server {
namespace {

// Error for a node that the others have gone on without.
absl::Status NoPartError(const std::string& model, const std::string& node, const ModelReport& report,
                         absl::string_view history_id, int64_t commit_number) {
  return absl::FailedPreconditionError(absl::StrCat(
      "start epoch of ", model, ": the others have gone on without ", node, ": want no state there, or one of history ",
      history_id, " up to commit ", commit_number, ", got commit ", report.commit_number, " of history ",
      report.history_id, ": if its state is not wanted delete the model on that node, or say which node is right, `",
      HealCommand(model), "` at node 0; or import the same into every daemon"));
}

// Returns true if the node has no state, or a state from which the others have gone on.
bool MayBeHealed(const ModelReport& report, absl::string_view history_id, int64_t commit_number,
                 const ReplacedHistories& replaced) {
  if (replaced.GivesWay(report.history_id, history_id)) return true;
  if (!report.lost.ok() || report.fresh || (report.untouched && report.commit_number == 0)) return true;
  return report.history_id == history_id && report.commit_number <= commit_number;
}

}  // namespace

bool Coordinator::MayBeFewer(const Model& model) const {
  return HoldReplicas(model.reports, members_.world_size()) &&
         std::none_of(model.reports.begin(), model.reports.end(), [&](const auto& report) {
           return report.has_value() && HasLeadersSpec(model.reports, *report) && report->needs_every_node;
         });
}

bool Coordinator::MayLeaveOut(const Model& model) const {
  return options_.attendance.Needed(options_.nodes) < options_.nodes && MayBeFewer(model);
}

// An operator who permits fewer nodes relies on it for all models.
void Coordinator::WarnWhoIsNeeded(const std::string& name, const Model& model) const {
  if (options_.attendance.Needed(options_.nodes) == options_.nodes || MayBeFewer(model)) return;
  Log(LogLevel::kWarning, "model needs all nodes, --min-replicas has no effect",
      {{"model", name}, {"why", "its nodes hold parts of it, or its gradients are summed and not averaged"}});
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

// May return a time before `now`: then epochs are looked at again at once.
std::optional<SteadyTime> Coordinator::NextLook(SteadyTime now) const {
  std::optional<SteadyTime> next = NextGivenUp(members_, options_.attendance, now);
  if (const std::optional<SteadyTime> again = links_.NextTry()) next = std::min(*again, next.value_or(*again));
  for (const auto& [name, model] : models_) {
    if (!model.gathering.has_value()) continue;
    next = std::min(model.gathering->until, next.value_or(model.gathering->until));
  }
  return next;
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

// --- Links ---

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
  // If no node can be left out there is nothing to gather.
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

// --- Nodes that are back ---

void Coordinator::CheckReturner(const std::string& name, Model& model, int node) {
  if (Has(model.active, node) || !IsAttached(model, node)) return;
  const absl::Status fits =
      CheckMayReturn(name, model, node, model.active[0], model.history_id, model.book.last_commit_number());
  fits.ok() ? LogHeldBack(name, node) : RefuseNode(name, model, node, fits);
}

bool Coordinator::RefuseReturners(const std::string& name, Model& model, const Nodes& nodes, const absl::Status& why) {
  Nodes others, returners;
  for (const int node : nodes) (Has(model.awaited, node) ? others : returners).push_back(node);
  // Nodes that would begin a history need all nodes, so they refuse none.
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

absl::Status Coordinator::CheckMayReturn(const std::string& name, const Model& model, int node, int other,
                                         absl::string_view history_id, int64_t commit_number) const {
  const ModelReport& report = *model.reports[node];
  const ModelReport& state = *model.reports[other];
  if (report.spec_fingerprint != state.spec_fingerprint) {
    return SpecsDifferError(name, model.reports, other, node, members_);
  }
  const bool may_return = (model.healing_order.has_value() && model.healing_order->MayGiveUp(node, report)) ||
                          MayBeHealed(report, history_id, commit_number, model.replaced);
  if (may_return) return absl::OkStatus();
  return NoPartError(name, NodeName(members_, node), report, history_id, commit_number);
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

void Coordinator::LogHeldBack(const std::string& name, int node) const {
  const absl::Duration held_for = HeldBack(node, SteadyNow());
  if (held_for == absl::ZeroDuration()) return;
  Log(LogLevel::kWarning, "node excluded: repeated failures",
      {{"model", name},
       {"node", NodeName(members_, node)},
       {"losses", absl::StrCat(members_.losses(node))},
       {"held_for", absl::FormatDuration(absl::Trunc(held_for, absl::Milliseconds(1)))}});
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

}  // namespace paramshard::server
