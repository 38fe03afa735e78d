#include "proto/model/state_tensor.h"

#include <array>

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

std::optional<StateArray> StateArrayOf(TensorKind kind) {
  switch (kind) {
    case TensorKind::kMaster:
      return StateArray{StateTensor::kMaster, TensorForm::kValues};
    case TensorKind::kExpAvg:
      return StateArray{StateTensor::kExpAvg, TensorForm::kValues};
    case TensorKind::kExpAvgSq:
      return StateArray{StateTensor::kExpAvgSq, TensorForm::kValues};
    case TensorKind::kMasterElements:
      return StateArray{StateTensor::kMaster, TensorForm::kElements};
    case TensorKind::kMasterRemainders:
      return StateArray{StateTensor::kMaster, TensorForm::kRest};
    case TensorKind::kExpAvgElements:
      return StateArray{StateTensor::kExpAvg, TensorForm::kElements};
    case TensorKind::kExpAvgScales:
      return StateArray{StateTensor::kExpAvg, TensorForm::kRest};
    case TensorKind::kExpAvgSqElements:
      return StateArray{StateTensor::kExpAvgSq, TensorForm::kElements};
    case TensorKind::kExpAvgSqScales:
      return StateArray{StateTensor::kExpAvgSq, TensorForm::kRest};
  }
  return std::nullopt;
}

absl::string_view TensorName(StateTensor tensor, TensorForm form) {
  static constexpr std::array<std::array<absl::string_view, 3>, kStateTensorCount> kNames = {
      {{"master", "master elements", "master remainders"},
       {"exp_avg", "exp_avg elements", "exp_avg scales"},
       {"exp_avg_sq", "exp_avg_sq elements", "exp_avg_sq scales"}}};
  return kNames[static_cast<int>(tensor)][static_cast<int>(form)];
}

TensorRow RowOf(const ParameterSpec& spec, StateTensor tensor, TensorForm form) {
  if (tensor != StateTensor::kMaster && !spec.trainable) return {TensorType::kFP32, 0};
  if (form == TensorForm::kValues) return {TensorType::kFP32, spec.columns()};
  if (tensor == StateTensor::kMaster) return MasterRow(spec, form);
  const MomentType type = *(tensor == StateTensor::kExpAvg ? spec.exp_avg_type : spec.exp_avg_sq_type);
  if (form == TensorForm::kElements) return {ElementsOf(type), spec.columns()};
  return {TensorType::kFP32, MomentScaleCount(type, /*rows=*/1, spec.columns())};
}

void DecodeElements(TensorType type, const uint8_t* elements, int64_t count, float* values) {
  DecodePlane({FormatOf(type)}, Plane::kRowWise, {elements}, 1, count, values);
}

}  // namespace paramshard
