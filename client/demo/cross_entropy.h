// Softmax and cross-entropy: the loss of a classifier.
#ifndef PARAMSHARD_CLIENT_DEMO_CROSS_ENTROPY_H_
#define PARAMSHARD_CLIENT_DEMO_CROSS_ENTROPY_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace paramshard::demo {

// Score of some predictions.
struct Score {
  double loss = 0;      // the sum of their cross-entropies, in nats
  int64_t correct = 0;  // predictions whose largest logit is the label's
  int64_t count = 0;
};

// Scores labels.size() rows of `logits`, and sets `gradient` to the gradient of `scale` times the loss by the logits.
Score CrossEntropy(absl::Span<const float> logits, absl::Span<const int> labels, float scale,
                   std::vector<float>& gradient);

}  // namespace paramshard::demo

#endif  // PARAMSHARD_CLIENT_DEMO_CROSS_ENTROPY_H_
