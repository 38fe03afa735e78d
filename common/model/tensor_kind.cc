#include "common/model/tensor_kind.h"

namespace paramshard {

absl::string_view TensorTypeName(TensorType type) {
  switch (type) {
    case TensorType::kFP32:
      return "FP32";
    case TensorType::kBF16:
      return "BF16";
    case TensorType::kFP16:
      return "FP16";
    case TensorType::kFP8E4M3:
      return "FP8_E4M3";
    case TensorType::kInt16:
      return "INT16";
  }
  return "unknown";
}

int64_t ElementBytes(TensorType type) {
  switch (type) {
    case TensorType::kFP32:
      return 4;
    case TensorType::kBF16:
    case TensorType::kFP16:
    case TensorType::kInt16:
      return 2;
    case TensorType::kFP8E4M3:
      return 1;
  }
  return 0;
}

}  // namespace paramshard
