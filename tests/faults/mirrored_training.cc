#include "tests/faults/mirrored_training.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "common/shared_memory/file_descriptor.h"
#include "kernels/base/polling.h"
#include "kernels/base/status_macros.h"
#include "kernels/formats/format.h"
#include "tests/faults/training.h"
#include "tests/support/child_process.h"
#include "tests/support/environment.h"
#include "tests/support/status_matchers.h"

namespace paramshard::test {
namespace {

// Four significant bits, as many as E4M3 has. Neighbouring commits differ, and differences are exact in float32.
float ValueAt(int64_t commit) {
  const int place = static_cast<int>(commit % 64);
  return std::ldexp(static_cast<float>(8 + place % 8), place / 8 - 8);
}

absl::Status Step(Model& model, int64_t commit) {
  for (const UnitSpec& unit : model.spec().units) {
    ASSIGN_OR_RETURN(UnitGradients gradients, model.Gradients(unit.name));
    for (const ParameterSpec& parameter : unit.parameters) {
      ASSIGN_OR_RETURN(const GradientView view, gradients.Get(parameter.name));
      RETURN_IF_ERROR(view.Write(std::vector<float>(view.rows * view.columns, ValueAt(commit - 1) - ValueAt(commit))));
    }
    RETURN_IF_ERROR(gradients.Push());
  }
  ASSIGN_OR_RETURN(PendingCommit pending, model.Commit({.learning_rate = 1.0f}));
  ASSIGN_OR_RETURN(const StepResult result, pending.Wait());
  if (result.commit_number == commit && !result.skipped) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("applied commit: want ", commit, ", got ", result.commit_number));
}

// Daemons that share a GPU cannot be one world.
MirroredTraining::Options Fitting(MirroredTraining::Options options) {
  options.nodes = std::max(1, DevicesUpTo(options.nodes));
  return options;
}

absl::Status CheckValues(const Snapshot& snapshot) {
  const int64_t commit = snapshot.version().commit_number;
  for (const ReadParameter& parameter : snapshot.parameters()) {
    std::vector<float> values(parameter.rows * parameter.columns);
    RETURN_IF_ERROR(snapshot.Read(parameter.name, absl::MakeSpan(values)));
    const float expected = ValueAt(commit);
    const auto wrong = std::find_if(values.begin(), values.end(), [&](float value) { return value != expected; });
    if (wrong == values.end()) continue;
    return absl::InternalError(absl::StrCat(parameter.name, " at commit ", commit, ": element ", wrong - values.begin(),
                                            ": want ", expected, ", got ", *wrong));
  }
  return absl::OkStatus();
}

}  // namespace

ModelSpec KnownModel(int ranks, int64_t large_rows) {
  ModelSpec spec{.name = "m", .units = {{.name = "first"}, {.name = "second"}}};
  spec.groups = {{.optimizer = Optimizer::kSgd}};
  spec.small_parameter_bytes = 4096;
  spec.shard_size = ranks;
  const auto parameter = [](std::string name, Format format, std::vector<int64_t> shape) {
    return ParameterSpec{.name = std::move(name),
                         .shape = std::move(shape),
                         .encoding = {.format = format},
                         .initial_value = {Initializer::kConstant, ValueAt(0)}};
  };
  spec.units[0].parameters = {parameter("FP32", Format::kFP32, {48, 32}), parameter("MXFP8", Format::kMXFP8, {64, 64})};
  spec.units[1].parameters = {parameter("FP8", Format::kFP8Block128x128, {300, 640}),
                              parameter("BF16", Format::kBF16, {40, 48})};
  if (large_rows > 0) spec.units[1].parameters.push_back(parameter("large", Format::kFP32, {large_rows, 2048}));
  return spec;
}

MirroredTraining::MirroredTraining(Options options) : options_(Fitting(std::move(options))) {
  for (int node = 0; node < options_.nodes; ++node) {
    sockets_.emplace_back();
    ports_.push_back(FreePort());
  }
  if (options_.nodes > 1) cluster_address_ = absl::StrCat("--cluster-address=127.0.0.1:", FreePort());
  for (int node = 0; node < options_.nodes; ++node) daemons_.push_back(Spawn(node));
}

MirroredTraining::~MirroredTraining() {
  stopped_ = true;
  Join();
}

absl::Status MirroredTraining::AwaitReady() {
  for (DaemonProcess& daemon : daemons_) RETURN_IF_ERROR(daemon.AwaitReady());
  return absl::OkStatus();
}

void MirroredTraining::Train(int64_t commits) {
  commit_ = 0;
  longest_step_us_ = 0;
  for (int rank = 0; rank < options_.nodes; ++rank) {
    trainers_.emplace_back([this, rank, commits] { EXPECT_OK(TrainRank(rank, commits)); });
  }
}

void MirroredTraining::Join() {
  for (std::thread& trainer : trainers_) trainer.join();
  trainers_.clear();
}

void MirroredTraining::TrainTo(int64_t commits) {
  Train(commits);
  Join();
}

DaemonProcess MirroredTraining::Spawn(int node) {
  std::vector<std::string> flags = {DeviceFlagOf(node), absl::StrCat("--listen=127.0.0.1:", ports_[node]),
                                    "--log-level=warning"};
  if (!cluster_address_.empty()) {
    flags.insert(flags.end(),
                 {absl::StrCat("--node=", node), absl::StrCat("--nodes=", sockets_.size()), cluster_address_});
  }
  const std::vector<std::string> secrets = options_.certificates == nullptr
                                               ? std::vector<std::string>{"--insecure=on"}
                                               : options_.certificates->Flags(absl::StrCat("node/", node));
  flags.insert(flags.end(), secrets.begin(), secrets.end());
  flags.insert(flags.end(), options_.flags.begin(), options_.flags.end());
  return DaemonProcess::Spawn(Program(PARAMSHARDD), sockets_[node].path(), flags);
}

absl::Status MirroredTraining::TrainRank(int rank, int64_t commits) {
  absl::Status status;
  do {
    status = TrainEpoch(rank, commits);
  } while (!stopped_ && (absl::IsAborted(status) || absl::IsUnavailable(status)));
  return stopped_ ? absl::OkStatus() : status;
}

absl::Status MirroredTraining::TrainEpoch(int rank, int64_t commits) {
  ASSIGN_OR_RETURN(
      Client client,
      Client::Connect(
          {.rank = rank,
           .socket_dir = sockets_[rank].path(),
           .attach_timeout = kMirrorTimeout,
           .restart_timeout = kMirrorTimeout,
           .on_wait = [](absl::string_view) {},
           .interrupted = [this] { return stopped_ ? absl::CancelledError("stopped") : absl::OkStatus(); }}));
  ASSIGN_OR_RETURN(Model model, client.OpenModel(KnownModel(options_.nodes, options_.large_rows)));
  for (int64_t commit = model.commit_number() + 1; commit <= commits && !stopped_; ++commit) {
    const absl::Time begin = absl::Now();
    RETURN_IF_ERROR(Step(model, commit));
    if (rank != 0) continue;
    commit_ = commit;
    longest_step_us_ = std::max(longest_step_us_.load(), absl::ToInt64Microseconds(absl::Now() - begin));
  }
  return absl::OkStatus();
}

ReadMirror::ReadMirror(int port, std::vector<std::string> flags, const std::string& log)
    : flags_(std::move(flags)), log_(log), reader_(*Reader::Create({.model = "m", .socket_dir = sockets_.path()})) {
  // Where steps are short and the machine is busy, each version would end before it is read.
  flags_.insert(flags_.end(), {absl::StrCat("--mirror=127.0.0.1:", port), DeviceFlagOf(0), "--keeper=off",
                               "--log-level=warning", "--reader-hold=10s"});
  Start();
}

void ReadMirror::Start() {
  daemon_.reset();
  const wire::FileDescriptor log(log_.empty() ? -1
                                              : open(log_.c_str(), O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0600));
  daemon_.emplace(DaemonProcess::Spawn(Program(PARAMSHARDD), sockets_.path(), flags_, {.standard_error = log.get()}));
}

absl::StatusOr<int64_t> ReadMirror::Read(int64_t least_commit) {
  absl::Status status;
  for (const absl::Time deadline = absl::Now() + kMirrorTimeout; absl::Now() < deadline;) {
    ASSIGN_OR_RETURN(const Snapshot snapshot,
                     reader_->Acquire({.min_commit = least_commit, .timeout = kMirrorTimeout}));
    status = CheckValues(snapshot);
    if (status.ok()) return snapshot.version().commit_number;
    if (!absl::IsAborted(status) && !absl::IsUnavailable(status)) return status;
  }
  return absl::DeadlineExceededError(absl::StrCat("every version ended before it was read: ", status.message()));
}

absl::StatusOr<nlohmann::json> ReadMirror::Listed() const {
  ASSIGN_OR_RETURN(const nlohmann::json listed, Ctl(sockets(), "mirror list"));
  return listed["mirrors"][0];
}

absl::StatusOr<int64_t> ReadMirror::AwaitStaged(int64_t least_commit) const {
  int64_t commit = -1;
  const auto is_staged = [&]() -> absl::StatusOr<bool> {
    const absl::StatusOr<nlohmann::json> model = Listed();  // the mirror may be starting
    if (!model.ok() || !model->contains("staged")) return false;
    commit = std::stoll((*model)["staged"].value("commitNumber", "0"));
    return commit >= least_commit;
  };
  ASSIGN_OR_RETURN(const bool staged, Poll({.timeout = kMirrorTimeout}, is_staged));
  if (staged) return commit;
  return absl::DeadlineExceededError(absl::StrCat("commit ", least_commit, " was not staged"));
}

absl::StatusOr<std::string> ReadMirror::AwaitError(const std::string& text) const {
  std::string error;
  const auto is_there = [&]() -> absl::StatusOr<bool> {
    const absl::StatusOr<nlohmann::json> model = Listed();  // the mirror may be starting
    error = model.ok() ? model->value("lastError", "") : model.status().ToString();
    return absl::StrContains(error, text);
  };
  ASSIGN_OR_RETURN(const bool there, Poll({.timeout = kMirrorTimeout}, is_there));
  if (there) return error;
  return absl::DeadlineExceededError(absl::StrCat("last error: want ", text, ", got ", error));
}

Ended RunCommand(const std::string& command) {
  // The last line is the exit code.
  absl::StatusOr<std::string> output = OutputOf(absl::StrCat("{ ", command, "; } 2>&1; printf '\\n%d\\n' $?"));
  EXPECT_OK(output.status());
  if (!output.ok()) return {.code = -1};
  const size_t end = output->rfind('\n', output->size() - 2);
  return {.code = std::stoi(output->substr(end + 1)), .output = output->substr(0, end)};
}

Ended RunCtl(const std::vector<std::string>& flags, const std::string& words) {
  return RunCommand(absl::StrCat(Program(PARAMSHARDCTL), " ", absl::StrJoin(flags, " "), " ", words));
}

absl::StatusOr<nlohmann::json> Ctl(const std::string& sockets, const std::string& words) {
  ASSIGN_OR_RETURN(const std::string output,
                   OutputOf(absl::StrCat(Program(PARAMSHARDCTL), " --socket-dir=", sockets, " -o json ", words)));
  return nlohmann::json::parse(output);
}

absl::StatusOr<pid_t> ServerOf(const std::string& sockets) {
  ASSIGN_OR_RETURN(const nlohmann::json version, Ctl(sockets, "version"));
  return static_cast<pid_t>(std::stoll(version.value("pid", "0")));
}

}  // namespace paramshard::test
