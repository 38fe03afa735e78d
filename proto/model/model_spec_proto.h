// Specs between messages and the code that both sides share: the one place that knows both.
#ifndef PARAMSHARD_PROTO_MODEL_MODEL_SPEC_PROTO_H_
#define PARAMSHARD_PROTO_MODEL_MODEL_SPEC_PROTO_H_

#include "absl/status/statusor.h"
#include "paramshard/v1/trainer.pb.h"
#include "proto/model/model_spec.h"

namespace paramshard {

// Checks every rule that the proto states, and that the sizes of any layout of the spec fit int64.
// INVALID_ARGUMENT names the parameter (or field), what was expected and what came: "create model
// m: parameter w: expected ..., got ...". Specs that mean the same come out equal: fields that a
// format does not read get their defaults, and rules have given every parameter its format.
absl::StatusOr<ModelSpec> ParseModelSpec(const v1::ModelSpec& proto);

// The message of a description or of a checked spec. Of a checked one it says every default, so that equal specs give
// equal bytes, and is the inverse of ParseModelSpec. shard_size, step_timeout and gradient_sums, whose defaults are the
// daemon's, stay unset where they are.
v1::ModelSpec ModelSpecToProto(const ModelSpec& spec);

}  // namespace paramshard

#endif  // PARAMSHARD_PROTO_MODEL_MODEL_SPEC_PROTO_H_
