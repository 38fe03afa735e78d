#include "server/world/checkpoint_relay.h"

#include <numeric>
#include <optional>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/checkpoint/content_hash.h"
#include "kernels/base/status_macros.h"

namespace paramshard::server {
namespace {

// Error of a lost node. Its reader adds the node.
absl::Status LostError() { return absl::UnavailableError("its daemon was lost"); }

// UNAVAILABLE naming a node that was not in the last epoch: its state is old or missing.
absl::Status CheckAllTakePart(absl::string_view operation, const ModelFacts& model, const Membership& members) {
  for (int node = 0; node < members.nodes(); ++node) {
    if (Has(model.awaited, node)) continue;
    return absl::UnavailableError(absl::StrCat(operation, " ", model.name, ": all nodes are required, ",
                                               NodeName(members, node), " takes no part"));
  }
  return absl::OkStatus();
}

// FAILED_PRECONDITION every node has a state. The reason to roll back may be gone by now.
absl::Status CheckMayRollBack(const std::string& name, const ModelEpochs* model) {
  const ModelReports& reports = model == nullptr ? ModelReports() : model->facts().reports;
  for (const std::optional<ModelReport>& report : reports) {
    if (!report.has_value() || !report->lost.ok() || report->fresh) return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrCat("restore ", name, ": nodes roll back only if one of them has no state; every node has one"));
}

}  // namespace

// --- Saves ---

absl::Status SaveRelay::Step(int node, const SaveMessage& message) {
  if (world_.stopped) return WorldContext::StoppedError();
  if (node == 0) return TellFollowers(message);
  TellLeader(node, message);
  return absl::OkStatus();
}

absl::Status SaveRelay::TellFollowers(const SaveMessage& message) {
  if (const auto* const order = std::get_if<SaveOrder>(&message.what); order != nullptr) {
    RETURN_IF_ERROR(CheckMayOrder(message.model, *order));
    world_.saves.insert_or_assign(message.model, *order);
  }
  if (std::holds_alternative<SaveEnd>(message.what)) world_.saves.erase(message.model);
  world_.TellFollowers(message);
  return absl::OkStatus();
}

// A decided commit may be applied on any node before the order reaches it.
absl::Status SaveRelay::CheckMayOrder(const std::string& name, const SaveOrder& order) {
  RETURN_IF_ERROR(world_.CheckAllPresent("save", name));
  ModelEpochs* const model = Find(models_, name);
  if (model == nullptr) return absl::OkStatus();
  RETURN_IF_ERROR(CheckAllTakePart("save", model->facts(), world_.members));
  const int64_t last = model->votes().last_commit_number();
  if (!model->facts().running || last <= order.step) return absl::OkStatus();
  return absl::AbortedError(
      absl::StrCat("save ", name, ": want commit ", order.step, " as the last decided one, got ", last));
}

void SaveRelay::TellLeader(int node, SaveMessage message) {
  if (auto* const part = std::get_if<SavePart>(&message.what); part != nullptr) {
    part->node = node;
  } else if (!std::holds_alternative<SaveRequest>(message.what)) {
    return;
  }
  world_.Tell(0, message);
}

void SaveRelay::Lose(int node) {
  for (const auto& [model, order] : world_.saves) {
    TellLeader(node, {.model = model, .what = SavePart{.id = order.id, .status = LostError()}});
  }
}

// --- Restores ---

absl::Status RestoreRelay::Step(int node, const RestoreMessage& message) {
  if (world_.stopped) return WorldContext::StoppedError();
  if (const auto* const end = std::get_if<RollbackEnd>(&message.what); end != nullptr) {
    ModelEpochs* const model = Find(models_, message.model);
    if (node == 0 && model != nullptr) model->EndRollback(end->status);
    return absl::OkStatus();
  }
  if (node == 0) return TellFollowers(message);
  TellLeader(node, message);
  return absl::OkStatus();
}

absl::Status RestoreRelay::TellFollowers(const RestoreMessage& message) {
  if (const auto* const order = std::get_if<RestoreOrder>(&message.what); order != nullptr) {
    ASSIGN_OR_RETURN(Nodes nodes, NodesFor(message.model, *order));
    const ModelEpochs* const model = Find(models_, message.model);
    if (order->rolls_back()) RETURN_IF_ERROR(CheckMayRollBack(message.model, model));
    restores_.insert_or_assign(message.model, Ordered{.order = *order, .nodes = std::move(nodes)});
  }
  if (const auto* const go = std::get_if<RestoreGo>(&message.what); go != nullptr) {
    RETURN_IF_ERROR(WriteReplaced(message.model, *go));
  }
  // All rows are written, but node 0 still waits for the other nodes to finish: it is told of lost nodes until the next
  // order.
  const auto* const end = std::get_if<RestoreEnd>(&message.what);
  if (end != nullptr && !end->status.ok()) restores_.erase(message.model);
  world_.TellFollowers(message);
  return absl::OkStatus();
}

Nodes RestoreRelay::nodes_of(absl::string_view model, absl::uint128 id) const {
  const auto found = restores_.find(model);
  if (found != restores_.end() && found->second.order.id == id) return found->second.nodes;
  Nodes all(world_.members.nodes());
  std::iota(all.begin(), all.end(), 0);
  return all;
}

// Restores that create a model, and rollbacks, need all nodes, as their first epoch does.
absl::StatusOr<Nodes> RestoreRelay::NodesFor(const std::string& name, const RestoreOrder& order) const {
  const Membership& members = world_.members;
  Nodes here;
  for (int node = 0; node < members.nodes(); ++node) {
    if (members.present(node)) here.push_back(node);
  }
  const ModelEpochs* const model = Find(models_, name);
  const bool may_be_fewer = !order.creates && !order.rolls_back() && world_.log != nullptr && model != nullptr &&
                            MayLeaveOut(model->facts(), members, world_.policy) && members.present(0) &&
                            static_cast<int>(here.size()) >= world_.policy.Needed(members.nodes());
  if (!may_be_fewer) RETURN_IF_ERROR(world_.CheckAllPresent("restore", name));
  return here;
}

absl::Status RestoreRelay::WriteReplaced(const std::string& name, const RestoreGo& go) {
  const auto restore = restores_.find(name);
  if (restore == restores_.end() || restore->second.order.id != go.id) return absl::OkStatus();
  const auto& [order, nodes] = restore->second;
  ModelEpochs* const model = Find(models_, name);
  if (model == nullptr || static_cast<int>(nodes.size()) == world_.members.nodes()) return absl::OkStatus();
  return model->WriteReplaced(checkpoint::HashText(go.id), order.step, nodes);
}

void RestoreRelay::TellLeader(int node, RestoreMessage message) {
  if (auto* const sums = std::get_if<RestoreSums>(&message.what); sums != nullptr) {
    sums->node = node;
  } else if (auto* const report = std::get_if<RestoreReport>(&message.what); report != nullptr) {
    report->node = node;
  } else if (auto* const progress = std::get_if<RestorePartProgress>(&message.what); progress != nullptr) {
    progress->node = node;
  } else if (auto* const request = std::get_if<RestoreRequest>(&message.what); request != nullptr) {
    request->node = node;
  } else {
    return;
  }
  world_.Tell(0, message);
}

void RestoreRelay::Lose(int node) {
  for (const auto& [model, restore] : restores_) {
    if (!Has(restore.nodes, node)) continue;
    TellLeader(node, {.model = model, .what = RestoreReport{.id = restore.order.id, .status = LostError()}});
  }
  world_.Tell(0, RestoreMessage{.model = {}, .what = RestoreFollowerLost{.node = node}});
}

}  // namespace paramshard::server
