// Checking a checkpoint whole, without a daemon.
#ifndef PARAMSHARD_PROTO_CHECKPOINT_VERIFICATION_H_
#define PARAMSHARD_PROTO_CHECKPOINT_VERIFICATION_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "proto/checkpoint/damage.h"
#include "proto/checkpoint/manifest.h"
#include "proto/checkpoint/reader.h"

namespace paramshard::checkpoint {

struct Verification {
  // What is wrong, in the order in which it was found, without rows that follow each other.
  std::vector<Damage> damages = {};
  std::optional<Manifest> manifest = {};  // unset where it cannot be read
  int64_t tensor_count = 0;
  int64_t read_bytes = 0;  // of tensors

  bool ok() const { return damages.empty(); }
};

// Reads every byte of a checkpoint once (those of masters with remainders twice: for their content hash) and compares
// all hashes. `progress` is told the bytes of tensors that were read, and all of them.
Verification VerifyCheckpoint(const std::string& folder, const Reader::Options& options,
                              absl::FunctionRef<void(int64_t done_bytes, int64_t all_bytes)> progress);

}  // namespace paramshard::checkpoint

#endif  // PARAMSHARD_PROTO_CHECKPOINT_VERIFICATION_H_
