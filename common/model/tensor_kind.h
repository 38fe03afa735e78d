// Kinds of tensors in imports and exports, and the types of their elements.
#ifndef PARAMSHARD_COMMON_MODEL_TENSOR_KIND_H_
#define PARAMSHARD_COMMON_MODEL_TENSOR_KIND_H_

#include <cstdint>

#include "absl/strings/string_view.h"

namespace paramshard {

// Content of an import or an export: decoded values, or the bytes as they are stored. The numbers are sent.
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

// Kinds that together are a state bit for bit: an import of their export restores it. Kinds that a parameter does not
// store are left out. A frozen parameter without a master stores none of them; kMaster gives its decoded planes.
inline constexpr TensorKind kStoredState[] = {TensorKind::kMasterElements,   TensorKind::kMasterRemainders,
                                              TensorKind::kExpAvgElements,   TensorKind::kExpAvgScales,
                                              TensorKind::kExpAvgSqElements, TensorKind::kExpAvgSqScales};

// Type of a tensor's elements. Values are imported as FP32, BF16 or FP16 and exported as FP32; stored elements have the
// type in which they are stored. Quantized planes cannot be imported. The numbers are sent.
enum class TensorType : uint8_t { kFP32 = 1, kBF16 = 2, kFP16 = 3, kFP8E4M3 = 4, kInt16 = 5 };

// "FP32", ...; "unknown" for a number that was cast to the type and is not a type.
absl::string_view TensorTypeName(TensorType type);

// Returns 0 for a number that is not a type.
int64_t ElementBytes(TensorType type);

}  // namespace paramshard

#endif  // PARAMSHARD_COMMON_MODEL_TENSOR_KIND_H_
