// A trainer as a model sees it: who it is and how it is told things.
#ifndef PARAMSHARD_SERVER_STORE_TRAINER_H_
#define PARAMSHARD_SERVER_STORE_TRAINER_H_

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "paramshard/v1/trainer.pb.h"
#include "proto/wire/handoff.h"

namespace paramshard::server {

struct Trainer {
  int64_t session = 0;  // unique in the daemon
  int rank = 0;         // of the world
  int64_t pid = 0;
  int64_t uid = 0;
  absl::Time attached_at;

  // Passes [planes, slots, words] to the trainer's process. Does not wait for the trainer.
  std::function<absl::Status(const wire::HandoffMemory&, absl::Span<const int> fds)> send_memory;
  // Each called at most once, in this order, from a thread of the model. `on_ended` is the last call.
  std::function<void(const v1::EpochStarted&)> on_started;
  std::function<void(const v1::EpochEnded&)> on_ended;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_STORE_TRAINER_H_
