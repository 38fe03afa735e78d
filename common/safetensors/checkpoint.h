// Checkpoint of one or several safetensors files.
#ifndef PARAMSHARD_COMMON_SAFETENSORS_CHECKPOINT_H_
#define PARAMSHARD_COMMON_SAFETENSORS_CHECKPOINT_H_

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/safetensors/safetensors_file.h"

namespace paramshard::safetensors {

// HuggingFace's names for the file of a checkpoint with one file, and for the index of several files.
inline constexpr char kModelFileName[] = "model.safetensors";
inline constexpr char kIndexFileName[] = "model.safetensors.index.json";

// The open files of a checkpoint, and every tensor by its name. An index is a JSON object whose "weight_map" gives the
// file of each tensor, relative to the index. Without an index tensors may be sharded: cut over several files on their
// first dimension, as torch.distributed.checkpoint's HuggingFaceStorageWriter(save_distributed=True) writes them.
// Movable; thread-safe.
class Checkpoint {
 public:
  // Opens a .safetensors file; an index (a name that ends in ".json"); or a folder, in which it reads the files that
  // transformers reads: model.safetensors, or else model.safetensors.index.json. In a folder with neither it reads one
  // .safetensors file, or several with sharding_info.h's metadata; consolidated*.safetensors, adapter*.safetensors and
  // optimizer*.safetensors are ignored beside others. notes() says what was left out, and names a file that is not
  // called model.safetensors.
  //
  // Errors of SafetensorsFile::Open. INVALID_ARGUMENT also for an index that is not such an object, or names a tensor
  // twice, a file outside its folder, or a tensor that its file lacks or two files hold; for a folder without files,
  // with pytorch_model.bin or its index beside others, with several files without metadata of their parts, or with
  // fewer files than a name counts ("-of-00003"); for a file with a part of a tensor, opened without the other parts;
  // for parts that are cut on a dimension other than the first, leave a hole or overlap. Links are followed.
  static absl::StatusOr<Checkpoint> Open(const std::string& path);

  struct Part {
    const SafetensorsFile* file = nullptr;
    const TensorInfo* info = nullptr;  // in that file
    int64_t offset_bytes = 0;          // in the whole tensor
  };
  struct Tensor {
    const SafetensorsFile* file = nullptr;  // with its first part
    const TensorInfo* info = nullptr;       // of the whole; offset_bytes is valid only if there is one part
    std::vector<Part> parts = {};           // in order

    // Reads from the whole tensor. Errors of SafetensorsFile::Read.
    absl::Status Read(int64_t offset_bytes, absl::Span<uint8_t> out) const;
  };
  const std::map<std::string, Tensor, std::less<>>& tensors() const { return tensors_; }
  // Returns null if there is no such tensor.
  const Tensor* Find(absl::string_view name) const;

  // The files, in the order of their names.
  const std::vector<SafetensorsFile>& files() const { return files_; }
  // Returns the file's tensors that belong to the checkpoint, in the order of their data: an index may leave some out.
  // Requires a checkpoint that is not sharded.
  std::vector<const TensorInfo*> TensorsOf(const SafetensorsFile& file) const;
  // Notes for the user: files of the folder that were ignored in favor of others, tensors that the index does not name.
  const std::vector<std::string>& notes() const { return notes_; }
  // Empty without an index.
  const std::string& index_path() const { return index_path_; }
  // Returns true if tensors are joined from parts in several files: then no single file has all names.
  bool is_sharded() const { return is_sharded_; }

 private:
  absl::Status OpenFile(const std::string& path);
  absl::Status OpenIndex(const std::string& path);
  absl::Status OpenShards(const std::vector<std::string>& paths);
  absl::Status OpenFolder(const std::string& folder);
  absl::Status OpenWhole(const std::string& path);
  absl::Status TakeWeightMap(const std::map<std::string, std::string>& weight_map);
  absl::Status CheckWhole() const;
  absl::Status JoinShards();
  absl::Status JoinParts(const std::string& name, std::vector<Part> parts);

  std::vector<SafetensorsFile> files_;
  std::map<std::string, Tensor, std::less<>> tensors_;
  std::map<std::string, TensorInfo, std::less<>> joined_;  // of tensors of several parts
  std::string index_path_;
  std::vector<std::string> notes_;
  bool is_sharded_ = false;
};

// Returns the text of an index. `weight_map` has the file of each tensor, relative to the index.
std::string SerializeIndex(const std::map<std::string, std::string>& weight_map, int64_t total_bytes);

}  // namespace paramshard::safetensors

#endif  // PARAMSHARD_COMMON_SAFETENSORS_CHECKPOINT_H_
