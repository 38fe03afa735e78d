// How a trained model is stored: the choices of a user, as flags of a program.
#ifndef PARAMSHARD_CLIENT_EXAMPLES_STORAGE_H_
#define PARAMSHARD_CLIENT_EXAMPLES_STORAGE_H_

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/client.h"

namespace paramshard::examples {

// Of matrices; vectors, which are gains and biases, are FP32. The optimizer's moments are alike for both.
struct Storage {
  Encoding encoding{.format = Format::kMXFP8};
  MomentType exp_avg = MomentType::kFP32;
  MomentType exp_avg_sq = MomentType::kFP32;
};

// What a user types.
struct StorageFlags {
  std::string format = "MXFP8";
  std::string element = {};  // empty: E2M1 for NVFP4_2D, else E4M3
  std::string moments = "FP32";
  std::string exp_avg = {};     // empty: as `moments`
  std::string exp_avg_sq = {};  // empty: as `moments`
};

// The flags refer to `flags`, which outlives the app.
void AddStorageFlags(CLI::App& app, StorageFlags& flags);

// INVALID_ARGUMENT for a name that is none. What cannot be combined is for the daemon to say.
absl::StatusOr<Storage> ParseStorage(const StorageFlags& flags);

// The same choices as arguments for another program.
std::vector<std::string> ToArguments(const StorageFlags& flags);

// Sets them in every parameter of the units.
void SetStorage(const Storage& storage, std::vector<UnitSpec>& units);

}  // namespace paramshard::examples

#endif  // PARAMSHARD_CLIENT_EXAMPLES_STORAGE_H_
