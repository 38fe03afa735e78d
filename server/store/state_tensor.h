// The tensors of a parameter's state, and how their elements travel in and out.
#ifndef PARAMSHARD_SERVER_STORE_STATE_TENSOR_H_
#define PARAMSHARD_SERVER_STORE_STATE_TENSOR_H_

#include <cstdint>

#include "absl/strings/string_view.h"
#include "server/layout/model_spec.h"

namespace paramshard::server {

// Which tensor of the optimizer's state.
enum class StateTensor : uint8_t { kMaster, kExpAvg, kExpAvgSq };
inline constexpr int kStateTensorCount = 3;

// How a tensor's rows are given: decoded, or one of the arrays in which they are stored.
enum class TensorForm : uint8_t {
  kValues,    // decoded to fp32
  kElements,  // the stored elements; the upper halves of a master with a remainder
  kRest,      // what is stored beside them: the remainders of a master, the scales of a moment
};

enum class TensorType : uint8_t { kFP32 = 1, kBF16 = 2, kFP16 = 3, kFP8E4M3 = 4, kInt16 = 5 };

absl::string_view TensorTypeName(TensorType type);
int64_t ElementBytes(TensorType type);

// "master", "exp_avg elements", "exp_avg_sq scales", ...
absl::string_view TensorName(StateTensor tensor, TensorForm form);

// One row of a tensor in a form.
struct TensorRow {
  TensorType type = TensorType::kFP32;
  int64_t elements = 0;  // 0: nothing is stored beside the elements of this tensor

  int64_t size_bytes() const { return elements * ElementBytes(type); }
};

TensorRow RowOf(const ParameterSpec& spec, StateTensor tensor, TensorForm form);

// `count` elements of FP32, BF16 or FP16, at any alignment.
void DecodeElements(TensorType type, const uint8_t* elements, int64_t count, float* values);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_STORE_STATE_TENSOR_H_
