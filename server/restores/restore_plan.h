// Whether a checkpoint may go into a model, and how each of its tensors does.
#ifndef PARAMSHARD_SERVER_RESTORES_RESTORE_PLAN_H_
#define PARAMSHARD_SERVER_RESTORES_RESTORE_PLAN_H_

#include <vector>

#include "absl/status/statusor.h"
#include "proto/checkpoint/tensor_key.h"
#include "proto/model/model_spec.h"
#include "proto/model/name_index.h"
#include "proto/model/state_tensor.h"

namespace paramshard::server {

// Parameters are matched by name, whatever their order and their units. A checkpoint may differ from the model in
//
// - the world, the shard size, and what else decides where things lie and how much memory they take: units, slots,
//   small_parameter_bytes, gradient_sums, accumulator_type; the step timeout;
// - seed and initial values;
// - the encoding of planes. They follow from the master; without one they are made of what the saved row-wise plane
//   decodes to, and taken as they are where format, element and power_of_two_scales are the same;
// - the type of a master: FP32 or BF16 and remainder, exact both ways;
// - the types of moments, if that is asked for: they are decoded and encoded anew, which loses bits.
//
// All else is equal: names, shapes, whether a parameter is trainable and has a master, the type of its gradients, its
// group, the groups but for their names, and the reduction of gradients.
class RestorePlan {
 public:
  struct Options {
    bool convert_moments = false;
  };

  // How one parameter comes out of a checkpoint. Together the two lists are all of its state.
  struct Parameter {
    ParameterPlace saved;  // in the checkpoint's spec
    ParameterPlace place;  // in the model's
    // Their bytes are taken as they are.
    std::vector<checkpoint::ArrayKind> arrays = {};
    // They are decoded, and encoded as the model stores them. Without a master, kMaster stands for what planes decode
    // to, and are made of.
    std::vector<StateTensor> tensors = {};
    // Whose content hashes in the model are those in the checkpoint.
    std::vector<checkpoint::ArrayKind> hashed = {};
    // The entry of the scaling book goes on: the planes are, or become, those that were saved.
    bool keeps_scaling = false;
  };

  // INVALID_ARGUMENT naming the first difference: "parameter w: shape [4, 8] expected, got [8, 4]". Both specs are
  // checked ones.
  static absl::StatusOr<RestorePlan> Create(const ModelSpec& model, const ModelSpec& saved, const Options& options);

  // In the order of the model, all of it.
  const std::vector<Parameter>& parameters() const { return parameters_; }

 private:
  std::vector<Parameter> parameters_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_RESTORES_RESTORE_PLAN_H_
