#include "server/world/membership.h"

#include <algorithm>
#include <iterator>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/model/limits.h"

namespace paramshard::server {

Membership::Membership(int nodes)
    : device_counts_(nodes), present_(nodes), changed_at_(nodes, SteadyNow()), losses_(nodes) {}

void Membership::SetDeviceCounts(const std::vector<int>& counts) {
  device_counts_ = counts;
  sized_ = true;
  first_ranks_.assign(1, 0);
  std::partial_sum(device_counts_.begin(), device_counts_.end(), std::back_inserter(first_ranks_));
}

absl::Status Membership::Join(int node, int device_count) {
  if (node < 0 || node >= nodes()) {
    return absl::InvalidArgumentError(absl::StrCat("join node ", node, ": want a node number in 0..", nodes() - 1));
  }
  if (device_count < 1 || device_count > kMaxShardSize) {
    return absl::InvalidArgumentError(
        absl::StrCat("join node ", node, ": want 1 to ", kMaxShardSize, " devices, got ", device_count));
  }
  if (present_[node]) {
    return absl::AlreadyExistsError(
        absl::StrCat("join node ", node, ": a live daemon has this node number; give each daemon a --node of its own"));
  }
  if (sized_ && device_counts_[node] != device_count) {
    return absl::InvalidArgumentError(absl::StrCat(
        "join node ", node, ": want ", device_counts_[node], " --device as before, got ", device_count,
        "; give it those, or start all daemons of the world again, node 0 with an empty --state-dir if it has one"));
  }
  device_counts_[node] = device_count;
  present_[node] = true;
  changed_at_[node] = SteadyNow();
  if (!sized_ && complete()) SetDeviceCounts(std::vector<int>(device_counts_));
  return absl::OkStatus();
}

void Membership::Leave(int node) {
  AddLoss(node);
  present_[node] = false;
  if (!sized_) device_counts_[node] = 0;
}

void Membership::CountLoss(int node) { AddLoss(node); }

void Membership::AddLoss(int node) {
  const SteadyTime now = SteadyNow();
  if (absl::FromChrono(now - changed_at_[node]) >= kForgiven) losses_[node] = 0;
  changed_at_[node] = now;
  ++losses_[node];
}

bool Membership::complete() const { return std::find(present_.begin(), present_.end(), false) == present_.end(); }

bool Has(const Nodes& nodes, int node) { return std::binary_search(nodes.begin(), nodes.end(), node); }

std::string NodeName(const Membership& members, int node) {
  if (!members.sized()) return absl::StrCat("node ", node);
  const RankRange ranks = members.ranks(node);
  if (ranks.end - ranks.begin == 1) return absl::StrCat("node ", node, " (rank ", ranks.begin, ")");
  return absl::StrCat("node ", node, " (ranks ", ranks.begin, "..", ranks.end - 1, ")");
}

bool IsSized(const std::vector<int>& device_counts) {
  return !device_counts.empty() && std::find(device_counts.begin(), device_counts.end(), 0) == device_counts.end();
}

absl::Status MissingNodesError(const std::vector<int>& device_counts, absl::Duration timeout) {
  std::vector<int> missing;
  for (size_t node = 0; node < device_counts.size(); ++node) {
    if (device_counts[node] == 0) missing.push_back(static_cast<int>(node));
  }
  return absl::DeadlineExceededError(absl::StrCat("join the world: timed out after ", absl::FormatDuration(timeout),
                                                  " waiting for ", device_counts.size(), " nodes, missing: node ",
                                                  absl::StrJoin(missing, ", node ")));
}

}  // namespace paramshard::server
