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
// An operator who permits fewer nodes relies on it for all models.
void Coordinator::WarnWhoIsNeeded(const std::string& name, const Model& model) const {
  if (options_.attendance.Needed(options_.nodes) == options_.nodes || MayBeFewer(model, members_)) return;
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
      CheckMayReturn(model, members_, node, model.active[0], model.history_id, model.book.last_commit_number());
  fits.ok() ? LogHeldBack(name, node) : RefuseNode(name, model, node, fits);
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
