// What is executed as a server.
#ifndef PARAMSHARD_SERVER_BASE_SERVER_COMMAND_H_
#define PARAMSHARD_SERVER_BASE_SERVER_COMMAND_H_

#include <optional>
#include <string>
#include <vector>

namespace paramshard::server {

struct ServerCommand {
  // A path: it is not looked for in PATH. In a request to the keeper, empty: the file that the present server was
  // started from, whatever lies at its path by now.
  std::string program = {};
  std::vector<std::string> arguments = {};  // those after the program's own name

  friend bool operator==(const ServerCommand& a, const ServerCommand& b) = default;
};

// What of the command is another from now on; what is not set stays.
struct ServerCommandChange {
  std::optional<std::string> program = {};
  std::optional<std::vector<std::string>> arguments = {};

  ServerCommand AppliedTo(const ServerCommand& command) const {
    return {.program = program.value_or(command.program), .arguments = arguments.value_or(command.arguments)};
  }
  // To the keeper of a server that was started with `command`; nothing: the next one is as this.
  std::optional<ServerCommand> RequestFrom(const ServerCommand& command) const {
    if (!program.has_value() && !arguments.has_value()) return std::nullopt;
    return ServerCommand{.program = program.value_or(""), .arguments = arguments.value_or(command.arguments)};
  }
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_BASE_SERVER_COMMAND_H_
