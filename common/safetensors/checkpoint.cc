#include "common/safetensors/checkpoint.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/safetensors/regular_file.h"
#include "common/safetensors/shallow_json.h"
#include "common/safetensors/sharding_info.h"
#include "nlohmann/json.hpp"

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

// Returns true if a file name of an index lies in the index's folder. It does not look at links.
bool IsInside(const fs::path& name) {
  // The kernel would end the name at its first zero byte.
  if (name.is_absolute() || !name.has_filename() || name.native().find('\0') != std::string::npos) return false;
  for (const fs::path& part : name) {
    if (part == "..") return false;
  }
  return true;
}

absl::StatusOr<WeightMap> ParseIndex(const std::string& path, const std::string& text) {
  WeightMap weight_map;
  absl::Status first;
  const auto check_once = [&](bool is_first, const std::string& name) {
    if (is_first) return;
    first.Update(Invalid(path, absl::StrCat("duplicate name ", NameText(name))));
  };
  bool has_map = false;
  const json index = ParseShallowJson(text, kIndexDepth, [&](const JsonMember& member) {
    const auto& [depth, object, name, file] = member;
    if (depth == 1 && name == "weight_map") check_once(!std::exchange(has_map, true), name);
    if (depth != 2 || object != "weight_map") return false;
    if (file.is_string() && IsInside(file.get_ref<const std::string&>())) {
      check_once(weight_map.emplace(name, file.get<std::string>()).second, name);
    } else {
      first.Update(
          Invalid(path, absl::StrCat("tensor ", NameText(name), ": want the name of a file in the index's folder")));
    }
    return true;
  });
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) {
    return Invalid(path, "want a JSON object with an object \"weight_map\"");
  }
  if (!first.ok()) return first;
  return weight_map;
}

// Returns a folder's files with an extension, by name.
absl::StatusOr<std::vector<std::string>> FilesIn(const std::string& folder, const char* extension = ".safetensors") {
  std::vector<std::string> found;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    if (entry->path().extension() == extension) found.push_back(entry->path().string());
  }
  if (error) return absl::ErrnoToStatus(error.value(), absl::StrCat(folder, ": reading the folder failed"));
  std::sort(found.begin(), found.end());
  return found;
}

std::string NameOf(const std::string& path) { return NameText(fs::path(path).filename().string()); }

absl::Status NoFilesError(const std::string& folder) {
  const absl::StatusOr<std::vector<std::string>> distributed = FilesIn(folder, ".distcp");
  const bool is_distributed = distributed.ok() && !distributed->empty();
  return Invalid(folder, absl::StrCat("want ", kModelFileName, ", ", kIndexFileName, " or a .safetensors file, got ",
                                      is_distributed ? "a checkpoint of torch.distributed.checkpoint (.distcp files): "
                                                       "load it with torch and save it as safetensors"
                                                     : "none"));
}

// Returns true for files beside a model's own: the same weights under their authors' names, adapters, or an optimizer's
// state.
bool IsBesideModel(const std::string& path) {
  const std::string name = fs::path(path).filename().string();
  return absl::StartsWith(name, "consolidated") || absl::StartsWith(name, "adapter") ||
         absl::StartsWith(name, "optimizer");
}

// Returns the number of files in a file's name: 3 for "model-00001-of-00003.safetensors"; 1 if the name has none.
int64_t FilesByName(const std::string& path) {
  const std::string stem = fs::path(path).stem().string();
  const size_t of = stem.rfind("-of-");
  int64_t count = 0;
  return of != std::string::npos && absl::SimpleAtoi(stem.substr(of + 4), &count) ? count : 1;
}

// Returns the bytes of one row of a tensor.
int64_t RowBytes(const TensorInfo& info) { return info.shape.empty() ? 0 : info.size_bytes / info.shape[0]; }

// Returns true for offsets of a part that does not begin at the tensor's first element.
bool IsLater(const std::vector<int64_t>& offsets) {
  return std::any_of(offsets.begin(), offsets.end(), [](int64_t offset) { return offset != 0; });
}

}  // namespace

absl::StatusOr<Checkpoint> Checkpoint::Open(const std::string& path) {
  Checkpoint checkpoint;
  std::error_code error;
  const absl::Status status = fs::is_directory(path, error) ? checkpoint.OpenFolder(path) : checkpoint.OpenWhole(path);
  if (!status.ok()) return status;
  return checkpoint;
}

absl::Status Checkpoint::OpenFolder(const std::string& folder) {
  const std::string model = (fs::path(folder) / kModelFileName).string();
  const std::string index = (fs::path(folder) / kIndexFileName).string();
  std::error_code error;
  const bool has_index = fs::exists(index, error);
  if (fs::exists(model, error)) {
    if (has_index) {
      notes_.push_back(absl::StrCat(folder, " has ", kModelFileName, " and ", kIndexFileName, ": read ", kModelFileName,
                                    ", as transformers does"));
    }
    return OpenWhole(model);
  }
  if (has_index) return OpenWhole(index);
  absl::StatusOr<std::vector<std::string>> paths = FilesIn(folder);
  if (!paths.ok()) return paths.status();
  if (paths->empty()) return NoFilesError(folder);
  for (const char* const name : {"pytorch_model.bin", "pytorch_model.bin.index.json"}) {
    if (!fs::exists(fs::path(folder) / name, error)) continue;
    return Invalid(folder, absl::StrCat("want ", kModelFileName, " or ", kIndexFileName, ", got ", name,
                                        ", which transformers reads, and ", NameOf(paths->front()),
                                        ": give the path of the file to read"));
  }
  if (std::any_of(paths->begin(), paths->end(), [](const std::string& path) { return !IsBesideModel(path); })) {
    paths->erase(std::remove_if(paths->begin(), paths->end(), IsBesideModel), paths->end());
  }
  if (paths->size() > 1) return OpenShards(*paths);
  if (const int64_t count = FilesByName(paths->front()); count > 1) {
    return Invalid(paths->front(), absl::StrCat("want all ", count, " files of the checkpoint and ", kIndexFileName,
                                                ", got only this file"));
  }
  notes_.push_back(absl::StrCat(folder, " has no ", kModelFileName, ": read ", NameOf(paths->front())));
  return OpenWhole(paths->front());
}

absl::Status Checkpoint::OpenWhole(const std::string& path) {
  const absl::Status status = absl::EndsWith(path, ".json") ? OpenIndex(path) : OpenFile(path);
  if (!status.ok()) return status;
  if (absl::Status whole = CheckWhole(); !whole.ok()) return whole;
  if (!index_path_.empty()) return absl::OkStatus();
  for (const SafetensorsFile& file : files_) {
    for (const TensorInfo& info : file.tensors()) tensors_[info.name] = {&file, &info, {{&file, &info, 0}}};
  }
  return absl::OkStatus();
}

// A file of torch.distributed.checkpoint may hold the rows of one rank. The first rank's file looks like a whole one,
// so the files beside it are checked too, each once.
absl::Status Checkpoint::CheckWhole() const {
  struct Folder {
    std::set<fs::path> open;                                // names of files
    std::map<std::string, const SafetensorsFile*> tensors;  // begin at their first element; may be first parts
  };
  const auto part_error = [&](const SafetensorsFile& file, const std::string& tensor, absl::string_view what) {
    return Invalid(file.path(), absl::StrCat("tensor ", NameText(tensor), ": want the whole tensor, got ", what,
                                             ": give the folder that has all parts and no index"));
  };
  std::map<fs::path, Folder> folders;
  for (const SafetensorsFile& file : files_) {
    Folder& folder = folders[fs::path(file.path()).parent_path()];
    folder.open.insert(fs::path(file.path()).filename());
    if (file.metadata().count(kShardingInfoKey) == 0) continue;
    const auto offsets = ParseShardingInfo(file.header());
    if (!offsets.ok()) return Invalid(file.path(), offsets.status().message());
    for (size_t i = 0; i < offsets->size(); ++i) {
      const std::string& name = file.tensors()[i].name;
      if (IsLater((*offsets)[i])) {
        return part_error(file, name, absl::StrCat("a part that begins at [", absl::StrJoin((*offsets)[i], ", "), "]"));
      }
      folder.tensors.emplace(name, &file);
    }
  }
  for (const auto& [folder_path, folder] : folders) {
    if (folder.tensors.empty()) continue;
    const auto paths = FilesIn(folder_path.empty() ? "." : folder_path.string());
    if (!paths.ok()) return paths.status();
    for (const std::string& path : *paths) {
      if (folder.open.count(fs::path(path).filename()) != 0) continue;
      const absl::StatusOr<SafetensorsFile> other = SafetensorsFile::Open(path);
      if (!other.ok() || other->metadata().count(kShardingInfoKey) == 0) continue;
      const auto offsets = ParseShardingInfo(other->header());
      if (!offsets.ok()) continue;
      for (size_t i = 0; i < offsets->size(); ++i) {
        const auto whole = folder.tensors.find(other->tensors()[i].name);
        if (!IsLater((*offsets)[i]) || whole == folder.tensors.end()) continue;
        return part_error(*whole->second, whole->first, absl::StrCat("a part: ", path, " has another"));
      }
    }
  }
  return absl::OkStatus();
}

std::vector<const TensorInfo*> Checkpoint::TensorsOf(const SafetensorsFile& file) const {
  std::vector<const TensorInfo*> infos;
  for (const TensorInfo& info : file.tensors()) {
    const Tensor* const tensor = Find(info.name);
    if (tensor != nullptr && tensor->file == &file) infos.push_back(&info);
  }
  return infos;
}

absl::Status Checkpoint::Tensor::Read(int64_t offset_bytes, absl::Span<uint8_t> out) const {
  for (const Part& part : parts) {
    const int64_t begin = std::max<int64_t>(0, offset_bytes - part.offset_bytes);
    if (begin >= part.info->size_bytes || out.empty()) continue;
    const auto piece = out.subspan(0, std::min<int64_t>(part.info->size_bytes - begin, out.size()));
    if (absl::Status status = part.file->Read(*part.info, begin, piece); !status.ok()) return status;
    out.remove_prefix(piece.size());
    offset_bytes += static_cast<int64_t>(piece.size());
  }
  return absl::OkStatus();
}

absl::Status Checkpoint::OpenShards(const std::vector<std::string>& paths) {
  for (const std::string& path : paths) {
    if (absl::Status status = OpenFile(path); !status.ok()) return status;
  }
  is_sharded_ = true;
  return JoinShards();
}

absl::Status Checkpoint::JoinShards() {
  std::map<std::string, std::vector<Part>> parts;
  for (const SafetensorsFile& file : files_) {
    const auto offsets = ParseShardingInfo(file.header());
    if (!offsets.ok()) {
      return Invalid(file.path(), absl::StrCat("want one file, an index, or files of one sharded checkpoint: ",
                                               offsets.status().message()));
    }
    for (size_t i = 0; i < file.tensors().size(); ++i) {
      const TensorInfo& info = file.tensors()[i];
      const std::vector<int64_t>& saved = (*offsets)[i];
      const bool is_of_rows =
          std::all_of(saved.begin() + (saved.empty() ? 0 : 1), saved.end(), [](int64_t offset) { return offset == 0; });
      if (!is_of_rows) {
        return Invalid(file.path(), absl::StrCat("tensor ", NameText(info.name),
                                                 ": cut on a dimension other than the first, which is not supported: "
                                                 "load it with torch and save it whole"));
      }
      // offset_bytes holds the part's first row until JoinParts.
      if (info.size_bytes > 0) parts[info.name].push_back({&file, &info, saved.empty() ? 0 : saved[0]});
    }
  }
  for (auto& [name, of_tensor] : parts) {
    if (absl::Status status = JoinParts(name, std::move(of_tensor)); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status Checkpoint::JoinParts(const std::string& name, std::vector<Part> parts) {
  std::sort(parts.begin(), parts.end(), [](const Part& a, const Part& b) { return a.offset_bytes < b.offset_bytes; });
  const TensorInfo& first = *parts.front().info;
  TensorInfo whole = first;
  whole.size_bytes = 0;
  int64_t rows = 0;
  for (Part& part : parts) {
    const bool fits =
        part.info->dtype == first.dtype && part.info->shape.size() == first.shape.size() &&
        RowBytes(*part.info) == RowBytes(first) &&
        (first.shape.empty() || std::equal(first.shape.begin() + 1, first.shape.end(), part.info->shape.begin() + 1));
    if (!fits || part.offset_bytes != rows || (first.shape.empty() && parts.size() > 1)) {
      return Invalid(part.file->path(),
                     absl::StrCat("tensor ", NameText(name), ": want rows from ", rows, " on, as in ",
                                  parts.front().file->path(), ", got rows from ", part.offset_bytes, " on"));
    }
    part.offset_bytes = whole.size_bytes;
    whole.size_bytes += part.info->size_bytes;
    if (!first.shape.empty()) rows += part.info->shape[0];
  }
  if (!whole.shape.empty()) whole.shape[0] = rows;
  const TensorInfo& info = joined_[name] = std::move(whole);
  tensors_[name] = {parts.front().file, &info, std::move(parts)};
  return absl::OkStatus();
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
  return TakeWeightMap(*weight_map);
}

absl::Status Checkpoint::TakeWeightMap(const WeightMap& weight_map) {
  std::vector<std::string> left_out;
  for (const SafetensorsFile& file : files_) {
    for (const TensorInfo& info : file.tensors()) {
      const auto named = weight_map.find(info.name);
      if (named == weight_map.end()) {
        left_out.push_back(info.name);
      } else if (named->second == file.path()) {
        tensors_[info.name] = {&file, &info, {{&file, &info, 0}}};
      } else {
        return Invalid(index_path_, absl::StrCat("tensor ", NameText(info.name), ": want it in one file, got it in ",
                                                 named->second, " and ", file.path()));
      }
    }
  }
  for (const auto& [name, path] : weight_map) {
    if (tensors_.count(name) != 0) continue;
    return Invalid(index_path_,
                   absl::StrCat("tensor ", NameText(name), " not found in ", path, ", which the index names for it"));
  }
  if (left_out.empty()) return absl::OkStatus();
  notes_.push_back(absl::StrCat(index_path_, " does not name ", left_out.size(),
                                left_out.size() == 1 ? " tensor of its files: " : " tensors of its files, the first ",
                                NameText(left_out.front())));
  return absl::OkStatus();
}

std::string SerializeIndex(const WeightMap& weight_map, int64_t total_bytes) {
  const nlohmann::ordered_json index = {{"metadata", {{"total_size", total_bytes}}}, {"weight_map", weight_map}};
  return index.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace paramshard::safetensors
