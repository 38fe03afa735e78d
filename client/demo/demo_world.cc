#include "client/demo/demo_world.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "kernels/base/status_macros.h"

namespace paramshard::demo {
namespace {

constexpr absl::Duration kReadyTimeout = absl::Seconds(20);
constexpr absl::Duration kReadyInterval = absl::Milliseconds(50);
constexpr absl::Duration kControlTimeout = absl::Seconds(30);
constexpr absl::Duration kStopTimeout = absl::Seconds(15);
// Words of the daemon's log line about a model whose interrupted step it finishes.
constexpr char kStepFinished[] = "redo the apply";

// Returns a free port. A socket that does not listen stays bound to it until the process ends: daemons can bind the
// port too, because they reuse addresses, and the kernel gives it to no other process.
absl::StatusOr<int> FreePort() {
  const int reserved = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  setsockopt(reserved, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  socklen_t size = sizeof(address);
  const bool found = bind(reserved, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
                     getsockname(reserved, reinterpret_cast<sockaddr*>(&address), &size) == 0;
  if (found) return ntohs(address.sin_port);
  return absl::UnavailableError(absl::StrCat("failed to find a free port: ", strerror(errno)));
}

// Returns a member that is a number or, like all 64-bit numbers, a text; 0 if it is missing.
int64_t IntegerOf(const nlohmann::json& object, const char* name) {
  int64_t number = 0;
  const auto member = object.find(name);
  if (member == object.end()) return 0;
  if (member->is_number_integer()) return member->get<int64_t>();
  return member->is_string() && absl::SimpleAtoi(member->get<std::string>(), &number) ? number : 0;
}

absl::StatusOr<std::string> ParseStateHash(const std::string& model, const std::string& text) {
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_object() && json.contains("summary") && json["summary"].contains("stateHash")) {
    return json["summary"]["stateHash"].get<std::string>();
  }
  return absl::InternalError(absl::StrCat("verify ", model, ": want a summary with a stateHash, got ", text));
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

// The directory lies outside the output folder because the path of a Unix socket is limited to about a hundred bytes.
absl::Status DemoWorld::MakeSocketDirectory() {
  std::string name = (std::filesystem::temp_directory_path() / "paramshard-demo-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) {
    return absl::InternalError(absl::StrCat("failed to create a directory for sockets: ", strerror(errno)));
  }
  socket_root_ = std::move(name);
  return absl::OkStatus();
}

std::string DemoWorld::Program(const std::string& name) const { return absl::StrCat(options_.bin_dir, "/", name); }

std::string DemoWorld::LogFile(const std::string& name) const {
  return absl::StrCat(RunDir(options_.out_dir), "/", options_.run_name, name, ".log");
}

std::string DemoWorld::SocketDirectory(int node) const { return absl::StrCat(socket_root_, "/node", node); }

std::string DemoWorld::ReportFile(const std::string& model, int rank) const {
  return absl::StrCat(RunDir(options_.out_dir), "/", options_.run_name, model, "-rank", rank, ".jsonl");
}

absl::Status DemoWorld::StartDaemon(int node, int cluster_port) {
  std::vector<std::string> arguments = {Program("paramshardd"), absl::StrCat("--socket-dir=", SocketDirectory(node)),
                                        absl::StrCat("--device=", absl::StrJoin(DevicesOf(options_, node), ","))};
  if (options_.nodes > 1) {
    arguments.push_back(absl::StrCat("--node=", node));
    arguments.push_back(absl::StrCat("--nodes=", options_.nodes));
    arguments.push_back(absl::StrCat("--cluster-address=127.0.0.1:", cluster_port));
  }
  if (!options_.save_dir.empty()) {
    arguments.push_back(absl::StrCat("--save-dir=", options_.save_dir));
    arguments.push_back(absl::StrCat("--save-every=", options_.save_every));
    arguments.push_back("--restore=latest");
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
                                                     const std::vector<std::string>& flags) const {
  std::vector<std::string> arguments = {Program("paramshard-digits"),
                                        absl::StrCat("--socket-dir=", SocketDirectory(rank / devices_per_node())),
                                        absl::StrCat("--rank=", rank),
                                        absl::StrCat("--world-size=", options_.world_size),
                                        absl::StrCat("--model=", model),
                                        absl::StrCat("--epochs=", options_.epochs),
                                        absl::StrCat("--report=", ReportFile(model, rank))};
  for (std::string& argument : ToArguments(options_.storage)) arguments.push_back(std::move(argument));
  if (options_.shard_size.has_value()) arguments.push_back(absl::StrCat("--shard-size=", *options_.shard_size));
  arguments.insert(arguments.end(), flags.begin(), flags.end());
  const std::string name = absl::StrCat(model, "-rank", rank);
  return ChildProcess::Start({.name = name, .arguments = std::move(arguments), .output_file = LogFile(name)});
}

absl::StatusOr<std::string> DemoWorld::Control(int node, const std::vector<std::string>& arguments) const {
  std::vector<std::string> command = {Program("paramshardctl"), absl::StrCat("--socket-dir=", SocketDirectory(node))};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return RunAndRead(absl::StrCat("paramshardctl ", absl::StrJoin(arguments, " ")), command, LogFile("paramshardctl"),
                    kControlTimeout);
}

absl::StatusOr<nlohmann::json> DemoWorld::ControlJson(std::vector<std::string> arguments) const {
  arguments.insert(arguments.begin(), {"-o", "json"});
  ASSIGN_OR_RETURN(const std::string text, Control(0, arguments));
  nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_object()) return json;
  return absl::InternalError(
      absl::StrCat("paramshardctl ", absl::StrJoin(arguments, " "), ": want a JSON object, got ", text));
}

absl::StatusOr<pid_t> DemoWorld::ServerPid() const {
  ASSIGN_OR_RETURN(const nlohmann::json version, ControlJson({"version"}));
  return static_cast<pid_t>(IntegerOf(version, "pid"));
}

int64_t DemoWorld::FinishedSteps(const std::string& model) const {
  std::ifstream log(LogFile("daemon0"));
  int64_t steps = 0;
  for (std::string line; std::getline(log, line);) {
    if (absl::StrContains(line, absl::StrCat(" model taken over model=", model, " ")) &&
        absl::StrContains(line, kStepFinished)) {
      ++steps;
    }
  }
  return steps;
}

absl::StatusOr<DemoWorld::SavedStep> DemoWorld::Save(const std::string& model) const {
  const absl::Time deadline = absl::Now() + kControlTimeout;
  while (true) {
    // The daemon rejects a save while another save is in progress.
    const absl::StatusOr<nlohmann::json> answer = ControlJson({"save", model, "--wait"});
    if (answer.ok() && answer->contains("save")) {
      const nlohmann::json& save = (*answer)["save"];
      return SavedStep{
          .path = save.value("path", ""), .step = IntegerOf(save, "step"), .size_bytes = IntegerOf(save, "sizeBytes")};
    }
    if (absl::Now() > deadline) return answer.status();
    absl::SleepFor(kReadyInterval);
  }
}

absl::Status DemoWorld::AwaitSaved(const std::string& model) const {
  const absl::Time deadline = absl::Now() + kControlTimeout;
  while (absl::Now() < deadline) {
    ASSIGN_OR_RETURN(const nlohmann::json saves, ControlJson({"saves", model}));
    for (const nlohmann::json& counts : saves.value("counts", nlohmann::json::array())) {
      if (IntegerOf(counts, "published") > 0) return absl::OkStatus();
    }
    absl::SleepFor(kReadyInterval);
  }
  return absl::DeadlineExceededError(
      absl::StrCat("save ", model, ": timed out after ", absl::FormatDuration(kControlTimeout)));
}

absl::StatusOr<double> DemoWorld::SaveStallSeconds(const std::string& model) const {
  ASSIGN_OR_RETURN(const nlohmann::json saves, ControlJson({"saves", model}));
  double longest = 0;
  for (const nlohmann::json& save : saves.value("saves", nlohmann::json::array())) {
    double seconds = 0;
    const std::string text = save.value("stall", "0s");
    if (absl::SimpleAtod(absl::StripSuffix(text, "s"), &seconds)) longest = std::max(longest, seconds);
  }
  return longest;
}

absl::StatusOr<nlohmann::json> DemoWorld::ContentHashes(const std::string& checkpoint) const {
  ASSIGN_OR_RETURN(const nlohmann::json described, ControlJson({"checkpoint", "describe", checkpoint}));
  nlohmann::json hashes = nlohmann::json::object();
  for (const nlohmann::json& tensor : described.value("tensors", nlohmann::json::array())) {
    if (tensor.contains("contentHash")) hashes[tensor.value("key", "")] = tensor["contentHash"];
  }
  if (!hashes.empty()) return hashes;
  return absl::InternalError(absl::StrCat("describe ", checkpoint, ": no tensor has a content hash"));
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

}  // namespace paramshard::demo
