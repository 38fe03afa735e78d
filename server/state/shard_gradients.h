// Gradients that a shard has accumulated since the last commit.
#ifndef PARAMSHARD_SERVER_STATE_SHARD_GRADIENTS_H_
#define PARAMSHARD_SERVER_STATE_SHARD_GRADIENTS_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/reduce/gradient.h"
#include "kernels/reduce/sum_of_squares.h"
#include "server/device/compute_device.h"
#include "server/state/shard_memory.h"

namespace paramshard::server {

// Belongs to the push thread of the rank: it alone calls this while an epoch runs, without the shard's mutex.
class ShardGradients {
 public:
  // Both outlive this. `trainable` is the arithmetic on the trainable extents.
  ShardGradients(const ShardMemory& memory, ShardArithmetic& trainable)
      : memory_(memory), arithmetic_(trainable), has_gradient_(memory.extents().trainable_count()) {}

  // Returns where a push of a unit adds: one entry for each parameter, null where the shard owns nothing or the
  // parameter is frozen. `overwrite` is true until a push since the last commit has had a gradient of the parameter.
  struct PushTarget {
    std::vector<MutableGradient> accumulators;
    std::unique_ptr<bool[]> overwrite;
  };
  PushTarget BeginPush(int unit) const;
  // The push is summed, or its sums are left to SumSquares. All parameters of the unit have a gradient now, but for
  // those that are `absent` on all ranks, ascending.
  void EndPush(int unit, absl::Span<const int32_t> absent);

  // Makes the sums of gradients that an engine has left (Collectives::TakeSums). Returns the sum of squares of all
  // accumulators with gradients: extents in parameter order, their sums added in double.
  absl::StatusOr<SquareSum> SumSquares(absl::Span<const SumTask> left) const;
  // Sets `has_gradient` at the parameter's place in the model. Adopt goes on with gradients that another process has
  // left in the accumulators.
  void Mark(std::vector<bool>& has_gradient) const;
  void Adopt(const std::vector<bool>& has_gradient);
  // Forgets the gradients since the last commit: the next push of a parameter overwrites them.
  void Drop() { has_gradient_.assign(has_gradient_.size(), false); }
  // Does the same, and returns which trainable extents had one.
  std::vector<bool> Take() { return std::exchange(has_gradient_, std::vector<bool>(has_gradient_.size())); }

 private:
  const ShardMemory& memory_;
  ShardArithmetic& arithmetic_;
  std::vector<bool> has_gradient_;  // by trainable extent
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_STATE_SHARD_GRADIENTS_H_
