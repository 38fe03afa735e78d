// Parser of paramshardctl's arguments.
#ifndef PARAMSHARD_CLIENT_CTL_COMMAND_LINE_H_
#define PARAMSHARD_CLIENT_CTL_COMMAND_LINE_H_

#include <memory>
#include <optional>
#include <ostream>

#include "client/ctl/command.h"

namespace paramshard::ctl {

struct CommandLine {
  GlobalOptions options;
  const CommandInfo* info = nullptr;
  std::unique_ptr<Command> command;  // with its options
};

// Reads the arguments into `command_line`. Returns an exit code when the program has nothing left to do: it has written
// help or version to `out`, or a usage error to `err`.
std::optional<int> ParseCommandLine(int argc, const char* const* argv, CommandLine& command_line, std::ostream& out,
                                    std::ostream& err);

}  // namespace paramshard::ctl

#endif  // PARAMSHARD_CLIENT_CTL_COMMAND_LINE_H_
