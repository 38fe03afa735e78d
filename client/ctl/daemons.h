// Runs a command at the daemon of this machine, or at each of several addresses.
#ifndef PARAMSHARD_CLIENT_CTL_DAEMONS_H_
#define PARAMSHARD_CLIENT_CTL_DAEMONS_H_

#include "client/ctl/command_line.h"
#include "client/ctl/ctl.h"

namespace paramshard::ctl {

// Runs the command, once for each daemon, and returns the worst exit code. Answers of several daemons stand below
// their addresses, or, as JSON, in one array of {"address", "answer"} or {"address", "error"}.
int RunAtDaemons(const CommandLine& command_line, const Streams& streams);

}  // namespace paramshard::ctl

#endif  // PARAMSHARD_CLIENT_CTL_DAEMONS_H_
