// paramshardctl as tests run it.
#ifndef PARAMSHARD_TESTS_CLIENT_CTL_RUN_CTL_H_
#define PARAMSHARD_TESTS_CLIENT_CTL_RUN_CTL_H_

#include <sstream>
#include <string>
#include <vector>

#include "client/ctl/ctl.h"
#include "client/ctl/exit_codes.h"
#include "gtest/gtest.h"
#include "tests/client/ctl/fake_daemon.h"

namespace paramshard::ctl {

struct Result {
  int exit_code;
  std::string out;
  std::string err;
  std::string progress;
};

inline Result RunArguments(const std::vector<std::string>& arguments) {
  std::vector<const char*> argv = {"paramshardctl"};
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());
  std::ostringstream out, err, progress;
  const int exit_code = RunCtl(static_cast<int>(argv.size()), argv.data(), {out, err, &progress});
  return {exit_code, out.str(), err.str(), progress.str()};
}

// Runs against the daemon; expects success and no errors.
inline std::string Output(const FakeDaemon& daemon, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {"--socket-dir", daemon.directory()});
  const Result result = RunArguments(arguments);
  EXPECT_EQ(result.exit_code, kSucceeded) << result.err;
  EXPECT_EQ(result.err, "");
  return result.out;
}

}  // namespace paramshard::ctl

#endif  // PARAMSHARD_TESTS_CLIENT_CTL_RUN_CTL_H_
