// The public header's specs as protos, and back.
#ifndef PARAMSHARD_CLIENT_INTERNAL_SPEC_PROTO_H_
#define PARAMSHARD_CLIENT_INTERNAL_SPEC_PROTO_H_

#include <google/protobuf/duration.pb.h>

#include "absl/time/time.h"
#include "client/client.h"
#include "paramshard/v1/trainer.pb.h"

namespace paramshard::internal {

// Checks nothing: the daemon does, and names what is wrong.
v1::ModelSpec ToProto(const ModelSpec& spec);

// The spec of a model as the daemon says it: without rules, every default written out.
ModelSpec FromProto(const v1::ModelSpec& proto);

// Gives the encoding of a parameter in such a spec.
Encoding ToEncoding(const EncodingSpec& spec);

}  // namespace paramshard::internal

#endif  // PARAMSHARD_CLIENT_INTERNAL_SPEC_PROTO_H_
