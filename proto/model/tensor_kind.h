// What an import or an export carries, and the types of its elements.
#ifndef PARAMSHARD_PROTO_MODEL_TENSOR_KIND_H_
#define PARAMSHARD_PROTO_MODEL_TENSOR_KIND_H_

#include <cstdint>

#include "absl/strings/string_view.h"

namespace paramshard {

// What an import or an export carries: decoded values, or the bytes as they are stored. The numbers are sent.
enum class TensorKind : uint8_t {
  kMaster = 1,
  kExpAvg = 2,
  kExpAvgSq = 3,
  kMasterElements = 4,  // of a master with a remainder: its upper halves
  kMasterRemainders = 5,
  kExpAvgElements = 6,
  kExpAvgScales = 7,
  kExpAvgSqElements = 8,
  kExpAvgSqScales = 9,
};

// A state bit for bit: what an export of these brings, an import brings back. What a parameter does not store is left
// out for it: of a frozen one without a master that is all, and kMaster brings what its planes decode to.
inline constexpr TensorKind kStoredState[] = {TensorKind::kMasterElements,   TensorKind::kMasterRemainders,
                                              TensorKind::kExpAvgElements,   TensorKind::kExpAvgScales,
                                              TensorKind::kExpAvgSqElements, TensorKind::kExpAvgSqScales};

// The elements of a tensor. Values are imported as FP32, BF16 or FP16 and exported as FP32; stored elements have the
// type in which they are stored. Quantized planes are no source of a tensor. The numbers are sent.
enum class TensorType : uint8_t { kFP32 = 1, kBF16 = 2, kFP16 = 3, kFP8E4M3 = 4, kInt16 = 5 };

// "FP32", ...; "unknown" for a number that was cast to the type and is none.
absl::string_view TensorTypeName(TensorType type);

// 0 for a number that is no type.
int64_t ElementBytes(TensorType type);

}  // namespace paramshard

#endif  // PARAMSHARD_PROTO_MODEL_TENSOR_KIND_H_
