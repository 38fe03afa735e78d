// Keeper process of paramshardd.
#ifndef PARAMSHARD_SERVER_PROCESS_KEEPER_PROGRAM_H_
#define PARAMSHARD_SERVER_PROCESS_KEEPER_PROGRAM_H_

#include <string>
#include <vector>

#include "server/process/config.h"

namespace paramshard::server {

// Locks the socket directory until its end, so that no other daemon serves there between two servers. Runs servers of
// this same program, with `arguments` (those after argv[0], which `config` was parsed from), until one has stopped as
// it was told to. Returns the exit code of the process; kExitStartFailed after a line in the log. Called by the only
// thread. The program is this process's own file, even if its path leads to another file by now, until a restart names
// another program (Keeper).
int RunKeeper(const DaemonConfig& config, const std::vector<std::string>& arguments);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_PROCESS_KEEPER_PROGRAM_H_
