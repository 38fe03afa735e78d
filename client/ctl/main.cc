// paramshardctl: what an operator asks the daemon, and matrices encoded offline.

#include <grpc/support/log.h>
#include <unistd.h>

#include <cstdlib>
#include <iostream>

#include "client/ctl/ctl.h"
#include "client/ctl/exit_codes.h"

int main(int argc, char** argv) {
  // gRPC writes lines of its own beside the errors of connections, in which the same is said.
  if (std::getenv("GRPC_VERBOSITY") == nullptr) gpr_set_log_function([](gpr_log_func_args*) {});
  const bool is_terminal = isatty(STDERR_FILENO) != 0;
  const int code = paramshard::ctl::RunCtl(argc, argv, {std::cout, std::cerr, is_terminal ? &std::cerr : nullptr});
  std::cout.flush();
  if (std::cout.good()) return code;
  std::cerr << "paramshardctl: write standard output: failed" << std::endl;
  return paramshard::ctl::kFailed;
}
