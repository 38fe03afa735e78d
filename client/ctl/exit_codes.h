// How paramshardctl ends, for scripts.
#ifndef PARAMSHARD_CLIENT_CTL_EXIT_CODES_H_
#define PARAMSHARD_CLIENT_CTL_EXIT_CODES_H_

namespace paramshard::ctl {

enum ExitCode : int {
  kSucceeded = 0,
  // The daemon refused, or a file could not be read, converted or written. The message says why.
  kFailed = 1,
  // The command line could not be understood.
  kUsage = 2,
  // No daemon answers, or not in time.
  kUnreachable = 3,
  // verify: planes differ from what the master encodes to. checkpoint verify: something is damaged.
  kMismatch = 4,
};

}  // namespace paramshard::ctl

#endif  // PARAMSHARD_CLIENT_CTL_EXIT_CODES_H_
