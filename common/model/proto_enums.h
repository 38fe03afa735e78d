// Conversion between enumerations of messages and of the shared code. Their numbers are equal, which is asserted.
#ifndef PARAMSHARD_COMMON_MODEL_PROTO_ENUMS_H_
#define PARAMSHARD_COMMON_MODEL_PROTO_ENUMS_H_

#include <optional>

#include "common/model/phase.h"
#include "common/model/tensor_kind.h"
#include "paramshard/v1/trainer.pb.h"

namespace paramshard {

static_assert(static_cast<int>(Phase::kForward) == v1::PHASE_FORWARD);
static_assert(static_cast<int>(Phase::kBackward) == v1::PHASE_BACKWARD);
static_assert(static_cast<int>(Phase::kBoth) == v1::PHASE_BOTH);
static_assert(kPhases.size() == v1::Phase_MAX);
static_assert(static_cast<int>(TensorKind::kExpAvgSqScales) == v1::TENSOR_KIND_EXP_AVG_SQ_SCALES);
static_assert(static_cast<int>(TensorKind::kExpAvgSqScales) == v1::TensorKind_MAX);
static_assert(static_cast<int>(TensorType::kInt16) == v1::TENSOR_TYPE_INT16);
static_assert(static_cast<int>(TensorType::kInt16) == v1::TensorType_MAX);

inline v1::Phase PhaseToProto(Phase phase) { return static_cast<v1::Phase>(phase); }
inline v1::TensorKind TensorKindToProto(TensorKind kind) { return static_cast<v1::TensorKind>(kind); }
inline v1::TensorType TensorTypeToProto(TensorType type) { return static_cast<v1::TensorType>(type); }

// Return nullopt for an unknown or unspecified number, except that an unspecified TensorType is FP32.
inline std::optional<Phase> PhaseFromProto(int number) {
  if (number < 1 || number > v1::Phase_MAX) return std::nullopt;
  return static_cast<Phase>(number);
}
inline std::optional<TensorKind> TensorKindFromProto(int number) {
  if (number < 1 || number > v1::TensorKind_MAX) return std::nullopt;
  return static_cast<TensorKind>(number);
}
inline std::optional<TensorType> TensorTypeFromProto(int number) {
  if (number < 0 || number > v1::TensorType_MAX) return std::nullopt;
  return number == v1::TENSOR_TYPE_UNSPECIFIED ? TensorType::kFP32 : static_cast<TensorType>(number);
}

}  // namespace paramshard

#endif  // PARAMSHARD_COMMON_MODEL_PROTO_ENUMS_H_
