// Conversion between ModelSpec and its message. Only this file knows both.
#ifndef PARAMSHARD_COMMON_MODEL_MODEL_SPEC_PROTO_H_
#define PARAMSHARD_COMMON_MODEL_MODEL_SPEC_PROTO_H_

#include "absl/status/statusor.h"
#include "common/model/model_spec.h"
#include "paramshard/v1/trainer.pb.h"

namespace paramshard {

// Checks every rule that the proto states, and that the sizes of any layout of the spec fit int64.
// INVALID_ARGUMENT names the parameter or field: "create model m: parameter w: want ..., got ...".
// Specs with the same meaning become equal: fields that a format does not read get their defaults,
// and rules give every parameter its format.
absl::StatusOr<ModelSpec> ParseModelSpec(const v1::ModelSpec& proto);

// Returns the message of a description or of a checked spec. For a checked spec it is the inverse of ParseModelSpec and
// states every default, so equal specs give equal bytes. shard_size, step_timeout and gradient_sums, whose defaults are
// the daemon's, stay unset if they are unset.
v1::ModelSpec ModelSpecToProto(const ModelSpec& spec);

}  // namespace paramshard

#endif  // PARAMSHARD_COMMON_MODEL_MODEL_SPEC_PROTO_H_
