#include "client/demo/cross_entropy.h"

#include <algorithm>
#include <cmath>

namespace paramshard::demo {
namespace {

// -log softmax(logits)[label]; writes scale * (softmax - one-hot), its gradient.
double RowCrossEntropy(absl::Span<const float> logits, int label, float scale, absl::Span<float> gradient) {
  const float largest = *std::max_element(logits.begin(), logits.end());
  std::vector<double> weights(logits.size());
  double sum = 0;
  for (size_t j = 0; j < logits.size(); ++j) {
    weights[j] = std::exp(static_cast<double>(logits[j]) - largest);
    sum += weights[j];
  }
  for (size_t j = 0; j < logits.size(); ++j) {
    const double one_hot = static_cast<int>(j) == label ? 1.0 : 0.0;
    gradient[j] = scale * static_cast<float>(weights[j] / sum - one_hot);
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

}  // namespace paramshard::demo
