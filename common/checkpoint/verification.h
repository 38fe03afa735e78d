// Verification of a whole checkpoint, without a daemon.
#ifndef PARAMSHARD_COMMON_CHECKPOINT_VERIFICATION_H_
#define PARAMSHARD_COMMON_CHECKPOINT_VERIFICATION_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "common/checkpoint/damage.h"
#include "common/checkpoint/manifest.h"
#include "common/checkpoint/reader.h"

namespace paramshard::checkpoint {

struct Verification {
  // Faults in the order in which they were found. Consecutive damaged rows are one fault.
  std::vector<Damage> damages = {};
  std::optional<Manifest> manifest = {};  // unset where it cannot be read
  int64_t tensor_count = 0;
  int64_t read_bytes = 0;  // of tensors

  bool ok() const { return damages.empty(); }
};

// Reads every byte of a checkpoint once (masters with remainders twice, for their content hash) and compares all
// hashes. Calls `progress` with the bytes of tensors read so far and in total.
Verification VerifyCheckpoint(const std::string& folder, const Reader::Options& options,
                              absl::FunctionRef<void(int64_t done_bytes, int64_t all_bytes)> progress);

}  // namespace paramshard::checkpoint

#endif  // PARAMSHARD_COMMON_CHECKPOINT_VERIFICATION_H_
