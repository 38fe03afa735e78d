#include "client/internal/commit_command.h"

#include <cmath>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/model/group_hyperparameters.h"
#include "common/model/limits.h"
#include "kernels/base/status_macros.h"

namespace paramshard::internal {
namespace {

absl::Status Refused(absl::string_view what, absl::string_view expected, float got) {
  return absl::InvalidArgumentError(absl::StrCat("commit ", what, ": want ", expected, ", got ", got));
}

absl::Status CheckFactor(absl::string_view what, float factor) {
  if (std::isfinite(factor) && factor > 0.0f) return absl::OkStatus();
  return Refused(what, "a finite number > 0", factor);
}

absl::Status Check(const CommitOptions& options, int group_count) {
  if (!options.groups.empty() && static_cast<int>(options.groups.size()) != group_count) {
    return absl::InvalidArgumentError(
        absl::StrCat("commit groups: want none or ", group_count, ", got ", options.groups.size()));
  }
  if (options.client_state.size() > kMaxClientStateBytes) {
    return absl::InvalidArgumentError(absl::StrCat("commit client_state: want at most ", kMaxClientStateBytes,
                                                   " bytes, got ", options.client_state.size()));
  }
  if (options.reader_data.size() > kMaxReaderDataBytes) {
    return absl::InvalidArgumentError(absl::StrCat("commit reader_data: want at most ", kMaxReaderDataBytes,
                                                   " bytes, got ", options.reader_data.size()));
  }
  if (options.max_grad_norm.has_value()) RETURN_IF_ERROR(CheckFactor("max_grad_norm", *options.max_grad_norm));
  return CheckFactor("gradient_scale", options.gradient_scale);
}

static_assert(kHyperparameterCount == 7, "a hyper-parameter that CommitOptions lacks");

std::vector<Hyperparameters> Groups(const CommitOptions& options, int group_count) {
  if (!options.groups.empty()) return options.groups;
  return std::vector<Hyperparameters>(group_count, {.learning_rate = options.learning_rate,
                                                    .beta1 = options.beta1,
                                                    .beta2 = options.beta2,
                                                    .epsilon = options.epsilon,
                                                    .weight_decay = options.weight_decay,
                                                    .momentum = options.momentum,
                                                    .dampening = options.dampening});
}

}  // namespace

absl::StatusOr<v1::Commit> MakeCommit(const CommitOptions& options, int group_count, int64_t commit_number) {
  RETURN_IF_ERROR(Check(options, group_count));
  v1::Commit commit;
  commit.set_commit_number(commit_number);
  const std::vector<Hyperparameters> groups = Groups(options, group_count);
  for (size_t i = 0; i < groups.size(); ++i) {
    RETURN_IF_ERROR(CheckHyperparameters(static_cast<int>(i), groups[i]));
    *commit.add_groups() = HyperparametersToProto(groups[i]);
  }
  if (options.max_grad_norm.has_value()) commit.set_max_grad_norm(*options.max_grad_norm);
  commit.set_gradient_scale(options.gradient_scale);
  commit.set_client_state(options.client_state);
  commit.set_save(options.save);
  commit.set_reader_data(options.reader_data);
  return commit;
}

}  // namespace paramshard::internal
