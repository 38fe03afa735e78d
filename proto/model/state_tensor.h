// The tensors of a parameter's state, and how their elements travel in and out.
#ifndef PARAMSHARD_PROTO_MODEL_STATE_TENSOR_H_
#define PARAMSHARD_PROTO_MODEL_STATE_TENSOR_H_

#include <cstdint>
#include <iterator>
#include <optional>
#include <string>

#include "kernels/optim/moment_kind.h"
#include "proto/model/model_spec.h"
#include "proto/model/tensor_kind.h"

namespace paramshard {

// Which tensor of the optimizer's state: the master, then each moment.
enum class StateTensor : uint8_t { kMaster, kExpAvg, kExpAvgSq };
inline constexpr StateTensor kStateTensors[] = {StateTensor::kMaster, StateTensor::kExpAvg, StateTensor::kExpAvgSq};

// The tensor that is a moment, and back; null for the master.
constexpr StateTensor TensorOf(MomentKind kind) { return kStateTensors[1 + static_cast<int>(kind)]; }
constexpr std::optional<MomentKind> MomentOf(StateTensor tensor) {
  if (tensor == StateTensor::kMaster) return std::nullopt;
  return kMomentKinds[static_cast<int>(tensor) - 1].kind;
}
static_assert(std::size(kStateTensors) == 1 + kMomentCount, "a moment that is no tensor");

// How a tensor's rows are given: decoded, or one of the arrays in which they are stored.
enum class TensorForm : uint8_t {
  kValues,    // decoded to fp32
  kElements,  // the stored elements; the upper halves of a master with a remainder
  kRest,      // what is stored beside them: the remainders of a master, the scales of a moment
};

// What a stream of tensors carries, as one of these. Null for a number that is no kind.
struct StateArray {
  StateTensor tensor = StateTensor::kMaster;
  TensorForm form = TensorForm::kValues;
};
std::optional<StateArray> StateArrayOf(TensorKind kind);

// "master", "exp_avg elements", "exp_avg_sq scales", ...
std::string TensorName(StateTensor tensor, TensorForm form);

// One row of a tensor in a form.
struct TensorRow {
  TensorType type = TensorType::kFP32;
  int64_t elements = 0;  // 0: the parameter has no such thing

  int64_t size_bytes() const { return elements * ElementBytes(type); }
};

// Of a parameter of a checked spec. A frozen one has no moments; without a master, nothing of it is stored in these
// forms, but it has values of a master: what its planes decode to.
TensorRow RowOf(const ParameterSpec& spec, StateTensor tensor, TensorForm form);

// `count` elements of FP32, BF16 or FP16, at any alignment.
void DecodeElements(TensorType type, const uint8_t* elements, int64_t count, float* values);

}  // namespace paramshard

#endif  // PARAMSHARD_PROTO_MODEL_STATE_TENSOR_H_
