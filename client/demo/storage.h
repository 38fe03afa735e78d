// Storage types of a trained model, and the flags that choose them.
#ifndef PARAMSHARD_CLIENT_DEMO_STORAGE_H_
#define PARAMSHARD_CLIENT_DEMO_STORAGE_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/client.h"

namespace CLI {
class App;
}

namespace paramshard::demo {

// Types of matrices. Vectors (gains and biases) are always FP32. Moments have the same type for both.
struct Storage {
  std::vector<FormatRule> rules = {{.pattern = "*", .encoding = {.format = Format::kMXFP8}}};  // for matrices
  MomentType exp_avg = MomentType::kFP32;
  MomentType exp_avg_sq = MomentType::kFP32;
  GradientType accumulators = GradientType::kFP32;
};

// The flags as a user types them.
struct StorageFlags {
  std::string format = "MXFP8";
  std::string element = {};             // empty: as the format has it
  std::string master = {};              // empty: FP32
  std::vector<std::string> rules = {};  // "PATTERN=FORMAT": exceptions from `format`
  std::string moments = "FP32";
  std::string exp_avg = {};     // empty: as `moments`
  std::string exp_avg_sq = {};  // empty: as `moments`
  std::string accumulators = "FP32";
};

// The app refers to `flags`, which outlive it.
void AddStorageFlags(CLI::App& app, StorageFlags& flags);

// INVALID_ARGUMENT for an unknown name. The daemon rejects combinations that do not work.
absl::StatusOr<Storage> ParseStorage(const StorageFlags& flags);

// Returns the same choices as arguments for another program.
std::vector<std::string> ToArguments(const StorageFlags& flags);

// Applies the storage to the model.
void SetStorage(const Storage& storage, ModelSpec& model);

}  // namespace paramshard::demo

#endif  // PARAMSHARD_CLIENT_DEMO_STORAGE_H_
