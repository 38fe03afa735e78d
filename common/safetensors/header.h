// The header of a safetensors file.
//
// A file is: the header's length as 8 bytes, little-endian; the header, a JSON object that may be followed by spaces;
// the data of all tensors, little-endian, row-major, one after the other without holes. The header maps the name of
// each tensor to {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, with offsets from the start of the
// data, and the name "__metadata__", which may be missing, to an object of texts. The format is specified at
// https://huggingface.co/docs/safetensors; this parser refuses everything that its reference implementation refuses.
#ifndef PARAMSHARD_COMMON_SAFETENSORS_HEADER_H_
#define PARAMSHARD_COMMON_SAFETENSORS_HEADER_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/safetensors/dtype.h"

namespace paramshard::safetensors {

inline constexpr int64_t kLengthBytes = 8;
// Longest header, as in the reference implementation.
inline constexpr int64_t kMaxHeaderBytes = 100'000'000;

using Metadata = std::map<std::string, std::string>;

struct TensorInfo {
  std::string name;
  Dtype dtype = Dtype::kF32;
  std::vector<int64_t> shape;  // outermost dimension first; empty for a scalar
  int64_t offset_bytes = 0;    // from the start of the data
  int64_t size_bytes = 0;
};

struct Header {
  std::vector<TensorInfo> tensors;  // in the order of their data
  Metadata metadata;
};

// Parses the JSON of a file with `data_bytes` bytes of data. INVALID_ARGUMENT names the tensor: a text that is not such
// an object, an unknown dtype, a shape whose size does not fit or differs from its offsets, duplicate names or members,
// data that overlap or leave a hole. DATA_LOSS if the file ends before its tensors do, or after them.
absl::StatusOr<Header> ParseHeader(absl::string_view json, int64_t data_bytes);

// Returns length and JSON, padded with spaces so that the data begins at a multiple of 8, and not before `least_bytes`.
// Offsets and sizes are written as given; names must be UTF-8.
std::string SerializeHeader(const Header& header, int64_t least_bytes = 0);

// Returns where the data of a file begins, from its first kLengthBytes. INVALID_ARGUMENT for a header of more than
// kMaxHeaderBytes.
absl::StatusOr<int64_t> DataBegin(absl::string_view length);

// Returns a name in a form for messages: escaped, and at most a line long.
std::string NameText(absl::string_view name);

}  // namespace paramshard::safetensors

#endif  // PARAMSHARD_COMMON_SAFETENSORS_HEADER_H_
