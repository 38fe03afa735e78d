// The element types of the safetensors format.
#ifndef PARAMSHARD_COMMON_SAFETENSORS_DTYPE_H_
#define PARAMSHARD_COMMON_SAFETENSORS_DTYPE_H_

#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace paramshard::safetensors {

// The dtypes of the reference implementation, safetensors 0.8.
enum class Dtype : uint8_t {
  kBool,
  kF4,
  kF6E2M3,
  kF6E3M2,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kF8E8M0,
  kF8E4M3FNUZ,
  kF8E5M2FNUZ,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kC64,
  kF64,
  kI64,
  kU64,
};

// Returns the name in files: "F32", "F8_E4M3".
absl::string_view DtypeName(Dtype dtype);

// Returns the dtype of a name in files; nullopt for any other text.
std::optional<Dtype> ParseDtype(absl::string_view name);

int DtypeBits(Dtype dtype);

// Returns the size of a tensor's data. A BOOL has 8 bits; elements with fewer bits are packed. Returns nullopt if an
// extent is negative, if the product of the extents (without zeros) or the size does not fit int64, or if the data
// would not end at a whole byte.
std::optional<int64_t> TensorBytes(Dtype dtype, absl::Span<const int64_t> shape);

}  // namespace paramshard::safetensors

#endif  // PARAMSHARD_COMMON_SAFETENSORS_DTYPE_H_
