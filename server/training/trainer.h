// A trainer as a model sees it: its identity, and the calls that tell it things.
#ifndef PARAMSHARD_SERVER_TRAINING_TRAINER_H_
#define PARAMSHARD_SERVER_TRAINING_TRAINER_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/model/model_spec.h"
#include "common/shared_memory/companion_packet.h"
#include "server/terms/commit_log.h"

namespace paramshard::server {

// Data that a trainer is told when its epoch starts.
struct EpochStartInfo {
  int64_t epoch = 0;
  CommitLog::Numbers numbers;               // of the last commit answered
  std::string client_state;                 // what the rank sent with that commit
  std::optional<CommitAnswer> last_commit;  // its answer, where it is known
  const ModelSpec* spec = nullptr;          // valid while the model lives
  int shard_size = 0;
  uint64_t layout_fingerprint = 0;
  int world_size = 0;
  int active_rank = 0;        // among the ranks of the daemons that take part
  int active_world_size = 0;  // of those
  int group_rank = 0;
  bool client_lands_own_pieces = false;
  bool client_lands_own_gradients = false;
  std::string gpu_uuid;  // empty: planes and slots are host memory
};

// Data that a trainer is told when its epoch ends, or when none starts for it.
struct EpochEndInfo {
  std::optional<int64_t> epoch;  // unset: it waited for one
  CommitLog::Numbers numbers;    // of the last commit answered
  absl::Status why;
};

struct Trainer {
  int64_t session = 0;  // unique in the daemon
  int rank = 0;         // of the world
  int64_t pid = 0;
  int64_t uid = 0;
  absl::Time attached_at;

  // Passes [planes, slots, words] to the trainer's process. Does not wait for the trainer.
  std::function<absl::Status(const wire::CompanionMemory&, absl::Span<const int> fds)> send_memory;
  // Each called at most once, in this order, from a thread of the model. `on_ended` is the last call.
  std::function<void(const EpochStartInfo&)> on_started;
  std::function<void(const EpochEndInfo&)> on_ended;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_TRAINING_TRAINER_H_
