// Offline conversion of checkpoints from plain numbers to quantized ones, and back.
#ifndef PARAMSHARD_CLIENT_CTL_CONVERSION_H_
#define PARAMSHARD_CLIENT_CTL_CONVERSION_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/ctl/encoding_error.h"
#include "common/weights/quantized_tensor.h"
#include "kernels/formats/format_id.h"

namespace paramshard::ctl {

struct ConversionOptions {
  // A path that Checkpoint::Open takes.
  std::string input;
  // A path that ends in ".safetensors" is one file, for the tensors of all input files. Any other is a folder, created
  // if need be, for files of the input's names, and an index if the input has one.
  std::string output;
  // Encoding of tensors of at least two dimensions that no rule matches; none: they are copied unchanged.
  std::optional<Encoding> encoding;
  // A file of ConversionRules; empty: none.
  std::string rules_path;
  // Keep the column-wise planes of MXFP8.
  bool has_columns = false;
  // Decode quantized tensors instead, as weights::Weights does, to FP32, BF16 or FP16.
  std::optional<Format> dequantized_format;
};

struct ConvertedTensor {
  weights::QuantizedTensor tensor;  // with its encoding in the output, or in the input
  std::string foreign_format;       // another program's encoding that was decoded; else empty
  int64_t source_bytes = 0;
  int64_t bytes = 0;    // of all its parts
  EncodingError error;  // of encoding; empty after decoding
};

struct ConversionReport {
  std::vector<ConvertedTensor> tensors;  // encoded or decoded tensors, in order
  int64_t carried_count = 0;
  int64_t source_bytes = 0;  // of all tensors
  int64_t bytes = 0;
  std::vector<std::string> notes;  // for the user: files not read, tensors not converted, changes of config.json
};

// Called with bytes read and to be read, and the tensor at hand.
using ConversionProgress = std::function<void(int64_t done_bytes, int64_t all_bytes, absl::string_view tensor)>;

// Converts a checkpoint. Where config.json lies beside the output, or beside the input of an output folder, it writes a
// config.json with which transformers decodes the output, or refuses to open it. For FP8_BLOCK_128X128 of E4M3 some
// matrices stay unchanged and are listed in modules_to_not_convert: matrices whose names are not linear layers', unless
// a rule says otherwise, and matrices with rows or columns that are not a multiple of 128. Options and rules choose the
// encoding of F32, BF16 and F16 tensors; other and empty tensors are copied unchanged. Files are read and written in
// bands of rows: memory does not grow with the files, but with one granule of rows. Each output file is renamed to its
// name when it is complete, an index last.
//
// Errors of Checkpoint::Open, ConversionRules and SafetensorsWriter. INVALID_ARGUMENT also: a file whose values are
// quantized already (to encode) or not quantized (to decode), tensors of it that do not fit their encodings, a part's
// name that another tensor has, an output that is an input; beside a config.json, a rule for a matrix that
// transformers would decode with blocks of another size. ALREADY_EXISTS naming weights in an output folder that would
// not be replaced.
absl::StatusOr<ConversionReport> Convert(const ConversionOptions& options, const ConversionProgress& progress);

}  // namespace paramshard::ctl

#endif  // PARAMSHARD_CLIENT_CTL_CONVERSION_H_
