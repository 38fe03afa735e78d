// The hyper-parameters of a group as a commit carries them.
#ifndef PARAMSHARD_PROTO_MODEL_GROUP_HYPERPARAMETERS_H_
#define PARAMSHARD_PROTO_MODEL_GROUP_HYPERPARAMETERS_H_

#include "absl/status/status.h"
#include "kernels/optim/hyperparameters.h"
#include "paramshard/v1/trainer.pb.h"

namespace paramshard {

v1::GroupHyperparameters HyperparametersToProto(const Hyperparameters& values);
Hyperparameters HyperparametersFromProto(const v1::GroupHyperparameters& proto);

// INVALID_ARGUMENT that names the group and the first number out of its range. Trainer and daemon check alike.
absl::Status CheckHyperparameters(int group, const Hyperparameters& values);

}  // namespace paramshard

#endif  // PARAMSHARD_PROTO_MODEL_GROUP_HYPERPARAMETERS_H_
