// Quantization of weights according to the config.json beside them.
#ifndef PARAMSHARD_COMMON_WEIGHTS_QUANTIZATION_CONFIG_H_
#define PARAMSHARD_COMMON_WEIGHTS_QUANTIZATION_CONFIG_H_

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/formats/format_id.h"

namespace paramshard::weights {

// Members of config.json with the quantization, at its top or in "text_config".
inline constexpr const char* kQuantizationMembers[] = {"quantization_config", "compression_config"};
// Member of a quantization_config that convert has written: the metadata of the files has the encodings.
inline constexpr char kOwnMember[] = "paramshard";

struct QuantizationConfig {
  std::string method;  // such as "fp8"; empty without a quantization_config
  // Block of elements that share a scale, if given: weight_block_size, or block_structure of compressed-tensors.
  std::optional<MatrixShape> block;
  bool scales_are_e8m0 = false;  // U8 scales are E8M0
  // Weights are stored as codes. With compressed-tensors they may be plain and not compressed yet.
  bool is_compressed = true;
  // Reason why no tensor beside it can be read; empty if the method is known.
  std::string unknown;
};

// Reads kQuantizationMembers of the config.json in a folder, and detects an hf_quant_config.json. INVALID_ARGUMENT for
// a config.json that is too large or not a JSON object; errors of the file system.
absl::StatusOr<QuantizationConfig> ReadQuantizationConfig(const std::string& folder);

}  // namespace paramshard::weights

#endif  // PARAMSHARD_COMMON_WEIGHTS_QUANTIZATION_CONFIG_H_
