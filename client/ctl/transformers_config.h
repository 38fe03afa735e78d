// config.json of a folder that transformers opens, and what it says of quantized weights.
#ifndef PARAMSHARD_CLIENT_CTL_TRANSFORMERS_CONFIG_H_
#define PARAMSHARD_CLIENT_CTL_TRANSFORMERS_CONFIG_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kernels/formats/format.h"
#include "nlohmann/json.hpp"

namespace paramshard::ctl {

inline constexpr char kConfigFileName[] = "config.json";

// INVALID_ARGUMENT for a file that is no JSON object, or larger than 64 MiB; errors of ReadWholeFile.
absl::StatusOr<nlohmann::ordered_json> ReadConfig(const std::string& folder);

// Removes what says that weights are quantized. Returns true if it was there.
bool RemoveQuantizationConfig(nlohmann::ordered_json& config);

// The text of a config.json.
std::string ConfigText(const nlohmann::ordered_json& config);

// FP8_BLOCK_128X128 of E4M3: the fp8 quantizer of transformers decodes it.
bool IsKnownToTransformers(const Encoding& encoding);

// True for a matrix of a linear layer, as far as its name tells. The fp8 quantizer of transformers replaces linear layers
// alone: codes of embeddings, routers and convolutions it would take for values.
bool IsLinearWeight(absl::string_view name, absl::Span<const int64_t> shape);

// True if the blocks of a matrix are all of 128 x 128: transformers takes rows by rows of scales for the height of one.
bool HasWholeBlocks(absl::Span<const int64_t> shape);

// The module of transformers whose weight the tensor is: "model.layers.0.mlp.down_proj". All experts of a layer are one
// module, whatever their number: "model.layers.0.mlp.experts".
std::string ModuleOf(absl::string_view name);

// The quantization_config with which transformers decodes FP8_BLOCK_128X128. Modules that are not listed are quantized.
nlohmann::ordered_json Fp8QuantizationConfig(const std::vector<std::string>& modules_to_not_convert);

// A quantization_config that transformers refuses to open, for formats that it does not decode: it would take codes for
// values without one.
nlohmann::ordered_json UnknownQuantizationConfig();

}  // namespace paramshard::ctl

#endif  // PARAMSHARD_CLIENT_CTL_TRANSFORMERS_CONFIG_H_
