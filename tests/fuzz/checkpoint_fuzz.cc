#include "tests/fuzz/checkpoint_fuzz.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "kernels/base/check.h"
#include "proto/safetensors/checkpoint.h"

namespace paramshard::safetensors {
namespace {

namespace fs = std::filesystem;

// Files and their tensors, of one byte each.
const std::map<std::string, std::vector<std::string>>& Files() {
  static const auto* const files =
      new std::map<std::string, std::vector<std::string>>{{"one.safetensors", {"a", "b"}},
                                                          {"two.safetensors", {"c", "weight_map"}},
                                                          {"part/three.safetensors", {"metadata"}}};
  return *files;
}

void WriteText(const fs::path& path, absl::string_view text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  PARAMSHARD_CHECK(file.flush().good());
}

void WriteTensors(const fs::path& path, const std::vector<std::string>& names) {
  Header header;
  for (const std::string& name : names) {
    header.tensors.push_back({name, Dtype::kU8, {1}, static_cast<int64_t>(header.tensors.size()), 1});
  }
  WriteText(path, SerializeHeader(header) + std::string(names.size(), 'd'));
}

// The files in a folder of their own, with an index that is a link to memory.
class Folder {
 public:
  Folder() {
    std::string pattern = (fs::temp_directory_path() / "paramshard-fuzz-XXXXXX").string();
    PARAMSHARD_CHECK(mkdtemp(pattern.data()) != nullptr);
    path_ = pattern;
    fs::create_directory(path_ / "part");
    for (const auto& [name, tensors] : Files()) WriteTensors(path_ / name, tensors);
    PARAMSHARD_CHECK(index_ >= 0);
    fs::create_symlink(absl::StrCat("/proc/self/fd/", index_), path_ / kIndexFileName);
  }
  ~Folder() {
    fs::remove_all(path_);
    close(index_);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  absl::StatusOr<Checkpoint> OpenIndex(absl::string_view text) const {
    PARAMSHARD_CHECK(ftruncate(index_, 0) == 0);
    PARAMSHARD_CHECK(pwrite(index_, text.data(), text.size(), 0) == static_cast<ssize_t>(text.size()));
    return Checkpoint::Open((path_ / kIndexFileName).string());
  }
  // A file's name in an index.
  std::string NameOf(const SafetensorsFile& file) const {
    return fs::path(file.path()).lexically_relative(path_).string();
  }

 private:
  fs::path path_;
  const int index_ = memfd_create("index", MFD_CLOEXEC);
};

void CheckFiles(const Folder& folder, const Checkpoint& checkpoint) {
  std::set<std::string> names;
  size_t tensors = 0;
  for (const SafetensorsFile& file : checkpoint.files()) {
    const auto found = Files().find(folder.NameOf(file));
    PARAMSHARD_CHECK(found != Files().end());
    PARAMSHARD_CHECK(names.insert(found->first).second);
    tensors += found->second.size();
    for (const std::string& name : found->second) {
      const Checkpoint::Tensor* const tensor = checkpoint.Find(name);
      PARAMSHARD_CHECK(tensor != nullptr && tensor->file == &file && tensor->info->name == name);
    }
  }
  PARAMSHARD_CHECK(checkpoint.tensors().size() == tensors);
}

void CheckRoundTrip(const Folder& folder, const Checkpoint& checkpoint) {
  std::map<std::string, std::string> weight_map;
  for (const auto& [name, tensor] : checkpoint.tensors()) weight_map[name] = folder.NameOf(*tensor.file);
  const auto again = folder.OpenIndex(SerializeIndex(weight_map, /*total_bytes=*/0));
  PARAMSHARD_CHECK(again.ok());
  PARAMSHARD_CHECK(again->tensors().size() == weight_map.size());
  for (const auto& [name, file] : weight_map) PARAMSHARD_CHECK(folder.NameOf(*again->Find(name)->file) == file);
}

}  // namespace
}  // namespace paramshard::safetensors

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const paramshard::safetensors::Folder folder;
  const auto checkpoint = folder.OpenIndex({reinterpret_cast<const char*>(data), size});
  if (!checkpoint.ok()) return 0;
  paramshard::safetensors::CheckFiles(folder, *checkpoint);
  paramshard::safetensors::CheckRoundTrip(folder, *checkpoint);
  return 0;
}
