#include "common/safetensors/dtype.h"

namespace paramshard::safetensors {
namespace {

struct DtypeInfo {
  Dtype dtype;
  absl::string_view name;
  int bits;
};

constexpr DtypeInfo kDtypes[] = {
    {Dtype::kBool, "BOOL", 8},
    {Dtype::kF4, "F4", 4},
    {Dtype::kF6E2M3, "F6_E2M3", 6},
    {Dtype::kF6E3M2, "F6_E3M2", 6},
    {Dtype::kU8, "U8", 8},
    {Dtype::kI8, "I8", 8},
    {Dtype::kF8E5M2, "F8_E5M2", 8},
    {Dtype::kF8E4M3, "F8_E4M3", 8},
    {Dtype::kF8E8M0, "F8_E8M0", 8},
    {Dtype::kF8E4M3FNUZ, "F8_E4M3FNUZ", 8},
    {Dtype::kF8E5M2FNUZ, "F8_E5M2FNUZ", 8},
    {Dtype::kI16, "I16", 16},
    {Dtype::kU16, "U16", 16},
    {Dtype::kF16, "F16", 16},
    {Dtype::kBF16, "BF16", 16},
    {Dtype::kI32, "I32", 32},
    {Dtype::kU32, "U32", 32},
    {Dtype::kF32, "F32", 32},
    {Dtype::kC64, "C64", 64},
    {Dtype::kF64, "F64", 64},
    {Dtype::kI64, "I64", 64},
    {Dtype::kU64, "U64", 64},
};

}  // namespace

absl::string_view DtypeName(Dtype dtype) { return kDtypes[static_cast<int>(dtype)].name; }

std::optional<Dtype> ParseDtype(absl::string_view name) {
  for (const DtypeInfo& info : kDtypes) {
    if (info.name == name) return info.dtype;
  }
  return std::nullopt;
}

int DtypeBits(Dtype dtype) { return kDtypes[static_cast<int>(dtype)].bits; }

std::optional<int64_t> TensorBytes(Dtype dtype, absl::Span<const int64_t> shape) {
  int64_t bits = DtypeBits(dtype);
  bool empty = false;
  for (const int64_t extent : shape) {
    if (extent < 0) return std::nullopt;
    if (extent == 0) empty = true;
    // The product of the extents that are not 0 must not overflow either.
    if (extent != 0 && __builtin_mul_overflow(bits, extent, &bits)) return std::nullopt;
  }
  if (empty) return 0;
  if (bits % 8 != 0) return std::nullopt;
  return bits / 8;
}

}  // namespace paramshard::safetensors
