#include "server/terms/healing_plan.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace paramshard::server {
namespace {

// Returns the nodes without a state to train on from, by node of the world. Values imported at commit 0, as by programs
// that begin, give way to a trained state; but an import at node 0 is for a person to judge.
std::vector<bool> WithoutState(const ModelReports& reports, const std::vector<int>& active) {
  const bool is_trained = std::any_of(active.begin(), active.end(), [&](int node) {
    return reports[node]->lost.ok() && reports[node]->commit_number > 0;
  });
  std::vector<bool> without(reports.size());
  for (const int node : active) {
    const ModelReport& report = *reports[node];
    const bool begins = report.untouched && report.commit_number == 0 && node != 0;
    without[node] = !report.lost.ok() || report.fresh || (is_trained && begins);
  }
  return without;
}

// Returns true if one of `others` nodes besides node 0 must have been in the last epoch.
bool IsOneOfTheLastEpochAmong(int others, int nodes, int min_nodes) { return others > nodes - min_nodes; }

// Returns the newest state; null if it is not known which one that is.
const ModelReport* Newest(const ModelReports& reports, const std::vector<int>& active, const std::vector<bool>& without,
                          int min_nodes, const ReplacedHistories& replaced) {
  const ModelReport* newest = nullptr;
  int others = 0;
  for (const int node : active) {
    if (without[node]) continue;
    if (node == 0) return &*reports[node];
    ++others;
    if (newest == nullptr || IsBehind(*newest, *reports[node], replaced)) newest = &*reports[node];
  }
  return IsOneOfTheLastEpochAmong(others, static_cast<int>(reports.size()), min_nodes) ? newest : nullptr;
}

// Returns the nodes in the order after `node`, itself last.
std::vector<int> Behind(int node, std::vector<int> active) {
  std::rotate(active.begin(), std::upper_bound(active.begin(), active.end(), node), active.end());
  return active;
}

Healing::GivenUp GivenUpOf(const ModelReport& report) {
  return {.history_id = report.history_id, .commit_number = report.commit_number};
}

// Returns the node of `whole` that keeps the client states of the receiver's ranks.
std::optional<int> KeeperOf(int receiver, const ModelReports& reports, const std::vector<int>& whole) {
  for (const int donor : Behind(receiver, whole)) {
    const ModelReport& report = *reports[donor];
    if (report.keeps_previous && report.previous.value_or(receiver) == receiver) return donor;
  }
  return std::nullopt;
}

std::optional<int> DonorOf(int receiver, const ModelReports& reports, const std::vector<int>& whole,
                           bool may_be_fewer) {
  if (const std::optional<int> keeper = KeeperOf(receiver, reports, whole); keeper.has_value()) return keeper;
  return may_be_fewer && !whole.empty() ? std::optional(Behind(receiver, whole).front()) : std::nullopt;
}

}  // namespace

bool BeganAlike(const ModelReport& a, const ModelReport& b) {
  return a.lineage == b.lineage && a.untouched && b.untouched;
}

bool IsOneState(const ModelReport& a, const ModelReport& b) {
  return a.commit_number == b.commit_number && a.version == b.version &&
         (a.history_id == b.history_id || BeganAlike(a, b));
}

bool IsBehind(const ModelReport& report, const ModelReport& other, const ReplacedHistories& replaced) {
  if (replaced.GivesWay(report.history_id, other.history_id)) return true;
  if (report.commit_number >= other.commit_number) return false;
  return report.history_id == other.history_id || (report.untouched && report.lineage == other.lineage);
}

int PreviousNode(int node, const std::vector<int>& active) {
  const auto self = std::lower_bound(active.begin(), active.end(), node);
  return self == active.begin() ? active.back() : *std::prev(self);
}

bool AreAllMade(const ModelReports& reports, const std::vector<int>& nodes) {
  return std::all_of(nodes.begin(), nodes.end(),
                     [&](int node) { return reports[node].has_value() && reports[node]->shard_size > 0; });
}

bool HasLeadersSpec(const ModelReports& reports, const ModelReport& report) {
  const std::optional<ModelReport>& leader = reports[0];
  return !leader.has_value() || leader->shard_size == 0 || leader->spec_fingerprint == report.spec_fingerprint;
}

bool HoldReplicas(const ModelReports& reports, int world_size) {
  return reports.size() > 1 && std::any_of(reports.begin(), reports.end(), [&](const auto& report) {
           return report.has_value() && HasLeadersSpec(reports, *report) && report->shard_size > 0 &&
                  report->shard_size != world_size;
         });
}

bool AreTooFewToTell(const ModelReports& reports, const std::vector<int>& active, int min_nodes) {
  if (!AreAllMade(reports, active)) return false;
  const std::vector<bool> without = WithoutState(reports, active);
  const auto has_state = [&](int node) { return !without[node]; };
  const int others = static_cast<int>(std::count_if(active.begin(), active.end(), has_state));
  return active.front() == 0 && without[0] &&
         !IsOneOfTheLastEpochAmong(others, static_cast<int>(reports.size()), min_nodes);
}

std::vector<Healing> PlanHealings(const ModelReports& reports, const std::vector<int>& active, int world_size,
                                  int min_nodes, const ReplacedHistories& replaced) {
  if (!AreAllMade(reports, active) || !HoldReplicas(reports, world_size)) return {};
  const std::vector<bool> without = WithoutState(reports, active);
  const ModelReport* const newest = Newest(reports, active, without, min_nodes, replaced);
  if (newest == nullptr) return {};
  const bool may_be_fewer = min_nodes < static_cast<int>(reports.size());
  std::vector<int> whole, receivers;
  for (const int node : active) {
    const ModelReport& report = *reports[node];
    if (report.spec_fingerprint != newest->spec_fingerprint) return {};
    const bool is_old = may_be_fewer && IsBehind(report, *newest, replaced);
    // If states differ otherwise, a person has to say which one counts.
    if (!without[node] && !is_old && !IsOneState(*newest, report)) return {};
    (without[node] || is_old ? receivers : whole).push_back(node);
  }
  std::vector<Healing> healings;
  for (const int receiver : receivers) {
    const std::optional<int> donor = DonorOf(receiver, reports, whole, may_be_fewer);
    if (!donor.has_value()) return {};
    Healing healing{.receiver = receiver, .donor = *donor};
    const ModelReport& report = *reports[receiver];
    // The receiver does not know of the restore.
    const bool gives_way = !without[receiver] && replaced.GivesWay(report.history_id, newest->history_id);
    if (gives_way) healing.gives_up = GivenUpOf(report);
    healings.push_back(std::move(healing));
  }
  return healings;
}

std::vector<Healing> PlanOrderedHealings(const ModelReports& reports, const std::vector<int>& active, int world_size,
                                         int right, absl::FunctionRef<bool(int node)> may_give_up) {
  if (!AreAllMade(reports, active) || !HoldReplicas(reports, world_size)) return {};
  std::vector<int> whole, receivers;
  for (const int node : active) {
    const ModelReport& report = *reports[node];
    if (report.spec_fingerprint != reports[right]->spec_fingerprint) return {};
    const bool is_whole = report.lost.ok() && IsOneState(*reports[right], report);
    if (!is_whole && !may_give_up(node) && !IsBehind(report, *reports[right])) return {};
    (is_whole ? whole : receivers).push_back(node);
  }
  std::vector<Healing> healings;
  for (const int receiver : receivers) {
    const ModelReport& report = *reports[receiver];
    Healing healing{.receiver = receiver, .donor = KeeperOf(receiver, reports, whole).value_or(right)};
    if (report.lost.ok()) healing.gives_up = GivenUpOf(report);
    healings.push_back(std::move(healing));
  }
  return healings;
}

}  // namespace paramshard::server
