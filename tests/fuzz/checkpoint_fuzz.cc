// The reader of checkpoints' indices: the bytes are an index beside one.safetensors (tensors a, b), two.safetensors (c,
// weight_map) and part/three.safetensors (metadata). An index that the reader accepts must be consistent: files of this
// folder, each once, with exactly their tensors, and an index that is the same after it was written and read again.

#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/safetensors/checkpoint.h"
#include "kernels/base/check.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/memory_file.h"
#include "tests/support/temporary_directory.h"

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
    fs::create_directory(path_ / "part");
    for (const auto& [name, tensors] : Files()) WriteTensors(path_ / name, tensors);
    fs::create_symlink(index_.path(), path_ / kIndexFileName);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  absl::StatusOr<Checkpoint> OpenIndex(const std::string& text) const {
    index_.Write(text);
    return Checkpoint::Open((path_ / kIndexFileName).string());
  }
  // A file's name in an index.
  std::string NameOf(const SafetensorsFile& file) const {
    return fs::path(file.path()).lexically_relative(path_).string();
  }

 private:
  const test::TemporaryDirectory folder_;
  const fs::path path_ = folder_.path();
  const MemoryFile index_;
};

void CheckFiles(const Folder& folder, const Checkpoint& checkpoint) {
  std::set<std::string> names;
  size_t tensors = 0;
  for (const SafetensorsFile& file : checkpoint.files()) {
    const auto found = Files().find(folder.NameOf(file));
    PARAMSHARD_CHECK(found != Files().end());
    PARAMSHARD_CHECK(names.insert(found->first).second);
    // An index may leave out tensors of its files.
    const std::vector<const TensorInfo*> infos = checkpoint.TensorsOf(file);
    tensors += infos.size();
    for (const TensorInfo* info : infos) {
      const auto& in_file = found->second;
      PARAMSHARD_CHECK(std::find(in_file.begin(), in_file.end(), info->name) != in_file.end());
      const Checkpoint::Tensor* const tensor = checkpoint.Find(info->name);
      PARAMSHARD_CHECK(tensor != nullptr && tensor->file == &file && tensor->info->name == info->name);
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

void Run(const std::string& input) {
  static const Folder folder;
  const auto checkpoint = folder.OpenIndex(input);
  if (!checkpoint.ok()) return;
  CheckFiles(folder, *checkpoint);
  CheckRoundTrip(folder, *checkpoint);
}

}  // namespace
}  // namespace paramshard::safetensors

const paramshard::FuzzTarget& paramshard::Target() {
  static const auto* const target = new FuzzTarget{
      .seeds =
          {
              R"({"weight_map":{}})",
              R"({"weight_map":{"a":"one.safetensors","b":"one.safetensors"}})",
              R"({"metadata":{"total_size":3},"weight_map":{"c":"two.safetensors","weight_map":"two.safetensors",)"
              R"("metadata":"part/three.safetensors"}})",
              R"({"weight_map":{"metadata":"./part//three.safetensors"},)"
              R"("metadata":{"weight_map":{"a":[[{"a":null}]]}}})",
              R"({"weight_map":{"a":"../one.safetensors","b":"/one.safetensors"},)"
              R"("weight_map":{"\u0061":"one.safetensors\u0000"}})",
          },
      .words = {"{", "}", "[", "]", ",", ":", "\"", "/", "..", "1e999", "\\u0000", "\\ud800", "null",
                "\"a\":\"one.safetensors\"", "\"b\":\"one.safetensors\"", "\"c\":\"two.safetensors\"",
                "\"weight_map\":", "\"metadata\":", "one.safetensors"},
      .run = safetensors::Run};
  return *target;
}
