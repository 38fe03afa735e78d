// Exit codes of paramshardctl, for scripts.
#ifndef PARAMSHARD_CLIENT_CTL_EXIT_CODES_H_
#define PARAMSHARD_CLIENT_CTL_EXIT_CODES_H_

namespace paramshard::ctl {

enum ExitCode : int {
  kSucceeded = 0,
  // The daemon returned an error, or a file could not be read, converted or written.
  kFailed = 1,
  // The command line could not be understood.
  kUsage = 2,
  // No daemon answers, or the call timed out.
  kUnreachable = 3,
  // verify: planes differ from the encoded master. checkpoint verify: the checkpoint is damaged.
  kMismatch = 4,
};

}  // namespace paramshard::ctl

#endif  // PARAMSHARD_CLIENT_CTL_EXIT_CODES_H_
