// Small safetensors files in memory.
#ifndef PARAMSHARD_COMMON_CHECKPOINT_SAFETENSORS_IMAGE_H_
#define PARAMSHARD_COMMON_CHECKPOINT_SAFETENSORS_IMAGE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/safetensors/header.h"

namespace paramshard::checkpoint {

// Builds a file from lists of numbers, each a tensor of one dimension. Lists without elements are left out.
class SafetensorsImage {
 public:
  // `Value` is the C++ type of the dtype.
  template <typename Value>
  void Add(std::string key, safetensors::Dtype dtype, const std::vector<Value>& values) {
    const auto* const bytes = reinterpret_cast<const char*>(values.data());
    AddBytes(std::move(key), dtype, static_cast<int64_t>(values.size()), {bytes, values.size() * sizeof(Value)});
  }

  // Returns an upper bound of the header's bytes.
  int64_t max_header_bytes() const { return max_header_bytes_; }

  // Returns the file: tensors with the largest elements first, with the metadata that every file of a checkpoint has.
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

// A checked file in memory. `data` and the tensors' offsets begin behind the header.
struct ParsedImage {
  safetensors::Header header;
  int64_t header_bytes = 0;  // its length included
  absl::string_view data;
};

// Errors of safetensors::ParseHeader; DATA_LOSS for a file that is too short.
absl::StatusOr<ParsedImage> ParseImage(absl::string_view bytes);

}  // namespace paramshard::checkpoint

#endif  // PARAMSHARD_COMMON_CHECKPOINT_SAFETENSORS_IMAGE_H_
