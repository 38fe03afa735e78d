// Exit codes of paramshardctl, for scripts. docs/operate/settings.md has their table.
#ifndef PARAMSHARD_CLIENT_CTL_EXIT_CODES_H_
#define PARAMSHARD_CLIENT_CTL_EXIT_CODES_H_

#include "absl/strings/string_view.h"

namespace paramshard::ctl {

enum ExitCode : int { kSucceeded = 0, kFailed = 1, kUsage = 2, kUnreachable = 3, kMismatch = 4 };

struct ExitCodeMeaning {
  ExitCode code;
  absl::string_view meaning;
};

inline constexpr ExitCodeMeaning kExitCodes[] = {
    {kSucceeded, "done"},
    {kFailed, "the daemon returned an error, or a file could not be read, converted or written"},
    {kUsage, "the command line could not be understood"},
    {kUnreachable, "no daemon answers, or the call timed out"},
    {kMismatch, "verify: planes differ from the encoded master; checkpoint verify: the checkpoint is damaged"},
};

}  // namespace paramshard::ctl

#endif  // PARAMSHARD_CLIENT_CTL_EXIT_CODES_H_
