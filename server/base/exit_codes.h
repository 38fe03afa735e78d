// Exit codes of paramshardd. docs/operate/settings.md lists them for operators.
#ifndef PARAMSHARD_SERVER_BASE_EXIT_CODES_H_
#define PARAMSHARD_SERVER_BASE_EXIT_CODES_H_

namespace paramshard::server {

inline constexpr int kExitOk = 0;           // drained, or --help, --version, --print-config
inline constexpr int kExitUsage = 2;        // invalid flags or environment, or files that they name
inline constexpr int kExitStartFailed = 3;  // sockets, the world, or devices; the log says which
inline constexpr int kExitInterrupted = 4;  // a second signal while draining
inline constexpr int kExitStuck = 5;        // shutdown timed out
inline constexpr int kExitRestart = 6;      // from a server to its keeper alone: start the next server
inline constexpr int kExitUnsaved = 7;      // drained, but could not save all commits; the log names the models

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_BASE_EXIT_CODES_H_
