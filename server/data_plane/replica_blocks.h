// Partition of a unit's partial sums over the daemons that hold replicas.
#ifndef PARAMSHARD_SERVER_DATA_PLANE_REPLICA_BLOCKS_H_
#define PARAMSHARD_SERVER_DATA_PLANE_REPLICA_BLOCKS_H_

#include <algorithm>
#include <cstdint>

namespace paramshard::server {

// Each daemon owns one block of the rank's elements, in node order: it receives the block from all others and sums it.
// Blocks are equal except the last ones, which may be shorter or empty. They begin at cache lines if that makes the
// largest block at most a twentieth larger. A value.
class ReplicaBlocks {
 public:
  // Floats of a cache line.
  static constexpr int64_t kAlignment = 16;

  // Requires nodes >= 1.
  constexpr ReplicaBlocks(int64_t elements, int nodes) : elements_(elements), block_((elements + nodes - 1) / nodes) {
    const int64_t aligned = (block_ + kAlignment - 1) / kAlignment * kAlignment;
    if ((aligned - block_) * 20 <= block_) block_ = aligned;
  }

  // Size of the largest block.
  constexpr int64_t block_elements() const { return block_; }
  constexpr int64_t begin(int node) const { return std::min(node * block_, elements_); }
  constexpr int64_t size(int node) const { return begin(node + 1) - begin(node); }

 private:
  int64_t elements_;
  int64_t block_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_DATA_PLANE_REPLICA_BLOCKS_H_
