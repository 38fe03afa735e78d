// Offline export of checkpoints to folders that transformers opens.
#ifndef PARAMSHARD_CLIENT_CTL_HUGGING_FACE_EXPORT_H_
#define PARAMSHARD_CLIENT_CTL_HUGGING_FACE_EXPORT_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/safetensors/dtype.h"

namespace paramshard::ctl {

struct HuggingFaceExportOptions {
  std::string checkpoint;  // its folder
  // A folder with config.json and weights: the pattern of the export.
  std::string like;
  // F32, BF16 or F16, for all tensors; unset: the types in `like`, and BF16 for tensors that are quantized there.
  std::optional<safetensors::Dtype> dtype;
  // Path of the rules, a file of ConversionRules; empty: none. The first rule that matches a tensor's name gives its
  // type: FP32, BF16 or FP16, or KEEP for the type in `like`. Each rule must match a tensor.
  std::string rules_path;
  std::string out;  // a folder that does not exist yet
};

struct HuggingFaceExportReport {
  std::string model;
  int64_t step = 0;
  int64_t tensor_count = 0;
  int64_t size_bytes = 0;                  // of the tensors
  std::vector<std::string> weight_files;   // relative to the folder
  std::vector<std::string> carried_files;  // config, tokenizer and the like
  std::vector<std::string> tied_tensors;   // tied parameters that were left out
  std::vector<std::string> notes;          // for the user: parts of `like` that were not used
};

// Called with tensors' bytes written and to be written, and the tensor at hand.
using HuggingFaceExportProgress = std::function<void(int64_t done_bytes, int64_t all_bytes, absl::string_view tensor)>;

// Writes masters, joined to fp32 and rounded to the tensors' types, under the names of `like` and into files of the
// same names. Frozen parameters without a master are decoded from their row-wise planes. Text files beside the weights
// of `like` are copied: config.json (with the requested dtype and without quantization_config), tokenizers and code,
// but no files of adapters, of other weights or of their quantization. In a model that ties its embeddings
// (tie_word_embeddings) a tensor of `like` without a parameter of its name takes the values of the tied parameter.
// Rows are read and written a few at a time, and checked against their checksums.
//
// The folder appears when all of it is on the disk. After an error nothing is left of it; a killed process leaves
// OUT.tmp-PID.
//
// Errors of checkpoint::Reader and weights::Weights. ALREADY_EXISTS for an existing `out`. NOT_FOUND naming the
// first tensor of `like` that the checkpoint lacks, or without a config.json. INVALID_ARGUMENT naming a tensor of
// another shape, or of a type that masters cannot be rounded to; the line of a rule that is malformed, or matches no
// tensor; or a parameter that `like` lacks, unless config.json has tie_word_embeddings and the parameter's master
// equals, byte for byte, the master of an exported parameter.
absl::StatusOr<HuggingFaceExportReport> ExportToHuggingFace(const HuggingFaceExportOptions& options,
                                                            const HuggingFaceExportProgress& progress);

}  // namespace paramshard::ctl

#endif  // PARAMSHARD_CLIENT_CTL_HUGGING_FACE_EXPORT_H_
