#include "client/ctl/transformers_config.h"

#include <filesystem>
#include <set>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/safetensors/regular_file.h"
#include "common/weights/quantization_config.h"
#include "kernels/base/status_macros.h"

namespace paramshard::ctl {
namespace {

using nlohmann::ordered_json;

constexpr int64_t kMaxConfigBytes = int64_t{64} << 20;
constexpr int64_t kBlock = 128;
constexpr absl::string_view kExperts = ".experts.";
// Names of linear layers in models of transformers that do not end in "proj".
const std::set<absl::string_view> kLinearNames = {
    "dense", "dense_4h_to_h", "dense_h_to_4h",   "fc1", "fc2",   "fc_in", "fc_out", "k",  "key", "o",    "q",
    "qkv",   "query",         "query_key_value", "v",   "value", "w1",    "w2",     "w3", "wi",  "wi_0", "wi_1",
    "wo"};

}  // namespace

absl::StatusOr<ordered_json> ReadConfig(const std::string& folder) {
  const std::string path = (std::filesystem::path(folder) / kConfigFileName).string();
  ASSIGN_OR_RETURN(const std::string text, safetensors::ReadWholeFile(path, kMaxConfigBytes));
  ordered_json config = ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (config.is_object()) return config;
  return absl::InvalidArgumentError(absl::StrCat(path, ": want a JSON object"));
}

bool RemoveQuantizationConfig(ordered_json& config) {
  bool was_there = false;
  for (const char* const name : weights::kQuantizationMembers) was_there |= config.erase(name) > 0;
  const auto text = config.find("text_config");
  return text != config.end() && text->is_object() ? RemoveQuantizationConfig(*text) || was_there : was_there;
}

std::string ConfigText(const ordered_json& config) {
  return absl::StrCat(config.dump(2, ' ', false, ordered_json::error_handler_t::replace), "\n");
}

bool IsKnownToTransformers(const Encoding& encoding) {
  return encoding.format == Format::kFP8Block128x128 && encoding.element == ElementType::kE4M3;
}

bool IsLinearWeight(absl::string_view name, absl::Span<const int64_t> shape) {
  if (shape.size() != 2 || !absl::ConsumeSuffix(&name, ".weight")) return false;
  const size_t dot = name.rfind('.');
  const absl::string_view module = dot == absl::string_view::npos ? name : name.substr(dot + 1);
  // "c_proj" is a Conv1D of GPT-2, whose matrix is the transpose of a linear layer's.
  return (absl::EndsWith(module, "proj") && module != "c_proj") || kLinearNames.count(module) != 0;
}

bool HasWholeBlocks(absl::Span<const int64_t> shape) {
  return shape.size() == 2 && shape[0] % kBlock == 0 && shape[1] % kBlock == 0;
}

std::string ModuleOf(absl::string_view name) {
  if (const size_t experts = name.find(kExperts); experts != absl::string_view::npos) {
    return std::string(name.substr(0, experts + kExperts.size() - 1));
  }
  return std::string(absl::StripSuffix(name, ".weight"));
}

ordered_json Fp8QuantizationConfig(const std::vector<std::string>& modules_to_not_convert) {
  return {{"quant_method", "fp8"},
          {"activation_scheme", "dynamic"},
          {"weight_block_size", {kBlock, kBlock}},
          {"modules_to_not_convert", modules_to_not_convert}};
}

ordered_json UnknownQuantizationConfig() {
  return {
      {weights::kOwnMember, "weights are in formats that transformers does not decode: see docs/operate/convert.md"}};
}

}  // namespace paramshard::ctl
