// Comparison of the ranks' commands where the n-th commands of all ranks must be equal.
#ifndef PARAMSHARD_SERVER_TRAINING_EQUAL_COMMANDS_H_
#define PARAMSHARD_SERVER_TRAINING_EQUAL_COMMANDS_H_

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/model/model_spec.h"
#include "paramshard/v1/trainer.pb.h"
#include "server/base/clock.h"
#include "server/training/sent_command.h"

namespace paramshard::server {

// Engines between daemons move bytes only if all ranks make the same calls in the same order. Not thread-safe.
class EqualCommands {
 public:
  struct Command {
    v1::Command command;
    std::string canonical;
    int first_rank = 0;
    int arrived = 0;
    SteadyTime first_arrival;
  };

  // `spec` outlives this. `first_rank`: of the world, for messages.
  EqualCommands(const ModelSpec& spec, int ranks, int first_rank)
      : spec_(spec), ranks_(ranks), first_rank_(first_rank) {}

  // Takes a rank's command `number`. FAILED_PRECONDITION another rank has sent a different one; names both and says what
  // to do.
  absl::Status Add(int rank, const SentCommand& sent, SteadyTime now);
  // Returns the command that all ranks have sent with the last Add, and forgets it; nothing if there is none.
  std::optional<Command> TakeAgreed();

  // Returns the first command that some ranks have sent, and others have not; null without one.
  const Command* FirstMissing() const { return commands_.empty() ? nullptr : &commands_.front(); }

 private:
  const ModelSpec& spec_;
  const int ranks_;
  const int first_rank_;
  std::deque<Command> commands_;
  int64_t first_number_ = 1;  // of commands_.front()
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_TRAINING_EQUAL_COMMANDS_H_
