// Command line of a server process.
#ifndef PARAMSHARD_SERVER_BASE_SERVER_COMMAND_H_
#define PARAMSHARD_SERVER_BASE_SERVER_COMMAND_H_

#include <optional>
#include <string>
#include <vector>

namespace paramshard::server {

struct ServerCommand {
  // Path of the executable; PATH is not searched. Empty in a request to the keeper: the file that the present server
  // was started from, even if its path leads to another file by now.
  std::string program = {};
  std::vector<std::string> arguments = {};  // after argv[0]

  friend bool operator==(const ServerCommand& a, const ServerCommand& b) = default;
};

// Changes to a ServerCommand; parts that are not set stay.
struct ServerCommandChange {
  std::optional<std::string> program = {};
  std::optional<std::vector<std::string>> arguments = {};

  ServerCommand AppliedTo(const ServerCommand& command) const {
    return {.program = program.value_or(command.program), .arguments = arguments.value_or(command.arguments)};
  }
  // Returns the request to the keeper of a server that was started with `command`; null if nothing changes.
  std::optional<ServerCommand> RequestFrom(const ServerCommand& command) const {
    if (!program.has_value() && !arguments.has_value()) return std::nullopt;
    return ServerCommand{.program = program.value_or(""), .arguments = arguments.value_or(command.arguments)};
  }
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_BASE_SERVER_COMMAND_H_
