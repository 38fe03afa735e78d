// A matrix and its planes as .npy files.
//
// A plane's directory holds these files, as far as the format has them; the matrix is M x K:
//
//   row_data.npy     the row-wise plane: <f4, <u2 or |u1 [M, K]; of NVFP4_2D |u1 [M, ceil(K/2)]
//   row_scale.npy    its scales where they are bytes: |u1, one for each block, edge blocks included
//   col_data.npy     the column-wise plane [M, K], not transposed, and
//   col_scale.npy    its scales
//   scale_inv.npy    scales that are float32: <f4, one for each block, or [1]
//   amax.npy         the largest magnitude of the tensor, where a scale follows from it: <f4 [1]
//   dequantized.npy  the decoded row-wise plane: <f4 [M, K]; written, not read
#ifndef PARAMSHARD_CLIENT_CTL_CODEC_FILES_H_
#define PARAMSHARD_CLIENT_CTL_CODEC_FILES_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "kernels/formats/format_id.h"

namespace paramshard::ctl {

// Encodes the float32 array of `input`, seen as a matrix of rows of its last dimension (a scalar is 1 x 1), into the
// directory `output`, which is created if need be; files of these names that it holds are removed first.
// FP8_TENSOR_DELAYED multiplies by `delayed_scale`. INVALID_ARGUMENT for an impossible encoding, another
// dtype, an array without elements, or a malformed file; NOT_FOUND.
absl::Status EncodeFile(const Encoding& encoding, const std::string& input, const std::string& output,
                        float delayed_scale = 1.0f);

// Decodes one plane of the directory `input` into the float32 file `output` [M, K]. `columns` is K, which data of
// NVFP4_2D leaves open: unset, it is even. Errors as above; INVALID_ARGUMENT also for a plane that the format lacks,
// or files that do not fit together.
absl::Status DecodeFiles(const Encoding& encoding, Plane plane, const std::string& input, const std::string& output,
                         std::optional<int64_t> columns = std::nullopt);

}  // namespace paramshard::ctl

#endif  // PARAMSHARD_CLIENT_CTL_CODEC_FILES_H_
