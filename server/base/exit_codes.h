// Exit codes of paramshardd. docs/operate/settings.md has their table.
#ifndef PARAMSHARD_SERVER_BASE_EXIT_CODES_H_
#define PARAMSHARD_SERVER_BASE_EXIT_CODES_H_

#include "absl/strings/string_view.h"

namespace paramshard::server {

inline constexpr int kExitOk = 0;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitStartFailed = 3;
inline constexpr int kExitInterrupted = 4;
inline constexpr int kExitStuck = 5;
inline constexpr int kExitRestart = 6;
inline constexpr int kExitUnsaved = 7;

struct ExitCodeMeaning {
  int code;
  absl::string_view meaning;
};

inline constexpr ExitCodeMeaning kExitCodes[] = {
    {kExitOk, "drained, or --help, --version, --print-config"},
    {kExitUsage, "invalid flags or environment, or files that they name"},
    {kExitStartFailed, "the start failed: sockets, the world or devices; the log says which"},
    {kExitInterrupted, "a second signal while draining"},
    {kExitStuck, "shutdown timed out"},
    {kExitRestart, "from a server to its keeper alone: start the next server"},
    {kExitUnsaved, "drained, but could not save all commits; the log names the models"},
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_BASE_EXIT_CODES_H_
