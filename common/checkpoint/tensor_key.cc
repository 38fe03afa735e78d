#include "common/checkpoint/tensor_key.h"

#include "absl/strings/str_cat.h"
#include "kernels/base/check.h"
#include "kernels/formats/format.h"
#include "kernels/optim/moment.h"
#include "kernels/optim/optimizers.h"

namespace paramshard::checkpoint {
namespace {

using safetensors::Dtype;

Dtype DtypeOf(TensorType type) {
  switch (type) {
    case TensorType::kFP32:
      return Dtype::kF32;
    case TensorType::kBF16:
      return Dtype::kBF16;
    case TensorType::kFP16:
      return Dtype::kF16;
    case TensorType::kFP8E4M3:
      return Dtype::kF8E4M3;
    case TensorType::kInt16:
      return Dtype::kI16;
  }
  PARAMSHARD_CHECK(false);
  return Dtype::kF32;
}

// Returns the type of one element of a plane's data. Two elements of FP4 are a byte.
Dtype DataDtype(const Encoding& encoding) {
  const FormatTraits& traits = TraitsOf(encoding.format);
  if (traits.element_bits == 32) return Dtype::kF32;
  if (traits.element_bits == 16) return encoding.format == Format::kBF16 ? Dtype::kBF16 : Dtype::kF16;
  if (traits.element_bits == 4) return Dtype::kU8;
  return encoding.element == ElementType::kE5M2 ? Dtype::kF8E5M2 : Dtype::kF8E4M3;
}

Dtype ScaleDtype(Format format) {
  switch (TraitsOf(format).scale_type) {
    case ScaleType::kNone:
    case ScaleType::kFloat32:
      break;
    case ScaleType::kE8M0:
      return Dtype::kU8;  // as `paramshardctl convert` writes them: more readers know it
    case ScaleType::kE4M3:
      return Dtype::kF8E4M3;
  }
  return Dtype::kF32;
}

std::optional<ArrayShape> ShapeOfState(const ParameterSpec& spec, const StateForm& form) {
  const TensorRow row = RowOf(spec, form.tensor, form.form);
  if (row.elements == 0) return std::nullopt;
  return ArrayShape{.dtype = DtypeOf(row.type), .rows = spec.rows(), .columns = row.elements};
}

std::optional<ArrayShape> ShapeOfScales(const ParameterSpec& spec, Plane plane) {
  const Encoding encoding = EncodingOf(spec.encoding);
  const FormatTraits& traits = TraitsOf(encoding.format);
  const MatrixShape shape = ScaleShape(encoding, plane, spec.rows(), spec.columns());
  if (shape.rows == 0) return std::nullopt;
  const MatrixShape& block = plane == Plane::kRowWise ? traits.row_wise_block : traits.column_wise_block;
  return ArrayShape{
      .dtype = ScaleDtype(encoding.format), .rows = shape.rows, .columns = shape.cols, .rows_per_row = block.rows};
}

std::optional<ArrayShape> ShapeOfPlane(const ParameterSpec& spec, const PlaneForm& form) {
  const Encoding encoding = EncodingOf(spec.encoding);
  if (form.plane == Plane::kColumnWise && !HasColumnPlane(encoding.format)) return std::nullopt;
  if (form.piece == PlanePiece::kScales) return ShapeOfScales(spec, form.plane);
  if (form.piece == PlanePiece::kAmax) {
    if (AmaxBytes(encoding.format) == 0) return std::nullopt;
    return ArrayShape{.dtype = Dtype::kF32, .rows = 1, .columns = 1, .rows_per_row = kUnbounded};
  }
  const Dtype dtype = DataDtype(encoding);
  const int64_t row_bytes = DataBytes(encoding, 1, spec.columns());
  return ArrayShape{.dtype = dtype, .rows = spec.rows(), .columns = row_bytes * 8 / safetensors::DtypeBits(dtype)};
}

// Returns the name of a moment that the parameter has, as its optimizer calls it.
std::string MomentPrefix(const ParameterSpec& spec, MomentKind kind) {
  const bool has_roots = TraitsOf(kind).is_square && HasMomentScales(*MomentTypeOf(spec, kind));
  return absl::StrCat(MomentName(spec.optimizer, kind), has_roots ? "_root" : "");
}

std::string PrefixOf(const ParameterSpec& spec, ArrayKind kind) {
  switch (kind) {
    case ArrayKind::kMaster:
      return "master";
    case ArrayKind::kRemainder:
      return "remainder";
    case ArrayKind::kFirstMoment:
      return MomentPrefix(spec, MomentKind::kFirst);
    case ArrayKind::kFirstMomentScale:
      return MomentPrefix(spec, MomentKind::kFirst) + ".scale";
    case ArrayKind::kSecondMoment:
      return MomentPrefix(spec, MomentKind::kSecond);
    case ArrayKind::kSecondMomentScale:
      return MomentPrefix(spec, MomentKind::kSecond) + ".scale";
    case ArrayKind::kRowWisePlane:
      return "plane";
    case ArrayKind::kRowWiseScale:
      return "plane.scale";
    case ArrayKind::kAmax:
      return "plane.amax";
    case ArrayKind::kColumnWisePlane:
      return "column_plane";
    case ArrayKind::kColumnWiseScale:
      return "column_plane.scale";
  }
  PARAMSHARD_CHECK(false);
  return "";
}

}  // namespace

std::optional<StateForm> StateFormOf(ArrayKind kind) {
  switch (kind) {
    case ArrayKind::kMaster:
      return StateForm{StateTensor::kMaster, TensorForm::kElements};
    case ArrayKind::kRemainder:
      return StateForm{StateTensor::kMaster, TensorForm::kRest};
    case ArrayKind::kFirstMoment:
      return StateForm{StateTensor::kFirstMoment, TensorForm::kElements};
    case ArrayKind::kFirstMomentScale:
      return StateForm{StateTensor::kFirstMoment, TensorForm::kRest};
    case ArrayKind::kSecondMoment:
      return StateForm{StateTensor::kSecondMoment, TensorForm::kElements};
    case ArrayKind::kSecondMomentScale:
      return StateForm{StateTensor::kSecondMoment, TensorForm::kRest};
    case ArrayKind::kRowWisePlane:
    case ArrayKind::kRowWiseScale:
    case ArrayKind::kAmax:
    case ArrayKind::kColumnWisePlane:
    case ArrayKind::kColumnWiseScale:
      break;
  }
  return std::nullopt;
}

ArrayKind KindOf(StateTensor tensor, TensorForm form) {
  PARAMSHARD_CHECK(form != TensorForm::kValues);
  const bool rest = form == TensorForm::kRest;
  switch (tensor) {
    case StateTensor::kMaster:
      return rest ? ArrayKind::kRemainder : ArrayKind::kMaster;
    case StateTensor::kFirstMoment:
      return rest ? ArrayKind::kFirstMomentScale : ArrayKind::kFirstMoment;
    case StateTensor::kSecondMoment:
      break;
  }
  return rest ? ArrayKind::kSecondMomentScale : ArrayKind::kSecondMoment;
}

std::optional<PlaneForm> PlaneFormOf(ArrayKind kind) {
  switch (kind) {
    case ArrayKind::kRowWisePlane:
      return PlaneForm{Plane::kRowWise, PlanePiece::kData};
    case ArrayKind::kRowWiseScale:
      return PlaneForm{Plane::kRowWise, PlanePiece::kScales};
    case ArrayKind::kAmax:
      return PlaneForm{Plane::kRowWise, PlanePiece::kAmax};
    case ArrayKind::kColumnWisePlane:
      return PlaneForm{Plane::kColumnWise, PlanePiece::kData};
    case ArrayKind::kColumnWiseScale:
      return PlaneForm{Plane::kColumnWise, PlanePiece::kScales};
    case ArrayKind::kMaster:
    case ArrayKind::kRemainder:
    case ArrayKind::kFirstMoment:
    case ArrayKind::kFirstMomentScale:
    case ArrayKind::kSecondMoment:
    case ArrayKind::kSecondMomentScale:
      break;
  }
  return std::nullopt;
}

int64_t ArrayShape::row_bytes() const { return columns * safetensors::DtypeBits(dtype) / 8; }

RowRange ArrayShape::RowsOf(const RowRange& parameter_rows) const {
  if (parameter_rows.size() == 0) return {};
  if (rows_per_row == kUnbounded) return {.begin = 0, .end = parameter_rows.begin == 0 ? 1 : 0};
  return {.begin = parameter_rows.begin / rows_per_row, .end = (parameter_rows.end - 1) / rows_per_row + 1};
}

std::optional<ArrayShape> ShapeOf(const ParameterSpec& spec, ArrayKind kind) {
  const std::optional<StateForm> state = StateFormOf(kind);
  if (state.has_value()) return ShapeOfState(spec, *state);
  if (!PlanesAreState(spec)) return std::nullopt;
  return ShapeOfPlane(spec, *PlaneFormOf(kind));
}

std::vector<ArrayKind> ArraysOf(const ParameterSpec& spec) {
  std::vector<ArrayKind> kinds;
  for (const ArrayKind kind : kArrayKinds) {
    if (ShapeOf(spec, kind).has_value()) kinds.push_back(kind);
  }
  return kinds;
}

int64_t SavedGranule(const ParameterSpec& spec) {
  return PlanesAreState(spec) ? GranuleRows(EncodingOf(spec.encoding).format) : 1;
}

std::string TensorKey(const ParameterSpec& spec, ArrayKind kind) {
  return absl::StrCat(PrefixOf(spec, kind), "/", spec.name);
}

std::string ClientStateKey(int rank) { return absl::StrCat("client_state/", rank); }

}  // namespace paramshard::checkpoint
