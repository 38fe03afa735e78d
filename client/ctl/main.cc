// paramshardctl: commands for daemons, and for matrices and checkpoints without a daemon.

#include <grpc/support/log.h>
#include <unistd.h>

#include <cstdlib>
#include <iostream>

#include "client/ctl/ctl.h"
#include "client/ctl/exit_codes.h"

int main(int argc, char** argv) {
  // gRPC logs connection errors that our own messages repeat.
  if (std::getenv("GRPC_VERBOSITY") == nullptr) gpr_set_log_function([](gpr_log_func_args*) {});
  const bool is_terminal = isatty(STDERR_FILENO) != 0;
  const int code = paramshard::ctl::RunCtl(argc, argv, {std::cout, std::cerr, is_terminal ? &std::cerr : nullptr});
  std::cout.flush();
  if (std::cout.good()) return code;
  std::cerr << "paramshardctl: failed to write standard output" << std::endl;
  return paramshard::ctl::kFailed;
}
