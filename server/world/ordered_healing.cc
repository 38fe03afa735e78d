#include "server/world/ordered_healing.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/observe/log.h"

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
      absl::StrCat("heal ", model, ": ", node, " has no state that all can train on from: ", why));
}

absl::Status CheckMayOrder(const ModelFacts& model, const Membership& members, int donor) {
  const std::string& name = model.name;
  const std::string node = NodeName(members, donor);
  if (!members.sized() || !members.present(donor)) return NotThereError(name, node);
  if (!HoldReplicas(model.reports, members.world_size())) {
    const bool is_known = std::any_of(model.reports.begin(), model.reports.end(),
                                      [](const auto& report) { return report.has_value() && report->shard_size > 0; });
    return is_known ? NoReplicasError(name) : NotThereError(name, node);
  }
  if (model.rolls_back.has_value()) {
    return absl::UnavailableError(
        absl::StrCat("heal ", name, ": all nodes are rolling back to a checkpoint; try again when they are done"));
  }
  const std::optional<ModelReport>& report = model.reports[donor];
  if (model.running) {
    if (model.IsActive(donor)) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat("heal ", name, ": ", node,
                     " takes no part in the running epoch: ", "end that training first; its state is discarded"));
  }
  // A report from before the last epoch does not count.
  if (!report.has_value() || !model.is_new[donor]) return NotThereError(name, node);
  if (!report->lost.ok()) return NoStateError(name, node, report->lost.message());
  if (report->fresh) {
    return NoStateError(name, node, "it has initial values: to begin anew delete the model on every node");
  }
  for (int other = 0; other < members.nodes(); ++other) {
    const std::optional<ModelReport>& one = model.reports[other];
    if (!one.has_value() || one->shard_size == 0 || one->spec_fingerprint == report->spec_fingerprint) continue;
    return absl::FailedPreconditionError(absl::StrCat("heal ", name, ": want the spec of ", node,
                                                      " on all nodes, got another one on ", NodeName(members, other),
                                                      ": delete the model there, and create it with the same spec"));
  }
  return absl::OkStatus();
}

NodeState StateOf(const ModelFacts& model, const Membership& members, int64_t last_commit, int node, int donor) {
  const std::optional<ModelReport>& report = model.reports[node];
  // Nodes that train, or have trained and not reported since, have the state of the last commit.
  if (model.IsActive(node) && members.present(node) && !model.history_id.empty() &&
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

}  // namespace

absl::StatusOr<HealingAnswer> PreviewOrder(const ModelFacts& model, const Membership& members, int64_t last_commit,
                                           int donor) {
  RETURN_IF_ERROR(CheckMayOrder(model, members, donor));
  HealingAnswer answer;
  for (int node = 0; node < members.nodes(); ++node) {
    answer.nodes.push_back(StateOf(model, members, last_commit, node, donor));
  }
  answer.ordered = std::any_of(answer.nodes.begin(), answer.nodes.end(), [](const NodeState& state) {
    return state.fate == Fate::kGivenUp || state.fate == Fate::kNone;
  });
  return answer;
}

void CheckOrder(ModelFacts& model, int node) {
  // A report of a node that takes part is older than the epoch.
  if (!IsOrderedDonor(model, node) || (model.running && model.IsActive(node))) return;
  if (model.reports[node].has_value() && model.order->IsOf(*model.reports[node])) return;
  EndOrder(model, "the node has another state now, or none");
}

void BeginByOrder(ModelFacts& model, const std::vector<Healing>& healings, const std::string& history_id) {
  if (!model.order.has_value()) return;
  if (healings.empty()) {
    if (model.order->IsFor(model.active)) EndOrder(model, "an epoch has begun with one state");
    return;
  }
  model.order->Begin(model.last_epoch, history_id);
  for (const Healing& healing : healings) {
    const ModelReport& before = *model.reports[healing.receiver];
    Log(LogLevel::kWarning, "state discarded by heal",
        {{"model", model.name},
         {"epoch", absl::StrCat(model.last_epoch)},
         {"node", absl::StrCat(healing.receiver)},
         {"history", before.history_id},
         {"commit", absl::StrCat(before.commit_number)},
         {"why_none", std::string(before.lost.message())},
         {"donor", absl::StrCat(healing.donor)},
         {"new_history", history_id}});
  }
}

void EndOrderBehindCommit(ModelFacts& model) {
  const std::optional<HealingOrder>& order = model.order;
  if (!order.has_value() || order->epoch() != model.last_epoch || !order->IsFor(model.active)) return;
  EndOrder(model, "an epoch has made a commit with one state");
}

void EndOrder(ModelFacts& model, absl::string_view why) {
  Log(LogLevel::kInfo, "heal request ended",
      {{"model", model.name}, {"from", absl::StrCat(model.order->donor())}, {"why", std::string(why)}});
  model.order.reset();
}

}  // namespace paramshard::server
