#include "common/model/state_tensor.h"

#include "common/model/proto_enums.h"
#include "kernels/base/check.h"
#include "kernels/formats/codec.h"
#include "kernels/optim/moment.h"

namespace paramshard {
namespace {

TensorType ElementsOf(MomentType type) {
  switch (type) {
    case MomentType::kFP32:
      return TensorType::kFP32;
    case MomentType::kBF16:
      return TensorType::kBF16;
    case MomentType::kFP16:
      return TensorType::kFP16;
    case MomentType::kFP8:
      return TensorType::kFP8E4M3;
  }
  PARAMSHARD_CHECK(false);
  return TensorType::kFP32;
}

TensorRow MasterRow(const ParameterSpec& spec, TensorForm form) {
  if (!spec.master_type.has_value()) return {TensorType::kFP32, 0};
  const bool has_remainder = spec.master_type == MasterType::kBF16Remainder;
  if (form == TensorForm::kRest) return {TensorType::kInt16, has_remainder ? spec.columns() : 0};
  return {has_remainder ? TensorType::kBF16 : TensorType::kFP32, spec.columns()};
}

Format FormatOf(TensorType type) {
  switch (type) {
    case TensorType::kFP32:
      return Format::kFP32;
    case TensorType::kBF16:
      return Format::kBF16;
    case TensorType::kFP16:
      return Format::kFP16;
    case TensorType::kFP8E4M3:
    case TensorType::kInt16:
      break;
  }
  PARAMSHARD_CHECK(false);
  return Format::kFP32;
}

}  // namespace

// Every tensor has a kind for each form.
static_assert(v1::TensorKind_MAX == 3 * std::size(kStateTensors), "a tensor that imports and exports do not carry");
static_assert(std::size(kStoredState) == 2 * std::size(kStateTensors), "a tensor that is not in kStoredState");

std::optional<StateArray> StateArrayOf(TensorKind kind) {
  switch (kind) {
    case TensorKind::kMaster:
      return StateArray{StateTensor::kMaster, TensorForm::kValues};
    case TensorKind::kExpAvg:
      return StateArray{StateTensor::kFirstMoment, TensorForm::kValues};
    case TensorKind::kExpAvgSq:
      return StateArray{StateTensor::kSecondMoment, TensorForm::kValues};
    case TensorKind::kMasterElements:
      return StateArray{StateTensor::kMaster, TensorForm::kElements};
    case TensorKind::kMasterRemainders:
      return StateArray{StateTensor::kMaster, TensorForm::kRest};
    case TensorKind::kExpAvgElements:
      return StateArray{StateTensor::kFirstMoment, TensorForm::kElements};
    case TensorKind::kExpAvgScales:
      return StateArray{StateTensor::kFirstMoment, TensorForm::kRest};
    case TensorKind::kExpAvgSqElements:
      return StateArray{StateTensor::kSecondMoment, TensorForm::kElements};
    case TensorKind::kExpAvgSqScales:
      return StateArray{StateTensor::kSecondMoment, TensorForm::kRest};
  }
  return std::nullopt;
}

std::string TensorName(StateTensor tensor, TensorForm form) {
  const std::optional<MomentKind> moment = MomentOf(tensor);
  const std::string name = moment.has_value() ? TraitsOf(*moment).name : "master";
  switch (form) {
    case TensorForm::kValues:
      return name;
    case TensorForm::kElements:
      return name + " elements";
    case TensorForm::kRest:
      return name + (moment.has_value() ? " scales" : " remainders");
  }
  PARAMSHARD_CHECK(false);
  return name;
}

TensorRow RowOf(const ParameterSpec& spec, StateTensor tensor, TensorForm form) {
  const std::optional<MomentKind> moment = MomentOf(tensor);
  const std::optional<MomentType> type = moment.has_value() ? MomentTypeOf(spec, *moment) : std::nullopt;
  if (moment.has_value() && !type.has_value()) return {TensorType::kFP32, 0};
  if (form == TensorForm::kValues) return {TensorType::kFP32, spec.columns()};
  if (!moment.has_value()) return MasterRow(spec, form);
  if (form == TensorForm::kElements) return {ElementsOf(*type), spec.columns()};
  return {TensorType::kFP32, MomentScaleCount(*type, /*rows=*/1, spec.columns())};
}

void DecodeElements(TensorType type, const uint8_t* elements, int64_t count, float* values) {
  DecodePlane({FormatOf(type)}, Plane::kRowWise, {elements}, 1, count, values);
}

}  // namespace paramshard
