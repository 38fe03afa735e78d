// config.json of a folder that transformers opens, and its quantization_config.
#ifndef PARAMSHARD_CLIENT_CTL_TRANSFORMERS_CONFIG_H_
#define PARAMSHARD_CLIENT_CTL_TRANSFORMERS_CONFIG_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kernels/formats/format_id.h"
#include "nlohmann/json.hpp"

namespace paramshard::ctl {

inline constexpr char kConfigFileName[] = "config.json";

// INVALID_ARGUMENT for a file that is no JSON object, or larger than 64 MiB; errors of ReadWholeFile.
absl::StatusOr<nlohmann::ordered_json> ReadConfig(const std::string& folder);

// Removes the quantization_config. Returns true if there was one.
bool RemoveQuantizationConfig(nlohmann::ordered_json& config);

// The text of a config.json.
std::string ConfigText(const nlohmann::ordered_json& config);

// FP8_BLOCK_128X128 of E4M3: the fp8 quantizer of transformers decodes it.
bool IsKnownToTransformers(const Encoding& encoding);

// Returns true for a matrix of a linear layer, judged by its name. The fp8 quantizer of transformers replaces linear
// layers only: it would take codes of embeddings, routers and convolutions for values.
bool IsLinearWeight(absl::string_view name, absl::Span<const int64_t> shape);

// Returns true if all blocks of a matrix are 128 x 128: transformers derives a block's height from the rows of scales.
bool HasWholeBlocks(absl::Span<const int64_t> shape);

// Returns the module of transformers whose weight the tensor is: "model.layers.0.mlp.down_proj". All experts of a layer
// are one module, whatever their number: "model.layers.0.mlp.experts".
std::string ModuleOf(absl::string_view name);

// Returns the quantization_config with which transformers decodes FP8_BLOCK_128X128. Modules that are not listed are
// quantized.
nlohmann::ordered_json Fp8QuantizationConfig(const std::vector<std::string>& modules_to_not_convert);

// Returns a quantization_config that transformers refuses to open, for formats that it does not decode: without one it
// would take codes for values.
nlohmann::ordered_json UnknownQuantizationConfig();

}  // namespace paramshard::ctl

#endif  // PARAMSHARD_CLIENT_CTL_TRANSFORMERS_CONFIG_H_
