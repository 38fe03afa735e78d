// News of daemons about saves and restores: how the coordinator passes them on, and what it keeps of them.

#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/checkpoint/content_hash.h"
#include "kernels/base/status_macros.h"
#include "server/terms/restore_news.h"
#include "server/terms/save_news.h"
#include "server/world/coordinator.h"

namespace paramshard::server {

// --- Saves ---

absl::Status Coordinator::TellSave(int node, const SaveNews& news) {
  const Lock lock(this);
  if (stopped_) return StoppedError();
  if (node == 0) return TellFollowers(news);
  TellLeader(node, news);
  return absl::OkStatus();
}

absl::Status Coordinator::TellFollowers(const SaveNews& news) {
  if (const auto* const order = std::get_if<SaveOrder>(&news.what); order != nullptr) {
    RETURN_IF_ERROR(CheckMayOrder(news.model, *order));
    saves_.insert_or_assign(news.model, *order);
  }
  if (std::holds_alternative<SaveEnd>(news.what)) saves_.erase(news.model);
  for (size_t node = 1; node < sinks_.size(); ++node) {
    if (sinks_[node] != nullptr) sinks_[node]->OnSaveNews(news);
  }
  return absl::OkStatus();
}

// A decided commit may be applied on any node before the order reaches it.
absl::Status Coordinator::CheckMayOrder(const std::string& name, const SaveOrder& order) {
  RETURN_IF_ERROR(CheckAllHere("save", name));
  const Model* const model = Find(name);
  if (model == nullptr) return absl::OkStatus();
  RETURN_IF_ERROR(CheckAllTakePart("save", name, *model));
  if (!model->running || model->book.last_commit_number() <= order.step) return absl::OkStatus();
  return absl::AbortedError(absl::StrCat("save ", name, ": want commit ", order.step, " as the last decided one, got ",
                                         model->book.last_commit_number()));
}

absl::Status Coordinator::CheckAllHere(absl::string_view operation, absl::string_view model) const {
  for (int node = 0; node < members_.nodes(); ++node) {
    if (members_.present(node)) continue;
    return absl::UnavailableError(
        absl::StrCat(operation, " ", model, ": all nodes are required, ", NodeName(members_, node), " is not here"));
  }
  return absl::OkStatus();
}

absl::Status Coordinator::CheckAllTakePart(absl::string_view operation, absl::string_view name,
                                           const Model& model) const {
  for (int node = 0; node < members_.nodes(); ++node) {
    if (Has(model.awaited, node)) continue;
    return absl::UnavailableError(
        absl::StrCat(operation, " ", name, ": all nodes are required, ", NodeName(members_, node), " takes no part"));
  }
  return absl::OkStatus();
}

CommitDecision Coordinator::WithOrder(absl::string_view model, int64_t commit_number, CommitDecision decision) const {
  const auto save = saves_.find(model);
  if (save != saves_.end() && save->second.step + 1 == commit_number) decision.save = save->second;
  return decision;
}

void Coordinator::TellLeader(int node, SaveNews news) {
  if (auto* const part = std::get_if<SavePart>(&news.what); part != nullptr) {
    part->node = node;
  } else if (!std::holds_alternative<SaveWish>(news.what)) {
    return;
  }
  if (sinks_[0] != nullptr) sinks_[0]->OnSaveNews(news);
}

void Coordinator::TellLostParts(int node) {
  for (const auto& [model, order] : saves_) {
    TellLeader(node, {.model = model,
                      .what = SavePart{
                          .id = order.id,
                          .status = absl::UnavailableError(absl::StrCat(NodeName(members_, node), " was lost"))}});
  }
}

// --- Restores ---

absl::Status Coordinator::TellRestore(int node, const RestoreNews& news) {
  const Lock lock(this);
  if (stopped_) return StoppedError();
  if (const auto* const end = std::get_if<RollbackEnd>(&news.what); end != nullptr) {
    if (node == 0) EndRollback(news.model, end->status);
    return absl::OkStatus();
  }
  if (node == 0) return TellRestoreFollowers(news);
  TellRestoreLeader(node, news);
  return absl::OkStatus();
}

absl::Status Coordinator::TellRestoreFollowers(const RestoreNews& news) {
  if (const auto* const order = std::get_if<RestoreOrder>(&news.what); order != nullptr) {
    ASSIGN_OR_RETURN(Nodes nodes, NodesToRestore(news.model, *order));
    if (order->rolls_back()) RETURN_IF_ERROR(CheckMayGoBack(news.model));
    restores_.insert_or_assign(news.model, OrderedRestore{.order = *order, .nodes = std::move(nodes)});
  }
  if (const auto* const go = std::get_if<RestoreGo>(&news.what); go != nullptr) {
    RETURN_IF_ERROR(WriteReplaced(news.model, *go));
  }
  // All rows are written, but node 0 still waits for the other nodes to finish: it is told of lost nodes until the next
  // order.
  const auto* const end = std::get_if<RestoreEnd>(&news.what);
  if (end != nullptr && !end->status.ok()) restores_.erase(news.model);
  for (size_t node = 1; node < sinks_.size(); ++node) {
    if (sinks_[node] != nullptr) sinks_[node]->OnRestoreNews(news);
  }
  return absl::OkStatus();
}

std::vector<int> Coordinator::restored_nodes(absl::string_view name, absl::uint128 id) const {
  absl::MutexLock lock(&mu_);
  const auto found = restores_.find(name);
  if (found != restores_.end() && found->second.order.id == id) return found->second.nodes;
  Nodes all(members_.nodes());
  std::iota(all.begin(), all.end(), 0);
  return all;
}

// Restores that create a model, and rollbacks, need all nodes, as their first epoch does.
absl::StatusOr<Coordinator::Nodes> Coordinator::NodesToRestore(const std::string& name,
                                                               const RestoreOrder& order) const {
  Nodes here;
  for (int node = 0; node < members_.nodes(); ++node) {
    if (members_.present(node)) here.push_back(node);
  }
  if (static_cast<int>(here.size()) == members_.nodes()) return here;
  const auto found = models_.find(name);
  const bool may_be_fewer = !order.creates && !order.rolls_back() && options_.log != nullptr &&
                            found != models_.end() && members_.sized() && MayLeaveOut(found->second);
  const bool are_enough = static_cast<int>(here.size()) >= options_.attendance.Needed(options_.nodes);
  if (!may_be_fewer || !are_enough || !Has(here, 0)) RETURN_IF_ERROR(CheckAllHere("restore", name));
  return here;
}

// An absent node may have any history that node 0 knows of the model. From here on the new history replaces them all,
// even if the restore fails: its nodes then have no state, or still have one of these histories.
absl::Status Coordinator::WriteReplaced(const std::string& name, const RestoreGo& go) {
  const auto restore = restores_.find(name);
  if (restore == restores_.end() || restore->second.order.id != go.id) return absl::OkStatus();
  const Nodes& nodes = restore->second.nodes;
  Model* const model = Find(name);
  if (model == nullptr || static_cast<int>(nodes.size()) == members_.nodes()) return absl::OkStatus();
  const std::string history = checkpoint::HashText(go.id);
  std::set<std::string> replaced = model->replaced.ids;
  replaced.insert(model->history_id);
  for (const ClosedEpoch& before : model->before) replaced.insert(before.history_id);
  for (const std::optional<ModelReport>& report : model->reports) {
    if (report.has_value()) replaced.insert(report->history_id);
  }
  replaced.erase("");
  const ClosedEpoch begun{.model = name,
                          .history_id = history,
                          .epoch = model->last_epoch,
                          .commit_number = restore->second.order.step,
                          .active = nodes,
                          .device_counts = members_.device_counts(),
                          .replaced = {replaced.begin(), replaced.end()}};
  RETURN_IF_ERROR(WriteInLog([&] { return options_.log->BeginEpoch(begun); }));
  model->replaced = {.ids = std::move(replaced), .by = history};
  // The first epoch of the new history does not need the absent nodes, which have not trained in it.
  model->before.push_back(begun);
  return absl::OkStatus();
}

// The reason to roll back may be gone by now.
absl::Status Coordinator::CheckMayGoBack(const std::string& name) const {
  const auto found = models_.find(name);
  for (int node = 0; found != models_.end() && node < members_.nodes(); ++node) {
    const std::optional<ModelReport>& report = found->second.reports[node];
    if (!report.has_value() || !report->lost.ok() || report->fresh) return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrCat("restore ", name, ": nodes go back only when one has no state, and every node has one"));
}

void Coordinator::EndRollback(const std::string& name, const absl::Status& status) {
  Model* const model = Find(name);
  if (model == nullptr || !std::exchange(model->rolls_back, std::nullopt).has_value()) return;
  status.ok() ? TryStart(name, *model) : RefuseStart(name, *model, WithWayOut(*model, members_, status));
}

void Coordinator::TellRestoreLeader(int node, RestoreNews news) {
  if (auto* const sums = std::get_if<RestoreSums>(&news.what); sums != nullptr) {
    sums->node = node;
  } else if (auto* const report = std::get_if<RestoreReport>(&news.what); report != nullptr) {
    report->node = node;
  } else if (auto* const progress = std::get_if<RestorePartProgress>(&news.what); progress != nullptr) {
    progress->node = node;
  } else if (auto* const wish = std::get_if<RestoreWish>(&news.what); wish != nullptr) {
    wish->node = node;
  } else {
    return;
  }
  if (sinks_[0] != nullptr) sinks_[0]->OnRestoreNews(news);
}

void Coordinator::TellLostRestores(int node) {
  for (const auto& [model, restore] : restores_) {
    if (!Has(restore.nodes, node)) continue;
    TellRestoreLeader(
        node,
        {.model = model,
         .what = RestoreReport{.id = restore.order.id,
                               .status = absl::UnavailableError(absl::StrCat(NodeName(members_, node), " was lost"))}});
  }
  if (sinks_[0] != nullptr) sinks_[0]->OnRestoreNews({.model = {}, .what = RestoreFollowerLost{.node = node}});
}

}  // namespace paramshard::server
