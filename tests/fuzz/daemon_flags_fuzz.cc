// The daemon's command line and environment, an argument to a line; a line that begins with PARAMSHARD_ is a variable.
// The configuration that is taken is within the bounds that a daemon starts with.

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "kernels/base/check.h"
#include "server/process/config.h"
#include "tests/fuzz/fuzz_target.h"

namespace paramshard::server {
namespace {

void CheckConfig(const DaemonConfig& config) {
  PARAMSHARD_CHECK(!config.devices.empty());
  PARAMSHARD_CHECK(config.node >= 0 && config.node < config.nodes);
  PARAMSHARD_CHECK(config.nodes == 1 || !config.cluster_address.empty());
  PARAMSHARD_CHECK(config.step_timeout > absl::ZeroDuration() && config.join_timeout > absl::ZeroDuration());
  PARAMSHARD_CHECK(config.memory_limit_bytes >= 0);
  PARAMSHARD_CHECK(config.save_dir.empty() || config.save_dir[0] == '/');
  PARAMSHARD_CHECK(config.restore.empty() || !config.save_dir.empty());
}

void Run(const std::string& input) {
  const std::vector<std::string> lines = absl::StrSplit(input, '\n');
  std::vector<const char*> argv = {"paramshardd"};
  Environment environment;
  for (const std::string& line : lines) {
    const size_t equals = line.find('=');
    if (absl::StartsWith(line, "PARAMSHARD_") && equals != std::string::npos) {
      environment[line.substr(0, equals)] = line.substr(equals + 1);
    } else {
      argv.push_back(line.c_str());
    }
  }
  const auto arguments = ParseArguments(static_cast<int>(argv.size()), argv.data(), environment);
  if (arguments.ok()) {
    CheckConfig(arguments->config);
  } else {
    PARAMSHARD_CHECK(absl::IsInvalidArgument(arguments.status()) && !arguments.status().message().empty());
  }
}

}  // namespace
}  // namespace paramshard::server

const paramshard::FuzzTarget& paramshard::Target() {
  static const auto* const target = new FuzzTarget{
      .seeds = {"--device=cpu:0,cpu:1\n--socket-dir=/tmp/x", "--device=cpu:0\n--device=cuda:3\n--step-timeout=90s",
                "--node=1\n--nodes=2\n--cluster-address=127.0.0.1:7000\n--join-timeout=1m",
                "PARAMSHARD_DEVICE=cpu:0\nPARAMSHARD_MEMORY_LIMIT=4GiB\nPARAMSHARD_LOG_LEVEL=debug\n--print-config",
                "--listen=127.0.0.1:0\n--drain-timeout=5s\n--log-format=json\n--local-engine=mesh\n--allow-user=0",
                "--help"},
      .words = {"\n",
                "=",
                "-",
                "--",
                ",",
                ":",
                "cpu:",
                "cuda:-1",
                "cpu:99999999999999999999",
                "--device=",
                "--nodes=0",
                "--node=-1",
                "9223372036854775807s",
                "-1s",
                "1e308h",
                "inf",
                "GiB",
                "16EiB",
                "0.0.0.0:1",
                "[::1]:99999",
                "PARAMSHARD_NODES=",
                "--version",
                "--memory-limit=",
                "--allow-user=root,",
                std::string(1, '\0'),
                "\xff"},
      .run = server::Run};
  return *target;
}
