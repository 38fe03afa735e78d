// A checkpoint of one or several safetensors files.
#ifndef PARAMSHARD_PROTO_SAFETENSORS_CHECKPOINT_H_
#define PARAMSHARD_PROTO_SAFETENSORS_CHECKPOINT_H_

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/safetensors/safetensors_file.h"

namespace paramshard::safetensors {

// HuggingFace's name for it.
inline constexpr char kIndexFileName[] = "model.safetensors.index.json";

// The files of a checkpoint, open, and every tensor by its name. An index is a JSON object whose "weight_map" gives the
// file of each tensor, relative to the index. Movable; thread-safe.
class Checkpoint {
 public:
  // Opens a .safetensors file; an index (a name that ends in ".json"); or a folder that holds
  // model.safetensors.index.json or else one .safetensors file. Errors as SafetensorsFile::Open; INVALID_ARGUMENT also
  // for an index that is no such object, names a tensor twice or a file outside its folder, or does not give the
  // tensors that its files hold, and for a folder with none or several files. A link is followed wherever it points.
  static absl::StatusOr<Checkpoint> Open(const std::string& path);

  struct Tensor {
    const SafetensorsFile* file = nullptr;
    const TensorInfo* info = nullptr;
  };
  const std::map<std::string, Tensor, std::less<>>& tensors() const { return tensors_; }
  // Null when there is none.
  const Tensor* Find(absl::string_view name) const;

  // The files, in the order of their names.
  const std::vector<SafetensorsFile>& files() const { return files_; }
  // Empty without an index.
  const std::string& index_path() const { return index_path_; }

 private:
  absl::Status OpenFile(const std::string& path);
  absl::Status OpenIndex(const std::string& path);
  absl::Status CheckWeightMap(const std::map<std::string, std::string>& weight_map) const;

  std::vector<SafetensorsFile> files_;
  std::map<std::string, Tensor, std::less<>> tensors_;
  std::string index_path_;
};

// The text of an index: names of files, relative to it, by tensor.
std::string SerializeIndex(const std::map<std::string, std::string>& weight_map, int64_t total_bytes);

}  // namespace paramshard::safetensors

#endif  // PARAMSHARD_PROTO_SAFETENSORS_CHECKPOINT_H_
