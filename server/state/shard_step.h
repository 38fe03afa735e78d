// One optimizer step of a shard's trainable extents.
#ifndef PARAMSHARD_SERVER_STATE_SHARD_STEP_H_
#define PARAMSHARD_SERVER_STATE_SHARD_STEP_H_

#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/optim/hyperparameters.h"
#include "kernels/optim/step_progress.h"
#include "server/state/extent_arithmetic.h"
#include "server/state/scaling_book.h"
#include "server/state/shard_extents.h"

namespace paramshard::server {

// Holds what a shard needs to apply one commit.
struct StepParameters {
  std::vector<Hyperparameters> groups;
  float gradient_scale = 1;  // k of docs/reference/numerics.md: unscaling, mean and clip in one factor
};

// Steps every trainable extent that has a gradient and encodes its planes: see Shard::Step. `arithmetic` is on the
// trainable extents, here and below.
absl::Status StepExtents(const ShardExtents& extents, const StepParameters& parameters,
                         const std::vector<bool>& has_gradient, const StepProgress& progress,
                         ExtentArithmetic& arithmetic, absl::Span<ExtentNumbers> numbers, ScalingBook& book);

// Encodes planes of extents whose amax was awaited, with what `book` says now.
absl::Status EncodeSteppedExtents(const ShardExtents& extents, const ScalingBook& book, ExtentArithmetic& arithmetic,
                                  absl::Span<ExtentNumbers> numbers);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_STATE_SHARD_STEP_H_
