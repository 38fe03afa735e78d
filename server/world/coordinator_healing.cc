// A person's order which node has the right state of a model.

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/observe/log.h"
#include "server/world/coordinator.h"
#include "server/world/state_difference.h"

namespace paramshard::server {
namespace {

using Fate = NodeState::Fate;

// Returns the fate of a usable state.
Fate FateOf(bool is_right, bool is_same) {
  if (is_right) return Fate::kGiven;
  return is_same ? Fate::kSame : Fate::kGivenUp;
}

absl::Status NoReplicasError(const std::string& model) {
  return absl::FailedPreconditionError(absl::StrCat(
      "heal ", model, ": want a model of which every node holds a replica, got one whose nodes hold parts: ",
      "restore it, or import the same into every daemon"));
}

absl::Status NotThereError(const std::string& model, const std::string& node) {
  return absl::UnavailableError(absl::StrCat("heal ", model, ": ", node,
                                             " is away or has not reported its state: start "
                                             "its daemon, let its trainers come, and ask again"));
}

absl::Status NoStateError(const std::string& model, const std::string& node, absl::string_view why) {
  return absl::FailedPreconditionError(
      absl::StrCat("heal ", model, ": ", node, " has no state that all may train on from: ", why));
}

}  // namespace

std::optional<int> Coordinator::healing_donor(absl::string_view name) const {
  absl::MutexLock lock(&mu_);
  const auto found = models_.find(name);
  if (found == models_.end() || !found->second.order.has_value()) return std::nullopt;
  return found->second.order->donor();
}

absl::StatusOr<HealingAnswer> Coordinator::OrderHealing(absl::string_view name, int donor) {
  const Lock lock(this);
  if (stopped_) return absl::UnavailableError("cluster: stopped, the daemon drains");
  if (donor < 0 || donor >= members_.nodes()) {
    return absl::InvalidArgumentError(
        absl::StrCat("heal ", name, ": want a node in [0, ", members_.nodes(), "), got ", donor));
  }
  const auto found = models_.find(name);
  if (found == models_.end()) {
    return absl::NotFoundError(absl::StrCat(
        "heal ", name, ": model not found, no trainer has attached to it: ", "let trainers come, and ask again"));
  }
  const std::string& model_name = found->first;
  Model& model = found->second;
  RETURN_IF_ERROR(CheckMayOrder(model_name, model, donor));
  HealingAnswer answer;
  for (int node = 0; node < members_.nodes(); ++node) answer.nodes.push_back(StateOf(model, node, donor));
  answer.ordered = std::any_of(answer.nodes.begin(), answer.nodes.end(), [](const NodeState& state) {
    return state.fate == Fate::kGivenUp || state.fate == Fate::kNone;
  });
  if (!answer.ordered) return answer;
  const NodeState& right = answer.nodes[donor];
  model.order.emplace(donor, right.history_id, right.commit_number);
  for (const NodeState& state : answer.nodes) model.order->Show(state);
  TryStart(model_name, model);
  return answer;
}

absl::Status Coordinator::CheckMayOrder(const std::string& name, const Model& model, int donor) const {
  const std::string node = NodeName(members_, donor);
  if (!members_.sized() || !members_.present(donor)) return NotThereError(name, node);
  if (!HoldReplicas(model.reports, members_.world_size())) {
    const bool is_known = std::any_of(model.reports.begin(), model.reports.end(),
                                      [](const auto& report) { return report.has_value() && report->shard_size > 0; });
    return is_known ? NoReplicasError(name) : NotThereError(name, node);
  }
  if (model.rolls_back.has_value()) {
    return absl::UnavailableError(
        absl::StrCat("heal ", name, ": all nodes are rolling back to a saved step: ask again when they are done"));
  }
  const std::optional<ModelReport>& report = model.reports[donor];
  if (model.running) {
    if (Has(model.active, donor)) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat("heal ", name, ": ", node,
                     " takes no part in the running epoch: ", "end that training first, whose state is given up"));
  }
  // A report from before the last epoch does not count.
  if (!report.has_value() || !model.is_new[donor]) return NotThereError(name, node);
  if (!report->lost.ok()) return NoStateError(name, node, report->lost.message());
  if (report->fresh) {
    return NoStateError(name, node, "it has initial values: to begin anew delete the model on every node");
  }
  for (int other = 0; other < members_.nodes(); ++other) {
    const std::optional<ModelReport>& one = model.reports[other];
    if (!one.has_value() || one->shard_size == 0 || one->spec_fingerprint == report->spec_fingerprint) continue;
    return absl::FailedPreconditionError(absl::StrCat("heal ", name, ": want the spec of ", node,
                                                      " on all nodes, got another one on ", NodeName(members_, other),
                                                      ": delete the model there, and create it with the same spec"));
  }
  return absl::OkStatus();
}

NodeState Coordinator::StateOf(const Model& model, int node, int donor) const {
  const std::optional<ModelReport>& report = model.reports[node];
  const int64_t last_commit = model.book.last_commit_number();
  // Nodes that train, or have trained and not reported since, have the state of the last commit.
  if (Has(model.active, node) && members_.present(node) && !model.history_id.empty() &&
      (model.running || !model.is_new[node])) {
    const bool is_same = model.running || (model.reports[donor]->history_id == model.history_id &&
                                           model.reports[donor]->commit_number == last_commit);
    return {.node = node,
            .fate = FateOf(node == donor, is_same),
            .history_id = model.history_id,
            .commit_number = last_commit};
  }
  if (!report.has_value() || !(model.running || model.is_new[node])) return {.node = node};
  if (!report->lost.ok()) {
    return {.node = node, .fate = Fate::kNone, .why_none = std::string(report->lost.message())};
  }
  if (report->fresh) return {.node = node, .fate = Fate::kNone, .why_none = "initial values"};
  const bool is_same = !model.running && IsOneState(*model.reports[donor], *report);
  return {.node = node,
          .fate = FateOf(node == donor, is_same),
          .history_id = report->history_id,
          .commit_number = report->commit_number};
}

void Coordinator::CheckOrder(const std::string& name, Model& model, int node) {
  // A report of a node that takes part is older than the epoch.
  if (!IsOrderedDonor(model, node) || (model.running && Has(model.active, node))) return;
  if (model.reports[node].has_value() && model.order->IsOf(*model.reports[node])) return;
  EndOrder(name, model, "the node has another state now, or none");
}

void Coordinator::BeginByOrder(const std::string& name, Model& model, const std::vector<Healing>& healings,
                               const std::string& history_id) {
  if (!model.order.has_value()) return;
  if (healings.empty()) {
    if (model.order->IsFor(model.active)) EndOrder(name, model, "an epoch has begun with one state");
    return;
  }
  model.order->Begin(model.last_epoch, history_id);
  for (const Healing& healing : healings) {
    const ModelReport& before = *model.reports[healing.receiver];
    Log(LogLevel::kWarning, "state given up by a healing order",
        {{"model", name},
         {"epoch", absl::StrCat(model.last_epoch)},
         {"node", absl::StrCat(healing.receiver)},
         {"history", before.history_id},
         {"commit", absl::StrCat(before.commit_number)},
         {"why_none", std::string(before.lost.message())},
         {"for_that_of", absl::StrCat(healing.donor)},
         {"new_history", history_id}});
  }
}

void Coordinator::EndOrderBehindCommit(const std::string& name, Model& model) {
  const std::optional<HealingOrder>& order = model.order;
  if (!order.has_value() || order->epoch() != model.last_epoch || !order->IsFor(model.active)) return;
  EndOrder(name, model, "an epoch has made a commit with one state");
}

void Coordinator::EndOrder(const std::string& name, Model& model, absl::string_view why) {
  Log(LogLevel::kInfo, "an order to heal is over",
      {{"model", name}, {"from", absl::StrCat(model.order->donor())}, {"why", std::string(why)}});
  model.order.reset();
}

absl::StatusOr<HealingAnswer> Cluster::OrderHealing(absl::string_view model, int) {
  return absl::FailedPreconditionError(
      absl::StrCat("heal ", model, ": want a call to node 0, which begins epochs, got one to node ", node()));
}

}  // namespace paramshard::server
