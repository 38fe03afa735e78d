// The tensors of a parameter's state, and the forms in which they are imported and exported.
#ifndef PARAMSHARD_COMMON_MODEL_STATE_TENSOR_H_
#define PARAMSHARD_COMMON_MODEL_STATE_TENSOR_H_

#include <cstdint>
#include <iterator>
#include <optional>
#include <string>

#include "common/model/model_spec.h"
#include "common/model/tensor_kind.h"
#include "kernels/optim/moment_kind.h"

namespace paramshard {

// A tensor of the optimizer's state: the master, then each moment.
enum class StateTensor : uint8_t { kMaster, kFirstMoment, kSecondMoment };
inline constexpr StateTensor kStateTensors[] = {StateTensor::kMaster, StateTensor::kFirstMoment,
                                                StateTensor::kSecondMoment};

// Convert between a moment and its tensor; nullopt for the master.
constexpr StateTensor TensorOf(MomentKind kind) { return kStateTensors[1 + static_cast<int>(kind)]; }
constexpr std::optional<MomentKind> MomentOf(StateTensor tensor) {
  if (tensor == StateTensor::kMaster) return std::nullopt;
  return kMomentKinds[static_cast<int>(tensor) - 1].kind;
}
static_assert(std::size(kStateTensors) == 1 + kMomentCount, "every moment needs a StateTensor");

// Form of a tensor's rows: decoded, or one of the stored arrays.
enum class TensorForm : uint8_t {
  kValues,    // decoded to fp32
  kElements,  // the stored elements; the upper halves of a master with a remainder
  kRest,      // stored beside the elements: the remainders of a master, the scales of a moment
};

// Returns the tensor and form of a TensorKind; nullopt for a number that is not a kind.
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
  int64_t elements = 0;  // 0: the parameter does not have it

  int64_t size_bytes() const { return elements * ElementBytes(type); }
};

// Returns the row of a tensor of a parameter of a checked spec. A frozen parameter has no moments. Without a master it
// stores nothing in these forms, but kMaster has values: its decoded planes.
TensorRow RowOf(const ParameterSpec& spec, StateTensor tensor, TensorForm form);

// Decodes `count` elements of FP32, BF16 or FP16, at any alignment.
void DecodeElements(TensorType type, const uint8_t* elements, int64_t count, float* values);

}  // namespace paramshard

#endif  // PARAMSHARD_COMMON_MODEL_STATE_TENSOR_H_
