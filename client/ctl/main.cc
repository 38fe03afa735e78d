// paramshardctl: what an operator asks the daemon, and matrices encoded offline.

#include <unistd.h>

#include <iostream>

#include "client/ctl/ctl.h"
#include "client/ctl/exit_codes.h"

int main(int argc, char** argv) {
  const bool is_terminal = isatty(STDERR_FILENO) != 0;
  const int code = paramshard::ctl::RunCtl(argc, argv, {std::cout, std::cerr, is_terminal ? &std::cerr : nullptr});
  std::cout.flush();
  if (std::cout.good()) return code;
  std::cerr << "paramshardctl: write standard output: failed" << std::endl;
  return paramshard::ctl::kFailed;
}
