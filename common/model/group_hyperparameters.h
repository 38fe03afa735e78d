// The hyper-parameters of a group as a commit carries them.
#ifndef PARAMSHARD_COMMON_MODEL_GROUP_HYPERPARAMETERS_H_
#define PARAMSHARD_COMMON_MODEL_GROUP_HYPERPARAMETERS_H_

#include "absl/status/status.h"
#include "kernels/optim/hyperparameters.h"
#include "paramshard/v1/trainer.pb.h"

namespace paramshard {

v1::GroupHyperparameters HyperparametersToProto(const Hyperparameters& values);
Hyperparameters HyperparametersFromProto(const v1::GroupHyperparameters& proto);

// Checks the ranges; called by both trainer and daemon. INVALID_ARGUMENT naming the group and the first number that is
// out of range.
absl::Status CheckHyperparameters(int group, const Hyperparameters& values);

}  // namespace paramshard

#endif  // PARAMSHARD_COMMON_MODEL_GROUP_HYPERPARAMETERS_H_
