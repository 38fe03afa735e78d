// Whether two checked specs are the same, and where they differ.
#ifndef PARAMSHARD_PROTO_MODEL_MODEL_SPEC_DIFFERENCE_H_
#define PARAMSHARD_PROTO_MODEL_MODEL_SPEC_DIFFERENCE_H_

#include <cstdint>
#include <string>

#include "proto/model/model_spec.h"

namespace paramshard {

// XXH3-64 of the deterministic serialization of the spec's message (ModelSpecToProto).
uint64_t ModelSpecFingerprint(const ModelSpec& spec);
// That serialization.
std::string CanonicalBytes(const ModelSpec& spec);
// The spec without initial values and their seed, which say nothing of a model whose values are others by now.
ModelSpec WithoutInitialValues(ModelSpec spec);

// Says where two specs of one name first differ, for people; empty when they are equal:
// "parameter blocks.0.w1: shape [4, 4] expected, got [4, 8]".
std::string FirstDifference(const ModelSpec& expected, const ModelSpec& got);

}  // namespace paramshard

#endif  // PARAMSHARD_PROTO_MODEL_MODEL_SPEC_DIFFERENCE_H_
