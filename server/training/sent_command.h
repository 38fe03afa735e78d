// A command as a rank sent it.
#ifndef PARAMSHARD_SERVER_TRAINING_SENT_COMMAND_H_
#define PARAMSHARD_SERVER_TRAINING_SENT_COMMAND_H_

#include <string>
#include <utility>

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
    canonical = command.SerializeAsString();
  }

  v1::Command command;    // without client state
  std::string canonical;  // its bytes, for comparison
  std::string client_state;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_TRAINING_SENT_COMMAND_H_
