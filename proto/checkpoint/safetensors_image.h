// Small safetensors files in memory.
#ifndef PARAMSHARD_PROTO_CHECKPOINT_SAFETENSORS_IMAGE_H_
#define PARAMSHARD_PROTO_CHECKPOINT_SAFETENSORS_IMAGE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/safetensors/header.h"

namespace paramshard::checkpoint {

// Puts a file together out of lists of numbers, each a tensor of one dimension. Lists without elements are left out.
class SafetensorsImage {
 public:
  // `Value` is what the dtype stores.
  template <typename Value>
  void Add(std::string key, safetensors::Dtype dtype, const std::vector<Value>& values) {
    const auto* const bytes = reinterpret_cast<const char*>(values.data());
    AddBytes(std::move(key), dtype, static_cast<int64_t>(values.size()), {bytes, values.size() * sizeof(Value)});
  }

  // Returns an upper bound of the header's bytes.
  int64_t max_header_bytes() const { return max_header_bytes_; }

  // The file: tensors with the largest elements first, with the metadata of every file of a checkpoint.
  std::string Bytes() const;

 private:
  struct Tensor {
    safetensors::TensorInfo info;
    std::string bytes;
  };

  void AddBytes(std::string key, safetensors::Dtype dtype, int64_t count, absl::string_view bytes);

  std::vector<Tensor> tensors_;
  int64_t max_header_bytes_ = 0;
};

// A file in memory, checked. `data` and the tensors' offsets begin behind the header.
struct ParsedImage {
  safetensors::Header header;
  int64_t header_bytes = 0;  // its length included
  absl::string_view data;
};

// Errors of safetensors::ParseHeader, and those of files that are too short.
absl::StatusOr<ParsedImage> ParseImage(absl::string_view bytes);

}  // namespace paramshard::checkpoint

#endif  // PARAMSHARD_PROTO_CHECKPOINT_SAFETENSORS_IMAGE_H_
