// One fault of a checkpoint, and its place.
#ifndef PARAMSHARD_COMMON_CHECKPOINT_DAMAGE_H_
#define PARAMSHARD_COMMON_CHECKPOINT_DAMAGE_H_

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "common/model/row_range.h"

namespace paramshard::checkpoint {

struct Damage {
  std::string file = {};              // its name in the folder
  std::string tensor = {};            // its key; empty: the file as a whole
  std::optional<RowRange> rows = {};  // of the whole tensor; unset: all of it
  // DATA_LOSS: bytes differ from what was saved. INVALID_ARGUMENT: not a checkpoint. NOT_FOUND: a file is missing.
  // PERMISSION_DENIED: a wrong owner or mode, or a file that cannot be opened.
  absl::StatusCode code = absl::StatusCode::kDataLoss;
  std::string message = {};  // "want ..., got ...", or a state

  // Returns "FOLDER/rank-00000-of-00002.safetensors: tensor master/w: rows [0, 128): ...".
  absl::Status ToStatus(const std::string& folder) const;
};

}  // namespace paramshard::checkpoint

#endif  // PARAMSHARD_COMMON_CHECKPOINT_DAMAGE_H_
