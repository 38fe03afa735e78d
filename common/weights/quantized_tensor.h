// A quantized tensor in a safetensors file: the tensors that represent it, and its entry in the file's metadata.
//
// NAME is the tensor's name and M x K its matrix (rows of the last dimension). A scale multiplies a code to decode it:
//
// | format             | tensors                                                                                |
// | ------------------ | -------------------------------------------------------------------------------------- |
// | FP32, BF16, FP16   | NAME F32, BF16, F16                                                                    |
// | FP8_TENSOR_CURRENT | NAME F8_E4M3 or F8_E5M2, NAME_scale F32 [1]                                            |
// | FP8_BLOCK_128X128  | NAME F8, NAME_scale_inv F32 [ceil(M/128), ceil(K/128)]                                 |
// | MXFP8              | NAME F8, NAME_scale U8 (E8M0) [M, ceil(K/32)]; with columns NAME_column,               |
// |                    | NAME_column_scale U8 [ceil(M/32), K]                                                   |
// | MXFP8_2D           | NAME F8, NAME_scale U8 (E8M0) [ceil(M/32), ceil(K/32)]                                 |
// | NVFP4_2D           | NAME_packed U8 [.., ceil(K/2)], NAME_scale F8_E4M3 [ceil(M/16), ceil(K/16)],           |
// |                    | NAME_amax F32 [1]                                                                      |
//
// See docs/operate/convert.md, also for the names that other programs know.
#ifndef PARAMSHARD_COMMON_WEIGHTS_QUANTIZED_TENSOR_H_
#define PARAMSHARD_COMMON_WEIGHTS_QUANTIZED_TENSOR_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/safetensors/safetensors_writer.h"
#include "kernels/formats/format_id.h"

namespace paramshard::weights {

// Returns true for the formats of plain numbers: FP32, BF16, FP16.
bool IsPlain(Format format);

// Returns the format of plain numbers of a dtype: F32, BF16 or F16; else nullopt.
std::optional<Format> PlainFormatOf(safetensors::Dtype dtype);

// Checks that tensors in files can have this encoding. Errors of CheckEncodable; INVALID_ARGUMENT for
// FP8_TENSOR_DELAYED.
absl::Status CheckFileEncoding(const Encoding& encoding);

struct QuantizedTensor {
  std::string name;
  std::vector<int64_t> shape;  // of the decoded values; at least one element
  Encoding encoding;
  bool has_columns = false;  // MXFP8: the column-wise plane is in the file too
};

// Returns [product of all dimensions but the last, last dimension]; a scalar is 1 x 1.
MatrixShape MatrixOf(absl::Span<const int64_t> shape);

// The parts of a quantized tensor; each is a tensor of the file.
enum class Part : uint8_t { kData, kScales, kAmax, kColumnData, kColumnScales };

struct PartTensor {
  Part part;
  safetensors::SafetensorsWriter::Tensor tensor;
};

// Returns the tensors that represent a quantized tensor, its data first.
std::vector<PartTensor> PartTensors(const QuantizedTensor& tensor);

// Rows [begin, end) of a matrix. `begin` is a multiple of GranuleRows().
struct RowBand {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
};

struct ByteRange {
  int64_t begin = 0;
  int64_t size = 0;
};

// Returns the place of the band's bytes in a part: all of it for a part of the whole tensor.
ByteRange BandBytes(const QuantizedTensor& tensor, Part part, RowBand band);

// Returns true for a part of the whole tensor: the same for each of its rows.
bool IsOfWholeTensor(const QuantizedTensor& tensor, Part part);

// Convert to and from the text of kEncodingsKey: a JSON object by name. ParseEncodings returns INVALID_ARGUMENT for any
// other text, and errors of CheckFileEncoding.
std::string SerializeEncodings(const std::vector<QuantizedTensor>& tensors);
absl::StatusOr<std::vector<QuantizedTensor>> ParseEncodings(absl::string_view text);

}  // namespace paramshard::weights

#endif  // PARAMSHARD_COMMON_WEIGHTS_QUANTIZED_TENSOR_H_
