// The membership of a world: the nodes that are present, and the ranks that each of them serves.
#ifndef PARAMSHARD_SERVER_WORLD_MEMBERSHIP_H_
#define PARAMSHARD_SERVER_WORLD_MEMBERSHIP_H_

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

// Not thread-safe. Device counts are fixed once every node has joined: a node that comes back must have as many.
class Membership {
 public:
  explicit Membership(int nodes);

  int nodes() const { return static_cast<int>(device_counts_.size()); }
  // 0 for a node whose count is not known.
  const std::vector<int>& device_counts() const { return device_counts_; }

  // INVALID_ARGUMENT a number or count that does not fit; ALREADY_EXISTS the node is present.
  absl::Status Join(int node, int device_count);
  void Leave(int node);
  // Counts a loss of a node that is present, and restarts its probation.
  void CountLoss(int node);
  // Sets the counts that another coordinator of this world knew, so that the world is sized before all nodes have
  // joined. Requires a count above 0 for every node.
  void SetDeviceCounts(const std::vector<int>& counts);

  bool present(int node) const { return present_[node]; }
  // Returns true if every node is present.
  bool complete() const;
  // When the node last joined or was lost; for a node that never joined, when this object was made.
  SteadyTime changed_at(int node) const { return changed_at_[node]; }
  // Losses of the node since it was last present for kForgiven without a loss.
  static constexpr absl::Duration kForgiven = absl::Hours(1);
  int64_t losses(int node) const { return losses_[node]; }
  // True once every node has joined, so that ranks are known.
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
  std::vector<int> first_ranks_;  // by node, followed by the world's size; valid if sized_
};

using Nodes = std::vector<int>;  // ascending
bool Has(const Nodes& nodes, int node);

// Returns "node 1 (ranks 2..3)", or "node 1" if the ranks are not known.
std::string NodeName(const Membership& members, int node);

// Returns true if the count of every node is known.
bool IsSized(const std::vector<int>& device_counts);

// DEADLINE_EXCEEDED naming the nodes that have 0 in `device_counts`.
absl::Status MissingNodesError(const std::vector<int>& device_counts, absl::Duration timeout);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_WORLD_MEMBERSHIP_H_
