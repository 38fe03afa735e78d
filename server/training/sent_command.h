// A command as a rank sent it.
#ifndef PARAMSHARD_SERVER_TRAINING_SENT_COMMAND_H_
#define PARAMSHARD_SERVER_TRAINING_SENT_COMMAND_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "paramshard/v1/trainer.pb.h"

namespace paramshard::server {

// It is taken apart before any thread waits for it.
struct SentCommand {
  // A Command is sent as it is.
  SentCommand(v1::Command sent) : command(std::move(sent)) {  // NOLINT(google-explicit-constructor)
    if (command.has_commit()) {
      client_state = std::move(*command.mutable_commit()->mutable_client_state());
      command.mutable_commit()->clear_client_state();
    }
    if (command.has_push()) {
      const auto& sent_absent = command.push().absent_parameters();
      absent.assign(sent_absent.begin(), sent_absent.end());
      command.mutable_push()->clear_absent_parameters();
    }
    canonical = command.SerializeAsString();
    const int64_t number = command.number();
    command.clear_number();
    if (command.has_commit()) unnumbered = command.SerializeAsString();
    command.set_number(number);
  }

  v1::Command command;          // without what each rank sends of its own: client state, absent parameters
  std::string canonical;        // its bytes, for comparison
  std::string unnumbered;       // of a commit: its bytes without the number
  std::string client_state;     // of a commit
  std::vector<int32_t> absent;  // of a push: parameters without a gradient
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_TRAINING_SENT_COMMAND_H_
