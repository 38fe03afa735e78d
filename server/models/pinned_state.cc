#include "server/models/pinned_state.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/models/model.h"

namespace paramshard::server {

absl::StatusOr<PinnedState> PinnedState::Of(const Model& model, absl::string_view operation) {
  ASSIGN_OR_RETURN(const StateSnapshot state, model.state().Look(operation));
  return PinnedState(std::string(operation), model.spec().name, state.numbers, state.generation);
}

absl::Status PinnedState::Check(const Shard& shard) const {
  if (shard.generation() != generation_) {
    return absl::AbortedError(
        absl::StrCat(operation_, " ", model_, ": an import has begun to replace the state; ", operation_, " again"));
  }
  if (shard.version() != numbers_.version) {
    return absl::AbortedError(absl::StrCat(operation_, " ", model_, ": want version ", numbers_.version,
                                           " throughout, got ", shard.version(), "; ", operation_, " again"));
  }
  return absl::OkStatus();
}

}  // namespace paramshard::server
