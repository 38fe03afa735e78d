// What is executed as a server.
#ifndef PARAMSHARD_SERVER_KEEPER_SERVER_COMMAND_H_
#define PARAMSHARD_SERVER_KEEPER_SERVER_COMMAND_H_

#include <string>
#include <vector>

namespace paramshard::server {

struct ServerCommand {
  std::string program = {};                 // a path: it is not looked for in PATH
  std::vector<std::string> arguments = {};  // those after the program's own name

  friend bool operator==(const ServerCommand& a, const ServerCommand& b) = default;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_KEEPER_SERVER_COMMAND_H_
