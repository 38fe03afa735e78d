#include "server/state/shard_gradients.h"

#include <algorithm>

#include "kernels/base/status_macros.h"

namespace paramshard::server {

ShardGradients::PushTarget ShardGradients::BeginPush(int unit) const {
  const ShardExtents& extents = memory_.extents();
  const std::vector<int>& indices = extents.IndicesOf(unit);
  PushTarget target{.accumulators = std::vector<MutableGradient>(indices.size()),
                    .overwrite = std::make_unique<bool[]>(indices.size())};
  for (size_t parameter = 0; parameter < indices.size(); ++parameter) {
    const int index = indices[parameter];
    if (index < 0 || index >= extents.trainable_count()) continue;
    target.accumulators[parameter] = memory_.GradientOf(extents[index]);
    target.overwrite[parameter] = !has_gradient_[index];
  }
  return target;
}

void ShardGradients::EndPush(int unit, absl::Span<const int32_t> absent) {
  const ShardExtents& extents = memory_.extents();
  const std::vector<int>& indices = extents.IndicesOf(unit);
  for (int parameter = 0; parameter < static_cast<int>(indices.size()); ++parameter) {
    const int index = indices[parameter];
    if (index < 0 || index >= extents.trainable_count()) continue;
    if (!std::binary_search(absent.begin(), absent.end(), parameter)) has_gradient_[index] = true;
  }
}

absl::StatusOr<SquareSum> ShardGradients::SumSquares(absl::Span<const SumTask> left) const {
  ASSIGN_OR_RETURN(const std::vector<SquareSum> sums, arithmetic_.SumSquares(has_gradient_, left));
  SquareSum total;
  for (const SquareSum& sum : sums) {
    total.sum += sum.sum;
    total.non_finite += sum.non_finite;
  }
  return total;
}

void ShardGradients::Mark(std::vector<bool>& has_gradient) const {
  const ShardExtents& extents = memory_.extents();
  for (int i = 0; i < extents.trainable_count(); ++i) {
    if (has_gradient_[i]) has_gradient[extents.PlaceOf(extents[i])] = true;
  }
}

void ShardGradients::Adopt(const std::vector<bool>& has_gradient) {
  const ShardExtents& extents = memory_.extents();
  for (int i = 0; i < extents.trainable_count(); ++i) has_gradient_[i] = has_gradient[extents.PlaceOf(extents[i])];
}

}  // namespace paramshard::server
