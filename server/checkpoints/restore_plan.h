// Plan of a restore: how each tensor of a checkpoint goes into a model, if the checkpoint fits.
#ifndef PARAMSHARD_SERVER_CHECKPOINTS_RESTORE_PLAN_H_
#define PARAMSHARD_SERVER_CHECKPOINTS_RESTORE_PLAN_H_

#include <vector>

#include "absl/status/statusor.h"
#include "common/checkpoint/tensor_key.h"
#include "common/model/model_spec.h"
#include "common/model/name_index.h"
#include "common/model/state_tensor.h"

namespace paramshard::server {

// Parameters are matched by name, in any order and any units. A checkpoint may differ from the model in
//
// - the world, the shard size, and everything that decides about places and memory: units, slots,
//   small_parameter_bytes, gradient_sums, accumulator_type, pushes_per_step; the step timeout;
// - seed and initial values;
// - the encoding of planes. They follow from the master; without a master they are made of the decoded row-wise plane,
//   and copied if format, element and power_of_two_scales are the same;
// - the type of a master: FP32 or BF16 and remainder, exact both ways;
// - the types of moments, on request: they are decoded and encoded again, which loses bits.
//
// Everything else must be equal: names, shapes, whether a parameter is trainable and has a master, the type of its
// gradients, its group, the groups without their names, and the reduction of gradients.
class RestorePlan {
 public:
  struct Options {
    bool convert_moments = false;
  };

  // Plan of one parameter. Together the lists `arrays` and `tensors` are all of its state.
  struct Parameter {
    ParameterPlace saved;  // in the checkpoint's spec
    ParameterPlace place;  // in the model's
    // Arrays whose bytes are copied.
    std::vector<checkpoint::ArrayKind> arrays = {};
    // Tensors that are decoded, and encoded as the model stores them. Without a master, kMaster stands for the decoded
    // planes, which the new planes are made of.
    std::vector<StateTensor> tensors = {};
    // Arrays with the same content hashes in the model as in the checkpoint.
    std::vector<checkpoint::ArrayKind> hashed = {};
    // The entry of the scaling book is kept: the planes are, or become, the saved planes.
    bool keeps_scaling = false;
  };

  // INVALID_ARGUMENT naming the first difference: "parameter w: want shape [4, 8], got [8, 4]". Both specs have been
  // checked.
  static absl::StatusOr<RestorePlan> Create(const ModelSpec& model, const ModelSpec& saved, const Options& options);

  // All parameters, in the order of the model.
  const std::vector<Parameter>& parameters() const { return parameters_; }

 private:
  std::vector<Parameter> parameters_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_CHECKPOINTS_RESTORE_PLAN_H_
