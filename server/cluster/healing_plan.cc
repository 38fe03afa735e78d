#include "server/cluster/healing_plan.h"

#include <algorithm>

namespace paramshard::server {
namespace {

// Whose state nobody would train on from, by node. Values that were imported at commit 0, as programs do that begin,
// are nothing beside a state that has been trained; but what was imported at node 0 stays for a person to judge.
std::vector<bool> WithoutState(const ModelReports& reports) {
  const bool is_trained = std::any_of(reports.begin(), reports.end(), [](const auto& report) {
    return report->lost.ok() && report->commit_number > 0;
  });
  std::vector<bool> without;
  for (const auto& report : reports) {
    const bool begins = report->untouched && report->commit_number == 0 && !without.empty();
    without.push_back(!report->lost.ok() || report->fresh || (is_trained && begins));
  }
  return without;
}

}  // namespace

bool BeganAlike(const ModelReport& a, const ModelReport& b) {
  return a.lineage == b.lineage && a.untouched && b.untouched;
}

bool IsOneState(const ModelReport& a, const ModelReport& b) {
  return a.commit_number == b.commit_number && a.version == b.version &&
         (a.history_id == b.history_id || BeganAlike(a, b));
}

bool AreAllMade(const ModelReports& reports) {
  return std::all_of(reports.begin(), reports.end(),
                     [](const auto& report) { return report.has_value() && report->shard_size > 0; });
}

bool HoldReplicas(const ModelReports& reports, int world_size) {
  return reports.size() > 1 && std::any_of(reports.begin(), reports.end(), [world_size](const auto& report) {
           return report.has_value() && report->shard_size > 0 && report->shard_size != world_size;
         });
}

std::vector<Healing> PlanHealings(const ModelReports& reports, int world_size) {
  if (!AreAllMade(reports) || !HoldReplicas(reports, world_size)) return {};
  const std::vector<bool> without = WithoutState(reports);
  const int nodes = static_cast<int>(reports.size());
  const ModelReport* whole = nullptr;
  std::vector<Healing> healings;
  for (int node = 0; node < nodes; ++node) {
    const ModelReport& report = *reports[node];
    if (report.spec_fingerprint != reports[0]->spec_fingerprint) return {};
    if (without[node]) {
      healings.push_back({.receiver = node, .donor = (node + 1) % nodes});
      continue;
    }
    // Where those who have a state differ among themselves a person is to say which of them counts.
    if (whole != nullptr && !IsOneState(*whole, report)) return {};
    whole = &report;
  }
  for (const Healing& healing : healings) {
    if (without[healing.donor] || !reports[healing.donor]->keeps_previous) return {};
  }
  return healings;
}

}  // namespace paramshard::server
