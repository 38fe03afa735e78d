// A quantized tensor in a safetensors file: which tensors stand for it, and what the file's metadata say of it.
//
// NAME is the tensor's name, M x K its matrix (rows of the last dimension), and what multiplies a code to decode it a
// scale:
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
// docs/convert.md says more, and which of these names other programs know.
#ifndef PARAMSHARD_PROTO_WEIGHTS_QUANTIZED_TENSOR_H_
#define PARAMSHARD_PROTO_WEIGHTS_QUANTIZED_TENSOR_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/formats/format.h"
#include "proto/safetensors/safetensors_writer.h"

namespace paramshard::weights {

// Returns true for the formats of plain numbers, as a checkpoint has them: FP32, BF16, FP16.
bool IsPlain(Format format);

// The format of plain numbers of a dtype: of F32, BF16 and F16.
std::optional<Format> PlainFormatOf(safetensors::Dtype dtype);

// Ok when tensors in files can be of this encoding. Errors of CheckEncodable; INVALID_ARGUMENT for FP8_TENSOR_DELAYED.
absl::Status CheckFileEncoding(const Encoding& encoding);

struct QuantizedTensor {
  std::string name;
  std::vector<int64_t> shape;  // of the numbers, at least one of them
  Encoding encoding;
  bool has_columns = false;  // MXFP8: the column-wise plane is in the file too
};

// Rows of a dimension's product, and the last dimension; a scalar is 1 x 1.
MatrixShape MatrixOf(absl::Span<const int64_t> shape);

// The parts of a quantized tensor; each is a tensor of the file.
enum class Part : uint8_t { kData, kScales, kAmax, kColumnData, kColumnScales };

struct PartTensor {
  Part part;
  safetensors::SafetensorsWriter::Tensor tensor;
};

// The tensors that stand for it, its data first.
std::vector<PartTensor> PartTensors(const QuantizedTensor& tensor);

// Rows [begin, end) of a matrix. It begins at a multiple of GranuleRows().
struct RowBand {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
};

struct ByteRange {
  int64_t begin = 0;
  int64_t size = 0;
};

// The place of the band's bytes in a part, which is all of it where the part belongs to the whole tensor.
ByteRange BandBytes(const QuantizedTensor& tensor, Part part, RowBand band);

// Whether the part is of the whole tensor, the same for each of its rows.
bool IsOfWholeTensor(const QuantizedTensor& tensor, Part part);

// The text of kEncodingsKey: a JSON object by name. Its inverse gives INVALID_ARGUMENT for any other text, and errors
// of CheckFileEncoding.
std::string SerializeEncodings(const std::vector<QuantizedTensor>& tensors);
absl::StatusOr<std::vector<QuantizedTensor>> ParseEncodings(absl::string_view text);

}  // namespace paramshard::weights

#endif  // PARAMSHARD_PROTO_WEIGHTS_QUANTIZED_TENSOR_H_
