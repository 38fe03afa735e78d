#include "common/weights/quantization_config.h"

#include <filesystem>
#include <set>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/safetensors/header.h"
#include "common/safetensors/regular_file.h"
#include "kernels/base/status_macros.h"
#include "nlohmann/json.hpp"

namespace paramshard::weights {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int64_t kMaxConfigBytes = int64_t{64} << 20;
const std::set<std::string> kKnownMethods = {"compressed-tensors", "fbgemm_fp8", "fp8", "mxfp4"};

// Returns the object of a member; null if there is none.
const json* Object(const json& parent, const char* name) {
  const auto found = parent.find(name);
  return found != parent.end() && found->is_object() ? &*found : nullptr;
}

std::string Text(const json& parent, const char* name) {
  const auto found = parent.find(name);
  return found != parent.end() && found->is_string() ? found->get<std::string>() : "";
}

// Parses a block such as [128, 128].
std::optional<MatrixShape> Block(const json& parent, const char* name) {
  const auto found = parent.find(name);
  if (found == parent.end() || !found->is_array() || found->size() != 2) return std::nullopt;
  for (const json& extent : *found) {
    if (!extent.is_number_unsigned() || extent.get<uint64_t>() == 0 || extent.get<uint64_t>() > INT32_MAX) {
      return std::nullopt;
    }
  }
  return MatrixShape{(*found)[0].get<int64_t>(), (*found)[1].get<int64_t>()};
}

// Reads the quantization that compressed-tensors gives for the weights of its groups of modules.
void ReadGroups(const json& config, QuantizationConfig& read) {
  const json* const sparsity = Object(config, "sparsity_config");
  if (sparsity != nullptr && !sparsity->empty() && Text(*sparsity, "format") != "dense") {
    read.unknown = absl::StrCat("sparsity_config of format \"", Text(*sparsity, "format"), "\"");
  }
  const json* const transform = Object(config, "transform_config");
  if (transform != nullptr && !transform->empty()) read.unknown = "transform_config";
  const std::string status = Text(config, "quantization_status");
  read.is_compressed = status.empty() || status == "compressed";
  const json* const groups = Object(config, "config_groups");
  if (groups == nullptr) return;
  std::optional<MatrixShape> block;
  for (const auto& [name, group] : groups->items()) {
    const json* const weights = group.is_object() ? Object(group, "weights") : nullptr;
    if (weights == nullptr || Text(*weights, "strategy") != "block") continue;
    const std::optional<MatrixShape> of_group = Block(*weights, "block_structure");
    if (!of_group.has_value() || (block.has_value() && *block != *of_group)) {
      read.unknown = "config_groups with blocks of different sizes";
    }
    block = of_group;
  }
  read.block = block;
}

const json* FindConfig(const json& config) {
  for (const char* const name : kQuantizationMembers) {
    if (const auto found = config.find(name); found != config.end() && !found->is_null()) return &*found;
  }
  const json* const text = Object(config, "text_config");
  return text == nullptr ? nullptr : FindConfig(*text);
}

}  // namespace

absl::StatusOr<QuantizationConfig> ReadQuantizationConfig(const std::string& folder) {
  QuantizationConfig read;
  std::error_code error;
  const fs::path path = fs::path(folder) / "config.json";
  if (fs::exists(fs::path(folder) / "hf_quant_config.json", error)) read.unknown = "hf_quant_config.json of modelopt";
  if (!fs::exists(path, error)) return read;
  ASSIGN_OR_RETURN(const std::string text, safetensors::ReadWholeFile(path.string(), kMaxConfigBytes));
  const json config = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!config.is_object()) return absl::InvalidArgumentError(absl::StrCat(path.string(), ": want a JSON object"));
  const json* const found = FindConfig(config);
  if (found == nullptr) return read;
  if (!found->is_object()) {
    read.unknown = "a quantization_config that is not a JSON object";
    return read;
  }
  if (found->contains(kOwnMember)) return read;
  read.method = Text(*found, "quant_method");
  if (read.method == "compressed_tensors") read.method = "compressed-tensors";
  if (kKnownMethods.count(read.method) == 0) {
    read.unknown = absl::StrCat("quantization_config with quant_method ", safetensors::NameText(read.method));
  } else if (read.method == "compressed-tensors") {
    ReadGroups(*found, read);
  } else if (read.method == "fp8") {
    read.block = Block(*found, "weight_block_size");
    read.scales_are_e8m0 = Text(*found, "scale_fmt") == "ue8m0";
  }
  return read;
}

}  // namespace paramshard::weights
