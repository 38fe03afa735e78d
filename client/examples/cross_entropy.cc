#include "client/examples/cross_entropy.h"

#include <algorithm>
#include <cmath>

namespace paramshard::examples {
namespace {

// -log softmax(logits)[label]; writes scale * (softmax - one-hot), its gradient.
double RowCrossEntropy(absl::Span<const float> logits, int label, float scale, absl::Span<float> gradient) {
  const float largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (float logit : logits) sum += std::exp(static_cast<double>(logit) - largest);
  for (size_t j = 0; j < logits.size(); ++j) {
    const double softmax = std::exp(static_cast<double>(logits[j]) - largest) / sum;
    gradient[j] = scale * static_cast<float>(softmax - (static_cast<int>(j) == label ? 1.0 : 0.0));
  }
  return std::log(sum) - (static_cast<double>(logits[label]) - largest);
}

}  // namespace

Score CrossEntropy(absl::Span<const float> logits, absl::Span<const int> labels, float scale,
                   std::vector<float>& gradient) {
  gradient.resize(logits.size());
  Score score{.count = static_cast<int64_t>(labels.size())};
  if (labels.empty()) return score;
  const size_t classes = logits.size() / labels.size();
  for (size_t i = 0; i < labels.size(); ++i) {
    const absl::Span<const float> row = logits.subspan(i * classes, classes);
    score.loss += RowCrossEntropy(row, labels[i], scale, absl::MakeSpan(gradient).subspan(i * classes, classes));
    if (std::max_element(row.begin(), row.end()) - row.begin() == labels[i]) ++score.correct;
  }
  return score;
}

}  // namespace paramshard::examples
