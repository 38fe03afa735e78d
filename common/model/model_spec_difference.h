// Comparison of two checked specs.
#ifndef PARAMSHARD_COMMON_MODEL_MODEL_SPEC_DIFFERENCE_H_
#define PARAMSHARD_COMMON_MODEL_MODEL_SPEC_DIFFERENCE_H_

#include <cstdint>
#include <string>

#include "common/model/model_spec.h"

namespace paramshard {

// Returns XXH3-64 of CanonicalBytes().
uint64_t ModelSpecFingerprint(const ModelSpec& spec);
// Returns the deterministic serialization of the spec's message (ModelSpecToProto).
std::string CanonicalBytes(const ModelSpec& spec);
// Returns the spec without initial values and their seed, which do not matter for a model that has been trained.
ModelSpec WithoutInitialValues(ModelSpec spec);

// Returns the first difference of two specs of one name as text; empty if they are equal:
// "parameter blocks.0.w1: want shape [4, 4], got [4, 8]".
std::string FirstDifference(const ModelSpec& expected, const ModelSpec& got);

}  // namespace paramshard

#endif  // PARAMSHARD_COMMON_MODEL_MODEL_SPEC_DIFFERENCE_H_
