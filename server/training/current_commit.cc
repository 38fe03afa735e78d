#include "server/training/current_commit.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "common/model/group_hyperparameters.h"

namespace paramshard::server {
namespace {

struct GradientScale {
  double norm = 0;
  float factor = 1;
};

GradientScale ScaleOf(float gradient_scale, std::optional<float> max_grad_norm, double square_sum, bool mean,
                      int ranks) {
  float inverse_scale = 1.0f / gradient_scale;
  if (mean) inverse_scale /= static_cast<float>(ranks);
  GradientScale scale;
  scale.norm = static_cast<double>(inverse_scale) * std::sqrt(square_sum);
  float clip = 1.0f;
  if (max_grad_norm.has_value()) {
    clip = static_cast<float>(std::min(1.0, static_cast<double>(*max_grad_norm) / (scale.norm + 1e-6)));
  }
  scale.factor = inverse_scale * clip;
  return scale;
}

StepParameters StepOf(const v1::Commit& commit, float gradient_scale) {
  StepParameters step{.groups = {}, .gradient_scale = gradient_scale};
  for (const v1::GroupHyperparameters& group : commit.groups()) {
    step.groups.push_back(HyperparametersFromProto(group));
  }
  return step;
}

}  // namespace

std::vector<RankSum> CurrentCommit::Sums(int first_rank) const {
  std::vector<RankSum> sums;
  for (size_t rank = 0; rank < sums_.size(); ++rank) {
    sums.push_back({.rank = first_rank + static_cast<int>(rank),
                    .square_sum = sums_[rank].sum,
                    .non_finite_count = sums_[rank].non_finite});
  }
  return sums;
}

float GradientScaleOf(const v1::Commit& commit) { return commit.has_gradient_scale() ? commit.gradient_scale() : 1.0f; }

Decided Decide(const v1::Commit& commit, const CommitDecision& decision, bool mean, int ranks) {
  const std::optional<float> max_grad_norm =
      commit.has_max_grad_norm() ? std::optional(commit.max_grad_norm()) : std::nullopt;
  const GradientScale scale = ScaleOf(GradientScaleOf(commit), max_grad_norm, decision.square_sum, mean, ranks);
  return {.apply = decision.apply,
          .save = commit.save(),
          .non_finite_count = decision.non_finite_count,
          .gradient_norm = scale.norm,
          .square_sum = decision.square_sum,
          .step = StepOf(commit, scale.factor),
          .reader_data = commit.reader_data()};
}

DecidedCommit Decide(const PreparedCommit& commit, const CommitDecision& decision, bool mean) {
  const GradientScale scale =
      ScaleOf(commit.gradient_scale, commit.max_grad_norm, decision.square_sum, mean, commit.ranks);
  return {.commit_number = commit.commit_number,
          .apply = decision.apply,
          .gradient_scale = scale.factor,
          .gradient_norm = scale.norm,
          .non_finite_count = decision.non_finite_count,
          .square_sum = decision.square_sum};
}

}  // namespace paramshard::server
