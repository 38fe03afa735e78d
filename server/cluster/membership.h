// The membership of a world: the nodes that are here, and the ranks that each of them serves.
#ifndef PARAMSHARD_SERVER_CLUSTER_MEMBERSHIP_H_
#define PARAMSHARD_SERVER_CLUSTER_MEMBERSHIP_H_

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/base/steady_time.h"

namespace paramshard::server {

// Ranks [begin, end) of the world.
struct RankRange {
  int begin = 0;
  int end = 0;

  bool Contains(int rank) const { return begin <= rank && rank < end; }
};

// Not thread-safe. Once every node has been here the device counts are fixed: a node that comes back must have as many.
class Membership {
 public:
  explicit Membership(int nodes);

  int nodes() const { return static_cast<int>(device_counts_.size()); }
  // 0 for a node whose count is not known.
  const std::vector<int>& device_counts() const { return device_counts_; }

  // INVALID_ARGUMENT a number or count that does not fit; ALREADY_EXISTS the node is here.
  absl::Status Join(int node, int device_count);
  void Leave(int node);
  // The node is as good as lost: it is here, and has to stay as one that was lost now.
  void CountLoss(int node);
  // What another coordinator of this world knew: then it is sized before all have been here. Requires a count above 0 of
  // every node.
  void SetDeviceCounts(const std::vector<int>& counts);

  bool present(int node) const { return present_[node]; }
  int present_count() const { return static_cast<int>(std::count(present_.begin(), present_.end(), true)); }
  // Every node is here.
  bool complete() const;
  // When the node came, or was lost, the last time; of one that never came, when this began.
  SteadyTime changed_at(int node) const { return changed_at_[node]; }
  // How often it was lost, since it last was here for kForgiven without a loss.
  static constexpr absl::Duration kForgiven = absl::Hours(1);
  int64_t losses(int node) const { return losses_[node]; }
  // Every node has been here, so that ranks are known.
  bool sized() const { return sized_; }

  // Requires sized().
  RankRange ranks(int node) const { return {first_ranks_[node], first_ranks_[node + 1]}; }
  int world_size() const { return first_ranks_.back(); }

 private:
  void AddLoss(int node);

  std::vector<int> device_counts_;
  std::vector<bool> present_;
  std::vector<SteadyTime> changed_at_;
  std::vector<int64_t> losses_;
  bool sized_ = false;
  std::vector<int> first_ranks_;  // by node, and the world's size behind; once it is sized
};

// "node 1 (ranks 2..3)", or "node 1" when the ranks are not known.
std::string NodeName(const Membership& members, int node);

// Says whether the count of every node is known.
bool IsSized(const std::vector<int>& device_counts);

// DEADLINE_EXCEEDED naming the nodes that have 0 in `device_counts`.
absl::Status MissingNodesError(const std::vector<int>& device_counts, absl::Duration timeout);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_CLUSTER_MEMBERSHIP_H_
