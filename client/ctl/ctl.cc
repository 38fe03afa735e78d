#include "client/ctl/ctl.h"

#include <optional>

#include "client/ctl/command_line.h"
#include "client/ctl/daemons.h"

namespace paramshard::ctl {

int RunCtl(int argc, const char* const* argv, const Streams& streams) {
  CommandLine command_line;
  const std::optional<int> ended = ParseCommandLine(argc, argv, command_line, streams.out, streams.err);
  return ended.has_value() ? *ended : RunAtDaemons(command_line, streams);
}

}  // namespace paramshard::ctl
