#include "client/examples/demo_world.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "kernels/base/status_macros.h"

namespace paramshard::examples {
namespace {

constexpr absl::Duration kReadyTimeout = absl::Seconds(20);
constexpr absl::Duration kReadyInterval = absl::Milliseconds(50);
constexpr absl::Duration kControlTimeout = absl::Seconds(30);
constexpr absl::Duration kStopTimeout = absl::Seconds(15);

// A loopback port that is free now.
absl::StatusOr<int> FreePort() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  const bool found = bind(fd, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
                     getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0;
  const int error = errno;
  close(fd);
  if (found) return ntohs(address.sin_port);
  return absl::UnavailableError(absl::StrCat("a free port expected, got: ", strerror(error)));
}

absl::StatusOr<std::string> ParseStateHash(const std::string& model, const std::string& text) {
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_object() && json.contains("summary") && json["summary"].contains("stateHash")) {
    return json["summary"]["stateHash"].get<std::string>();
  }
  return absl::InternalError(absl::StrCat("verify ", model, ": a summary with a stateHash expected, got ", text));
}

}  // namespace

std::vector<std::string> DevicesOf(const DemoOptions& options, int node) {
  const int count = options.world_size / options.nodes;
  const int first = options.device == "cuda" ? node * count : 0;
  std::vector<std::string> devices;
  for (int i = 0; i < count; ++i) devices.push_back(absl::StrCat(options.device, ":", first + i));
  return devices;
}

absl::StatusOr<DemoWorld> DemoWorld::Start(const DemoOptions& options) {
  DemoWorld world(options);
  RETURN_IF_ERROR(world.MakeSocketDirectory());
  ASSIGN_OR_RETURN(const int port, FreePort());
  for (int node = 0; node < options.nodes; ++node) RETURN_IF_ERROR(world.StartDaemon(node, port));
  for (int node = 0; node < options.nodes; ++node) RETURN_IF_ERROR(world.AwaitReady(node));
  return world;
}

DemoWorld::~DemoWorld() {
  daemons_.clear();
  std::error_code ignored;
  if (!socket_root_.empty()) std::filesystem::remove_all(socket_root_, ignored);
}

// The output would be no place for it: the path of a Unix socket has about a hundred bytes.
absl::Status DemoWorld::MakeSocketDirectory() {
  std::string name = (std::filesystem::temp_directory_path() / "paramshard-demo-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) {
    return absl::InternalError(absl::StrCat("a directory for sockets expected, got: ", strerror(errno)));
  }
  socket_root_ = std::move(name);
  return absl::OkStatus();
}

std::string DemoWorld::Program(const std::string& name) const { return absl::StrCat(options_.bin_dir, "/", name); }

std::string DemoWorld::LogFile(const std::string& name) const {
  return absl::StrCat(RunDir(options_.out_dir), "/", name, ".log");
}

std::string DemoWorld::SocketDirectory(int node) const { return absl::StrCat(socket_root_, "/node", node); }

std::string DemoWorld::ReportFile(const std::string& model, int rank) const {
  return absl::StrCat(RunDir(options_.out_dir), "/", model, "-rank", rank, ".jsonl");
}

absl::Status DemoWorld::StartDaemon(int node, int cluster_port) {
  std::vector<std::string> arguments = {Program("paramshardd"), absl::StrCat("--socket-dir=", SocketDirectory(node)),
                                        absl::StrCat("--device=", absl::StrJoin(DevicesOf(options_, node), ","))};
  if (options_.nodes > 1) {
    arguments.push_back(absl::StrCat("--node=", node));
    arguments.push_back(absl::StrCat("--nodes=", options_.nodes));
    arguments.push_back(absl::StrCat("--cluster-address=127.0.0.1:", cluster_port));
  }
  const std::string name = absl::StrCat("daemon", node);
  ASSIGN_OR_RETURN(
      ChildProcess daemon,
      ChildProcess::Start({.name = name, .arguments = std::move(arguments), .output_file = LogFile(name)}));
  daemons_.push_back(std::move(daemon));
  return absl::OkStatus();
}

absl::Status DemoWorld::AwaitReady(int node) {
  const absl::Time deadline = absl::Now() + kReadyTimeout;
  while (true) {
    const absl::Status answered = Control(node, {"version"}).status();
    if (answered.ok()) return absl::OkStatus();
    RETURN_IF_ERROR(daemons_[node].CheckRunning());
    if (absl::Now() > deadline) return answered;
    absl::SleepFor(kReadyInterval);
  }
}

absl::StatusOr<ChildProcess> DemoWorld::StartTrainer(const std::string& model, int rank,
                                                     std::optional<int64_t> kill_at_step) const {
  std::vector<std::string> arguments = {Program("paramshard-digits"),
                                        absl::StrCat("--socket-dir=", SocketDirectory(rank / devices_per_node())),
                                        absl::StrCat("--rank=", rank),
                                        absl::StrCat("--world-size=", options_.world_size),
                                        absl::StrCat("--model=", model),
                                        absl::StrCat("--epochs=", options_.epochs),
                                        absl::StrCat("--report=", ReportFile(model, rank))};
  for (std::string& argument : ToArguments(options_.storage)) arguments.push_back(std::move(argument));
  if (options_.shard_size.has_value()) arguments.push_back(absl::StrCat("--shard-size=", *options_.shard_size));
  if (kill_at_step.has_value()) arguments.push_back(absl::StrCat("--kill-at-step=", *kill_at_step));
  const std::string name = absl::StrCat(model, "-rank", rank);
  return ChildProcess::Start({.name = name, .arguments = std::move(arguments), .output_file = LogFile(name)});
}

absl::StatusOr<std::string> DemoWorld::Control(int node, const std::vector<std::string>& arguments) const {
  std::vector<std::string> command = {Program("paramshardctl"), absl::StrCat("--socket-dir=", SocketDirectory(node))};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return RunAndRead(absl::StrCat("paramshardctl ", absl::StrJoin(arguments, " ")), command, LogFile("paramshardctl"),
                    kControlTimeout);
}

absl::StatusOr<std::string> DemoWorld::StateHash(const std::string& model) const {
  std::vector<std::string> hashes;
  for (int node = 0; node < options_.nodes; ++node) {
    ASSIGN_OR_RETURN(const std::string text, Control(node, {"-o", "json", "verify", model}));
    ASSIGN_OR_RETURN(hashes.emplace_back(), ParseStateHash(model, text));
  }
  return absl::StrJoin(hashes, "-");
}

absl::Status DemoWorld::CheckRunning() {
  for (ChildProcess& daemon : daemons_) RETURN_IF_ERROR(daemon.CheckRunning());
  return absl::OkStatus();
}

absl::Status DemoWorld::Stop() {
  for (ChildProcess& daemon : daemons_) daemon.Signal(SIGTERM);
  for (ChildProcess& daemon : daemons_) RETURN_IF_ERROR(daemon.WaitForSuccess(kStopTimeout));
  return absl::OkStatus();
}

}  // namespace paramshard::examples
