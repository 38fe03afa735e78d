#include "proto/safetensors/checkpoint.h"

#include <filesystem>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "proto/safetensors/regular_file.h"

namespace paramshard::safetensors {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using WeightMap = std::map<std::string, std::string>;

// An object of objects of texts.
constexpr int kIndexDepth = 2;

absl::Status Invalid(absl::string_view path, absl::string_view message) {
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", message));
}

// Whether a name in an index is below its folder, as far as the name tells.
bool IsInside(const fs::path& name) {
  // The kernel would read a name to its first zero byte.
  if (name.is_absolute() || !name.has_filename() || name.native().find('\0') != std::string::npos) return false;
  for (const fs::path& part : name) {
    if (part == "..") return false;
  }
  return true;
}

absl::StatusOr<WeightMap> ParseIndex(const std::string& path, const std::string& text) {
  std::string section;
  std::set<std::pair<int, std::string>> names;  // with their depths: a tensor may be named as the section is
  std::optional<std::string> twice;
  // Values that are deeper than an index has any are dropped as they come.
  const json index = json::parse(
      text,
      [&](int depth, json::parse_event_t event, json& parsed) {
        if (event == json::parse_event_t::key) {
          std::string name = parsed.get<std::string>();
          if (depth == 1) section = name;
          if (section == "weight_map" && !names.emplace(depth, name).second) twice = std::move(name);
        }
        return depth <= kIndexDepth;
      },
      /*allow_exceptions=*/false);
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) {
    return Invalid(path, "a JSON object with an object \"weight_map\" expected");
  }
  if (twice.has_value()) {
    return Invalid(path, absl::StrCat("each name once expected, got ", NameText(*twice), " twice"));
  }
  WeightMap weight_map;
  for (const auto& [name, file] : index["weight_map"].items()) {
    if (!file.is_string() || !IsInside(file.get<std::string>())) {
      return Invalid(path,
                     absl::StrCat("tensor ", NameText(name), ": the name of a file in the index's folder expected"));
    }
    weight_map.emplace(name, file.get<std::string>());
  }
  return weight_map;
}

absl::StatusOr<std::string> FindInFolder(const std::string& folder) {
  std::vector<std::string> found;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    if (entry->path().filename() == kIndexFileName) return entry->path().string();
    if (entry->path().extension() == ".safetensors") found.push_back(entry->path().string());
  }
  if (error) return absl::ErrnoToStatus(error.value(), absl::StrCat(folder, ": reading the folder failed"));
  if (found.size() == 1) return found.front();
  return Invalid(folder, absl::StrCat(kIndexFileName, " or one .safetensors file expected, got ", found.size(),
                                      " files and no index"));
}

}  // namespace

absl::StatusOr<Checkpoint> Checkpoint::Open(const std::string& path) {
  std::string file_path = path;
  std::error_code error;
  if (fs::is_directory(path, error)) {
    absl::StatusOr<std::string> found = FindInFolder(path);
    if (!found.ok()) return found.status();
    file_path = *std::move(found);
  }
  Checkpoint checkpoint;
  const absl::Status status =
      absl::EndsWith(file_path, ".json") ? checkpoint.OpenIndex(file_path) : checkpoint.OpenFile(file_path);
  if (!status.ok()) return status;
  for (const SafetensorsFile& file : checkpoint.files_) {
    for (const TensorInfo& info : file.tensors()) checkpoint.tensors_[info.name] = {&file, &info};
  }
  return checkpoint;
}

const Checkpoint::Tensor* Checkpoint::Find(absl::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

absl::Status Checkpoint::OpenFile(const std::string& path) {
  absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Open(path);
  if (!file.ok()) return file.status();
  files_.push_back(*std::move(file));
  return absl::OkStatus();
}

absl::Status Checkpoint::OpenIndex(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadWholeFile(path, kMaxHeaderBytes);
  if (!text.ok()) return text.status();
  absl::StatusOr<WeightMap> weight_map = ParseIndex(path, *text);
  if (!weight_map.ok()) return weight_map.status();
  index_path_ = path;
  std::set<std::string> paths;
  for (auto& [name, file] : *weight_map) {
    file = (fs::path(path).parent_path() / file).lexically_normal().string();
    paths.insert(file);
  }
  for (const std::string& file : paths) {
    if (absl::Status status = OpenFile(file); !status.ok()) return status;
  }
  return CheckWeightMap(*weight_map);
}

absl::Status Checkpoint::CheckWeightMap(const WeightMap& weight_map) const {
  for (const SafetensorsFile& file : files_) {
    std::set<absl::string_view> names;
    for (const TensorInfo& info : file.tensors()) names.insert(info.name);
    for (const auto& [name, path] : weight_map) {
      if (path == file.path() && names.erase(name) == 0) {
        return Invalid(index_path_, absl::StrCat("tensor ", NameText(name), " expected in ", path, ", got none there"));
      }
    }
    if (!names.empty()) {
      return Invalid(index_path_, absl::StrCat("a file for tensor ", NameText(*names.begin()), " of ", file.path(),
                                               " expected, got another or none"));
    }
  }
  return absl::OkStatus();
}

std::string SerializeIndex(const WeightMap& weight_map, int64_t total_bytes) {
  const nlohmann::ordered_json index = {{"metadata", {{"total_size", total_bytes}}}, {"weight_map", weight_map}};
  return index.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace paramshard::safetensors
