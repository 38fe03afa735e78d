#include "client/internal/commit_command.h"

#include <cmath>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "kernels/base/status_macros.h"
#include "proto/model/limits.h"

namespace paramshard::internal {
namespace {

absl::Status Refused(absl::string_view what, absl::string_view expected, float got) {
  return absl::InvalidArgumentError(absl::StrCat("commit ", what, ": ", expected, " expected, got ", got));
}

absl::Status CheckGroup(const GroupHyperparameters& group, int index) {
  const auto name = [index](absl::string_view field) { return absl::StrCat("group ", index, " ", field); };
  const auto is_beta = [](float beta) { return beta >= 0.0f && beta < 1.0f; };
  const auto is_rate = [](float rate) { return std::isfinite(rate) && rate >= 0.0f; };
  constexpr absl::string_view kRate = "a finite number >= 0";
  if (!is_rate(group.learning_rate)) return Refused(name("learning_rate"), kRate, group.learning_rate);
  if (!is_beta(group.beta1)) return Refused(name("beta1"), "0 <= beta < 1", group.beta1);
  if (!is_beta(group.beta2)) return Refused(name("beta2"), "0 <= beta < 1", group.beta2);
  if (!is_rate(group.epsilon)) return Refused(name("epsilon"), kRate, group.epsilon);
  if (!is_rate(group.weight_decay)) return Refused(name("weight_decay"), kRate, group.weight_decay);
  return absl::OkStatus();
}

absl::Status CheckFactor(absl::string_view what, float factor) {
  if (std::isfinite(factor) && factor > 0.0f) return absl::OkStatus();
  return Refused(what, "a finite number > 0", factor);
}

absl::Status Check(const CommitOptions& options, int group_count) {
  if (!options.groups.empty() && static_cast<int>(options.groups.size()) != group_count) {
    return absl::InvalidArgumentError(
        absl::StrCat("commit groups: none or ", group_count, " expected, got ", options.groups.size()));
  }
  if (options.client_state.size() > kMaxClientStateBytes) {
    return absl::InvalidArgumentError(absl::StrCat("commit client_state: at most ", kMaxClientStateBytes,
                                                   " bytes expected, got ", options.client_state.size()));
  }
  if (options.max_grad_norm.has_value()) RETURN_IF_ERROR(CheckFactor("max_grad_norm", *options.max_grad_norm));
  return CheckFactor("gradient_scale", options.gradient_scale);
}

std::vector<GroupHyperparameters> Groups(const CommitOptions& options, int group_count) {
  if (!options.groups.empty()) return options.groups;
  return std::vector<GroupHyperparameters>(group_count, {.learning_rate = options.learning_rate,
                                                         .beta1 = options.beta1,
                                                         .beta2 = options.beta2,
                                                         .epsilon = options.epsilon,
                                                         .weight_decay = options.weight_decay});
}

void SetGroup(const GroupHyperparameters& group, v1::GroupHyperparameters* proto) {
  proto->set_learning_rate(group.learning_rate);
  proto->set_beta1(group.beta1);
  proto->set_beta2(group.beta2);
  proto->set_epsilon(group.epsilon);
  proto->set_weight_decay(group.weight_decay);
}

}  // namespace

absl::StatusOr<v1::Commit> MakeCommit(const CommitOptions& options, int group_count, int64_t commit_number) {
  RETURN_IF_ERROR(Check(options, group_count));
  v1::Commit commit;
  commit.set_commit_number(commit_number);
  const std::vector<GroupHyperparameters> groups = Groups(options, group_count);
  for (size_t i = 0; i < groups.size(); ++i) {
    RETURN_IF_ERROR(CheckGroup(groups[i], static_cast<int>(i)));
    SetGroup(groups[i], commit.add_groups());
  }
  if (options.max_grad_norm.has_value()) commit.set_max_grad_norm(*options.max_grad_norm);
  commit.set_gradient_scale(options.gradient_scale);
  commit.set_client_state(options.client_state);
  return commit;
}

}  // namespace paramshard::internal
