#include "python/bindings/arrays.h"

#include <algorithm>
#include <initializer_list>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/formats/format.h"
#include "python/bindings/calls.h"

namespace paramshard::python {
namespace {

namespace nb = nanobind;
using nb::dlpack::dtype_code;

constexpr nb::dlpack::dtype Type(dtype_code code, int bits, int lanes = 1) {
  return {
      .code = static_cast<uint8_t>(code), .bits = static_cast<uint8_t>(bits), .lanes = static_cast<uint16_t>(lanes)};
}

constexpr nb::dlpack::dtype kFloat32 = Type(dtype_code::Float, 32);
constexpr nb::dlpack::dtype kFloat16 = Type(dtype_code::Float, 16);
constexpr nb::dlpack::dtype kBFloat16 = Type(dtype_code::Bfloat, 16);
constexpr nb::dlpack::dtype kE4M3 = Type(dtype_code::Float8_E4M3FN, 8);
constexpr nb::dlpack::dtype kE5M2 = Type(dtype_code::Float8_E5M2, 8);
constexpr nb::dlpack::dtype kE8M0 = Type(dtype_code::Float8_E8M0FNU, 8);
constexpr nb::dlpack::dtype kE2M1Pair = Type(dtype_code::Float4_E2M1FN, 4, 2);
constexpr nb::dlpack::dtype kInt16 = Type(dtype_code::Int, 16);

constexpr nb::dlpack::dtype kUInt8 = Type(dtype_code::UInt, 8);

struct NamedType {
  absl::string_view name;
  nb::dlpack::dtype type;
};
constexpr NamedType kNamedTypes[] = {{"float32", kFloat32},           {"float16", kFloat16},  {"bfloat16", kBFloat16},
                                     {"float8_e4m3fn", kE4M3},        {"float8_e5m2", kE5M2}, {"float8_e8m0fnu", kE8M0},
                                     {"float4_e2m1fn_x2", kE2M1Pair}, {"uint8", kUInt8}};

bool NumPyHas(const nb::dlpack::dtype& type) {
  return type == kFloat32 || type == kFloat16 || type == kInt16 || type.code == static_cast<uint8_t>(dtype_code::UInt);
}

nb::dlpack::dtype BitPatterns(const nb::dlpack::dtype& type) { return Type(dtype_code::UInt, type.bits * type.lanes); }

nb::capsule CapsuleOf(std::shared_ptr<const void> owner) {
  using Owner = std::shared_ptr<const void>;
  return nb::capsule(new Owner(std::move(owner)), [](void* held) noexcept { delete static_cast<Owner*>(held); });
}

template <typename Array>
nb::object Make(const ArrayMemory& memory) {
  const int device = memory.gpu < 0 ? nb::device::cpu::value : nb::device::cuda::value;
  return nb::cast(Array(const_cast<void*>(memory.data), memory.shape.size(), memory.shape.data(),
                        CapsuleOf(memory.owner), nullptr, memory.type, device, memory.gpu < 0 ? 0 : memory.gpu));
}

std::vector<int64_t> ShapeOf(const nb::ndarray<nb::ro>& array) {
  std::vector<int64_t> shape;
  for (size_t i = 0; i < array.ndim(); ++i) shape.push_back(static_cast<int64_t>(array.shape(i)));
  return shape;
}

bool HasOneOf(const nb::ndarray<nb::ro>& array, const ArrayShapes& shapes) {
  const std::vector<int64_t> shape = ShapeOf(array);
  return shape == std::vector<int64_t>{shapes.rows, shapes.columns} || shape == shapes.parameter;
}

bool IsFloatingPoint(const nb::dlpack::dtype& type) {
  return type.lanes == 1 && type.bits >= 16 &&
         (type.code == static_cast<uint8_t>(dtype_code::Float) ||
          type.code == static_cast<uint8_t>(dtype_code::Bfloat));
}

[[noreturn]] void RefuseArray(absl::string_view what, absl::string_view kind, const ArrayShapes& shapes,
                              nb::handle got) {
  std::string wanted = absl::StrCat("(", absl::StrJoin(shapes.parameter, ", "), ")");
  if (shapes.parameter != std::vector<int64_t>{shapes.rows, shapes.columns}) {
    absl::StrAppend(&wanted, " or (", shapes.rows, ", ", shapes.columns, ")");
  }
  Raise(
      absl::InvalidArgumentError(absl::StrCat(what, ": want ", kind, " of shape ", wanted, ", got ", Described(got))));
}

// Any array, as it is.
nb::ndarray<nb::ro> AnyArray(absl::string_view what, nb::handle object) {
  nb::ndarray<nb::ro> array;
  if (nb::try_cast(object, array, /*convert=*/false)) return array;
  if (!nb::hasattr(object, "dtype")) RaiseType(absl::StrCat(what, ": want an array"), object.type());
  Raise(absl::InvalidArgumentError(
      absl::StrCat(what, ": want an array of a type and a memory that DLPack has, got ", Described(object))));
}

template <typename Writable>
Writable WritableArray(absl::string_view what, nb::handle object, const ArrayShapes& shapes, absl::string_view kind,
                       std::initializer_list<nb::dlpack::dtype> types) {
  Check(CheckHoldsItsValues(what, object));
  const nb::ndarray<nb::ro> any = AnyArray(what, object);
  Writable array;
  const bool fits = HasOneOf(any, shapes) && std::ranges::find(types, any.dtype()) != types.end() &&
                    nb::try_cast(object, array, /*convert=*/false) && IsOfHostOrGpu(any);
  if (!fits) RefuseArray(what, kind, shapes, object);
  return array;
}

// Returns the distance in elements between rows of contiguous memory; null if there is none. A matrix of one row has any.
std::optional<int64_t> RowStride(const WritableAnywhere& array) {
  const auto size = [&](size_t i) { return static_cast<int64_t>(array.shape(i)); };
  if (array.ndim() == 0) return 1;
  const size_t last = array.ndim() - 1;
  if (array.size() == 0) return size(last);
  if (size(last) > 1 && array.stride(last) != 1) return std::nullopt;
  int64_t stride = size(last), rows = 1;
  for (size_t i = last; i-- > 0;) {
    if (size(i) == 1) continue;
    if (rows == 1) {
      stride = array.stride(i);
    } else if (array.stride(i) != stride * rows) {
      return std::nullopt;
    }
    rows *= size(i);
  }
  return stride;
}

}  // namespace

std::string Described(nb::handle object) {
  if (!nb::hasattr(object, "dtype") || !nb::hasattr(object, "shape")) return nb::repr(object.type()).c_str();
  nb::ndarray<nb::ro> any;
  nb::ndarray<> writable;
  nb::ndarray<nb::ro, nb::c_contig> contiguous;
  std::string text = absl::StrCat(nb::repr(object.attr("dtype")).c_str(), " ", nb::repr(object.attr("shape")).c_str());
  if (!nb::try_cast(object, any, /*convert=*/false)) return text;
  if (!nb::try_cast(object, writable, /*convert=*/false)) absl::StrAppend(&text, ", read-only");
  if (!nb::try_cast(object, contiguous, /*convert=*/false)) absl::StrAppend(&text, ", not contiguous");
  return text;
}

bool IsOfHostOrGpu(const nb::ndarray<nb::ro>& array) {
  return array.device_type() == nb::device::cpu::value || array.device_type() == nb::device::cuda::value;
}

std::optional<nb::dlpack::dtype> TypeNamed(absl::string_view name) {
  for (const NamedType& each : kNamedTypes) {
    if (each.name == name) return each.type;
  }
  return std::nullopt;
}

absl::string_view TypeName(const nb::dlpack::dtype& type) {
  for (const NamedType& each : kNamedTypes) {
    if (each.type == type) return each.name;
  }
  return "unknown";
}

WritableRows RowsArray(absl::string_view what, nb::handle object, const nb::dlpack::dtype& type,
                       const std::vector<int64_t>& shape) {
  Check(CheckHoldsItsValues(what, object));
  const nb::ndarray<nb::ro> any = AnyArray(what, object);
  WritableRows rows;
  std::optional<int64_t> stride;
  if ((any.dtype() == type || any.dtype() == BitPatterns(type)) && ShapeOf(any) == shape &&
      nb::try_cast(object, rows.array, /*convert=*/false) && IsOfHostOrGpu(any)) {
    stride = RowStride(rows.array);
  }
  if (!stride.has_value()) {
    Raise(absl::InvalidArgumentError(absl::StrCat(what, ": want a writable array of ", TypeName(type),
                                                  ", with rows at equal distances, of shape (",
                                                  absl::StrJoin(shape, ", "), "), got ", Described(object))));
  }
  const auto element_bytes = static_cast<int64_t>(any.itemsize());
  const int64_t columns = shape.empty() ? 1 : shape.back();
  rows.rows = columns == 0 ? 0 : static_cast<int64_t>(any.size()) / columns;
  rows.row_bytes = columns * element_bytes;
  rows.stride_bytes = *stride * element_bytes;
  return rows;
}

absl::Status CheckHoldsItsValues(absl::string_view what, nb::handle object) {
  if (nb::hasattr(object, "mask") && nb::hasattr(object, "filled")) {
    return absl::InvalidArgumentError(absl::StrCat(what, ": want an array without a mask; call filled()"));
  }
  // DLPack has no such bit, and torch 2.11 exports the tensor as if it were not set.
  if (nb::hasattr(object, "is_neg") && PyObject_IsTrue(object.attr("is_neg")().ptr()) == 1) {
    return absl::InvalidArgumentError(absl::StrCat(what, ": want values, got a lazy negation; call resolve_neg()"));
  }
  return absl::OkStatus();
}

HostFloats InputArray(absl::string_view what, nb::handle object, const ArrayShapes& shapes) {
  constexpr absl::string_view kKind = "floating-point numbers in host memory";
  Check(CheckHoldsItsValues(what, object));
  const nb::ndarray<nb::ro> any = AnyArray(what, object);
  HostFloats array;
  const bool fits = IsFloatingPoint(any.dtype()) && HasOneOf(any, shapes);
  if (!fits || !nb::try_cast(object, array)) RefuseArray(what, kKind, shapes, object);
  return array;
}

WritableHostArray OutputArray(absl::string_view what, nb::handle object, const ArrayShapes& shapes) {
  return WritableArray<WritableHostArray>(what, object, shapes,
                                          "a writable, C-contiguous array of float32 in host memory", {kFloat32});
}

WritableContiguous DecodedArray(absl::string_view what, nb::handle object, const ArrayShapes& shapes) {
  return WritableArray<WritableContiguous>(what, object, shapes,
                                           "a writable, C-contiguous array of float32 or bfloat16 of the host or a GPU",
                                           {kFloat32, kBFloat16});
}

int GpuOf(const WritableAnywhere& array) {
  return array.device_type() == nb::device::cuda::value ? array.device_id() : -1;
}

nb::dlpack::dtype TypeOf(const Encoding& encoding) {
  switch (encoding.format) {
    case Format::kFP32:
      return kFloat32;
    case Format::kBF16:
      return kBFloat16;
    case Format::kFP16:
      return kFloat16;
    case Format::kNVFP4_2D:
      return kE2M1Pair;
    case Format::kFP8TensorCurrent:
    case Format::kFP8TensorDelayed:
    case Format::kFP8Block128x128:
    case Format::kMXFP8:
    case Format::kMXFP8_2D:
      break;
  }
  return encoding.element == ElementType::kE5M2 ? kE5M2 : kE4M3;
}

nb::dlpack::dtype TypeOf(ScaleType type) {
  switch (type) {
    case ScaleType::kE8M0:
      return kE8M0;
    case ScaleType::kE4M3:
      return kE4M3;
    case ScaleType::kNone:
    case ScaleType::kFloat32:
      break;
  }
  return kFloat32;
}

nb::dlpack::dtype TypeOf(GradientType type) { return type == GradientType::kFP32 ? kFloat32 : kBFloat16; }

nb::dlpack::dtype TypeOf(TensorType type) {
  switch (type) {
    case TensorType::kBF16:
      return kBFloat16;
    case TensorType::kFP16:
      return kFloat16;
    case TensorType::kFP8E4M3:
      return kE4M3;
    case TensorType::kInt16:
      return kInt16;
    case TensorType::kFP32:
      break;
  }
  return kFloat32;
}

ArrayMemory DataOf(const Matrix& matrix, std::shared_ptr<const void> owner) {
  const nb::dlpack::dtype type = TypeOf(matrix.encoding);
  const size_t element_bytes = type.bits * type.lanes / 8;
  const auto rows = static_cast<size_t>(matrix.rows);
  return {.data = matrix.data.data(),
          .shape = {rows, rows == 0 ? 0 : matrix.data.size() / rows / element_bytes},
          .type = type,
          .gpu = matrix.gpu,
          .owner = std::move(owner)};
}

ArrayMemory ScalesOf(const Matrix& matrix, std::shared_ptr<const void> owner) {
  const MatrixShape shape = ScaleShape(matrix.encoding, matrix.plane, matrix.rows, matrix.columns);
  return {.data = matrix.scales.data(),
          .shape = {static_cast<size_t>(shape.rows), static_cast<size_t>(shape.cols)},
          .type = TypeOf(TraitsOf(matrix.encoding.format).scale_type),
          .gpu = matrix.gpu,
          .owner = std::move(owner)};
}

ArrayMemory AmaxOf(const Matrix& matrix, std::shared_ptr<const void> owner) {
  return {.data = matrix.amax.data(),
          .shape = {1},
          .type = TypeOf(ScaleType::kFloat32),
          .gpu = matrix.gpu,
          .owner = std::move(owner)};
}

nb::object DLPackArray(const ArrayMemory& memory) {
  return memory.read_only ? Make<nb::ndarray<nb::array_api, nb::ro>>(memory) : Make<nb::ndarray<nb::array_api>>(memory);
}

nb::object NativeArray(ArrayMemory memory) {
  if (memory.gpu >= 0) return DLPackArray(memory);
  if (!NumPyHas(memory.type)) memory.type = BitPatterns(memory.type);
  return memory.read_only ? Make<nb::ndarray<nb::numpy, nb::ro>>(memory) : Make<nb::ndarray<nb::numpy>>(memory);
}

nb::object OwnedArray(std::vector<uint8_t> bytes, std::vector<size_t> shape, nb::dlpack::dtype type) {
  const auto owned = std::make_shared<const std::vector<uint8_t>>(std::move(bytes));
  return NativeArray(
      {.data = owned->data(), .shape = std::move(shape), .type = type, .read_only = false, .owner = owned});
}

}  // namespace paramshard::python
