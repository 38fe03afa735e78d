// How config.json says that the weights beside it are quantized.
#ifndef PARAMSHARD_PROTO_WEIGHTS_QUANTIZATION_CONFIG_H_
#define PARAMSHARD_PROTO_WEIGHTS_QUANTIZATION_CONFIG_H_

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/formats/format.h"

namespace paramshard::weights {

// Members of config.json that say it, at its top or in "text_config".
inline constexpr const char* kQuantizationMembers[] = {"quantization_config", "compression_config"};
// The member of a quantization_config that convert has written: metadata of the files say how.
inline constexpr char kOwnMember[] = "paramshard";

struct QuantizationConfig {
  std::string method;  // "fp8", say; empty without a quantization_config
  // Elements that share a scale, where it says so: weight_block_size, or block_structure of compressed-tensors.
  std::optional<MatrixShape> block;
  bool scales_are_e8m0 = false;  // where they are U8
  // Weights are stored as codes. With compressed-tensors they may be plain and wait for it.
  bool is_compressed = true;
  // Why no tensor beside it can be read; empty where all is known.
  std::string unknown;
};

// Reads kQuantizationMembers of the config.json in a folder, and takes note of a hf_quant_config.json. INVALID_ARGUMENT for a config.json that is no JSON object, or
// too large; what the file system says.
absl::StatusOr<QuantizationConfig> ReadQuantizationConfig(const std::string& folder);

}  // namespace paramshard::weights

#endif  // PARAMSHARD_PROTO_WEIGHTS_QUANTIZATION_CONFIG_H_
