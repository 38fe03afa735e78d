// Metadata of quantized files: written by a conversion, checked by readers of weights.
#ifndef PARAMSHARD_COMMON_SAFETENSORS_CONVERSION_H_
#define PARAMSHARD_COMMON_SAFETENSORS_CONVERSION_H_

#include "common/safetensors/header.h"

namespace paramshard::safetensors {

// The version of these keys: "1".
inline constexpr char kConversionVersionKey[] = "paramshard.version";
// How each quantized tensor of the file is encoded, as JSON: docs/operate/convert.md.
inline constexpr char kEncodingsKey[] = "paramshard.encodings";
// The name of the file's dtype, if quantized tensors have been decoded: their values still are quantized values.
inline constexpr char kDequantizedKey[] = "paramshard.dequantized";

// Returns true if values of the file have been quantized: such a file is never the source of a master.
inline bool HasQuantizedValues(const Metadata& metadata) {
  return metadata.count(kEncodingsKey) != 0 || metadata.count(kDequantizedKey) != 0;
}

}  // namespace paramshard::safetensors

#endif  // PARAMSHARD_COMMON_SAFETENSORS_CONVERSION_H_
