// paramshardd as a keeper.
#ifndef PARAMSHARD_SERVER_KEEPER_PROGRAM_H_
#define PARAMSHARD_SERVER_KEEPER_PROGRAM_H_

#include <string>
#include <vector>

#include "server/config/config.h"

namespace paramshard::server {

// Takes the lock of the socket directory, and holds it to its end: between two servers, too, nobody else serves there.
// Runs servers of this same program, with `arguments` (those after the program's name; `config` is what they say),
// until one has ended as it was told to. Returns what the process is to exit with; kExitStartFailed after a line in the
// log. By the only thread. The program is this process's own file, whatever lies at its path by then, until a restart
// names another one (Keeper).
int RunKeeper(const DaemonConfig& config, const std::vector<std::string>& arguments);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_KEEPER_PROGRAM_H_
