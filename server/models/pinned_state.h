// A state that a reader goes through extent by extent without holding back commits and imports.
#ifndef PARAMSHARD_SERVER_MODELS_PINNED_STATE_H_
#define PARAMSHARD_SERVER_MODELS_PINNED_STATE_H_

#include <cstdint>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/state/shard.h"
#include "server/terms/history.h"

namespace paramshard::server {

class Model;

//   ASSIGN_OR_RETURN(const PinnedState pinned, PinnedState::Of(model, "export"));
//   absl::ReaderMutexLock lock(&shard.mutex());
//   RETURN_IF_ERROR(pinned.Check(shard));
//   ... reads the shard ...
class PinnedState {
 public:
  // Pins the present state. `operation` begins the messages. Errors of ModelState::Look.
  static absl::StatusOr<PinnedState> Of(const Model& model, absl::string_view operation);

  // Pins a state that is known to be the model's.
  static PinnedState At(absl::string_view operation, absl::string_view model, const StateNumbers& numbers,
                        int64_t generation) {
    return PinnedState(std::string(operation), std::string(model), numbers, generation);
  }

  // Returns ABORTED if the shard's state has changed: a commit was applied, or an import has begun to replace it.
  absl::Status Check(const Shard& shard) const ABSL_SHARED_LOCKS_REQUIRED(shard.mutex());

  const StateNumbers& numbers() const { return numbers_; }

 private:
  PinnedState(std::string operation, std::string model, const StateNumbers& numbers, int64_t generation)
      : operation_(std::move(operation)), model_(std::move(model)), numbers_(numbers), generation_(generation) {}

  std::string operation_;
  std::string model_;
  StateNumbers numbers_;
  int64_t generation_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_MODELS_PINNED_STATE_H_
