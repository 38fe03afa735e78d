#include "lab/campaign/world.h"

#include <algorithm>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "client/client.h"
#include "kernels/base/polling.h"
#include "kernels/base/status_macros.h"
#include "nlohmann/json.hpp"
#include "tests/support/process_counts.h"

namespace paramshard::test {
namespace {

constexpr char kBystander[] = "bystander";
constexpr char kFirstVictim[] = "first-victim";
// Largest growth of caches of descriptors. A leak would grow further.
constexpr int64_t kDescriptorSlack = 8;
constexpr int64_t kThreadSlack = 8;
constexpr absl::Duration kLevelTimeout = absl::Seconds(30);
// An epoch of one of these small models alone has more than a tenth of this.
constexpr int64_t kGpuSlackMebibytes = 256;

// Two executors with two threads for each core, and an event engine with one.
int64_t PoolSlack() { return 8 + 5 * static_cast<int64_t>(std::thread::hardware_concurrency()); }

// Returns the count of the driver's own tool: this process forks, and must not open the driver.
absl::StatusOr<int64_t> GpuMebibytes() {
  ASSIGN_OR_RETURN(const std::string lines,
                   OutputOf("nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits"));
  int64_t sum = 0;
  for (const absl::string_view line : absl::StrSplit(lines, '\n', absl::SkipWhitespace())) {
    int64_t mebibytes = 0;
    if (!absl::SimpleAtoi(line, &mebibytes)) {
      return absl::InternalError(absl::StrCat("nvidia-smi: want MiB of each GPU, got ", lines));
    }
    sum += mebibytes;
  }
  return sum;
}

bool OnGpus(const CampaignOptions& options) { return absl::StartsWith(options.devices.front(), "cuda"); }

// Returns the step timeout. On GPUs a trainer may need seconds from its attachment to its first command.
absl::Duration StepTimeout(const CampaignOptions& options) { return absl::Seconds(OnGpus(options) ? 10 : 1); }

std::string Describe(const Holdings& holdings) {
  return absl::StrCat(holdings.threads, " threads (", holdings.pool_threads, " of pools), ", holdings.descriptors,
                      " descriptors and ", holdings.gpu_mebibytes, " MiB of GPUs");
}

bool AreLevel(const Holdings& now, const Holdings& before) {
  const auto own_threads = [](const Holdings& holdings) { return holdings.threads - holdings.pool_threads; };
  return own_threads(now) <= own_threads(before) + kThreadSlack &&
         now.pool_threads <= before.pool_threads + PoolSlack() &&
         now.descriptors <= before.descriptors + kDescriptorSlack &&
         now.gpu_mebibytes <= before.gpu_mebibytes + kGpuSlackMebibytes;
}

}  // namespace

absl::StatusOr<std::string> StateHashOf(const nlohmann::json& verified) {
  const nlohmann::json summary =
      verified.is_object() ? verified.value("summary", nlohmann::json::object()) : nlohmann::json::object();
  const std::string hash = summary.value("stateHash", std::string());
  const std::string extents = summary.value("extentCount", std::string());
  constexpr size_t kDigits = 32;
  if (hash.size() == kDigits && extents != "" && extents != "0") return hash;
  return absl::InternalError(
      absl::StrCat("verify: want a state's hash and a number of extents, got ", verified.dump()));
}

ChildProcess StartTelling(Training training) {
  return ChildProcess::Run([training](Board& board) mutable {
    training.at = [&board](Point point, int64_t commit) {
      if (point == Point::kStart) Reach(board, kReachedCommit, static_cast<uint32_t>(commit));
    };
    return Train(training);
  });
}

World::World(const CampaignOptions& options, TemporaryDirectory directory, SteppedClock clock, DaemonProcess daemon)
    : options_(options),
      ctl_(options.ctl),
      on_gpus_(OnGpus(options)),
      step_timeout_(StepTimeout(options)),
      directory_(std::move(directory)),
      clock_(std::move(clock)),
      daemon_(std::move(daemon)) {}

absl::StatusOr<World> World::Start(const CampaignOptions& options) {
  TemporaryDirectory directory;
  SteppedClock clock(options.wall_clock, directory.path() + "/wall_clock");
  ASSIGN_OR_RETURN(
      DaemonProcess daemon,
      DaemonProcess::Start(options.daemon, directory.path(),
                           {absl::StrCat("--device=", absl::StrJoin(options.devices, ",")), "--log-level=error",
                            absl::StrCat("--step-timeout=", absl::FormatDuration(StepTimeout(options)))},
                           kTimeout, {.environment = clock.Environment()}));
  World world(options, std::move(directory), std::move(clock), std::move(daemon));
  RETURN_IF_ERROR(world.Train(kBystander).status());
  ASSIGN_OR_RETURN(world.state_hash_, world.StateHash(kBystander));
  ASSIGN_OR_RETURN(world.start_time_, world.Train(kFirstVictim));
  RETURN_IF_ERROR(world.Delete({kFirstVictim}));
  return world;
}

absl::StatusOr<absl::Duration> World::Train(const std::string& model) const {
  const absl::Time begin = absl::Now();
  std::vector<ChildProcess> trainers;
  for (int rank = 0; rank < options_.ranks(); ++rank) trainers.push_back(StartTelling(TrainingOf(model, rank)));
  absl::Duration until_both_had_begun;
  for (ChildProcess& trainer : trainers) {
    trainer.AwaitNumber(kReachedCommit, 1, kTimeout);
    until_both_had_begun = absl::Now() - begin;
  }
  for (ChildProcess& trainer : trainers) RETURN_IF_ERROR(trainer.Await(kTimeout));
  return until_both_had_begun;
}

absl::StatusOr<nlohmann::json> World::Ctl(const std::string& arguments) const {
  ASSIGN_OR_RETURN(const std::string output,
                   OutputOf(absl::StrCat(ctl_, " --socket-dir=", socket_dir(), " -o json ", arguments)));
  return nlohmann::json::parse(output, nullptr, /*allow_exceptions=*/false);
}

absl::StatusOr<std::string> World::StateHash(const std::string& model) const {
  ASSIGN_OR_RETURN(const nlohmann::json verified, Ctl(absl::StrCat("verify --quiet ", model)));
  return StateHashOf(verified);
}

// The daemon sees ends and arrivals in their order: when it welcomes this client, it knows that the trainers have gone.
absl::Status World::Delete(const std::vector<std::string>& models) const {
  return ChildProcess::Run([&](Board&) -> absl::Status {
           ASSIGN_OR_RETURN(Client client, Client::Connect({.socket_dir = socket_dir()}));
           for (const std::string& model : models) {
             const absl::Status status = client.DeleteModel(model);
             if (!status.ok() && !absl::IsNotFound(status)) return status;
           }
           return absl::OkStatus();
         })
      .Await(kTimeout);
}

absl::Status World::AwaitEnd(ChildProcess& trainer) const {
  const pid_t pid = trainer.pid();
  const absl::Status status = trainer.Await(kTimeout);
  if (trainer.pid() < 0) return status;
  const absl::StatusOr<nlohmann::json> models = Ctl("models"), sessions = Ctl("sessions");
  return absl::InternalError(
      absl::StrCat("process ", pid, " hangs; models: ", models.ok() ? models->dump() : models.status().ToString(),
                   " sessions: ", sessions.ok() ? sessions->dump() : sessions.status().ToString()));
}

absl::Status World::CheckAlive() {
  if (daemon_.pid() <= 0) return absl::InternalError("the daemon has ended before");
  const absl::StatusOr<int> exit = daemon_.AwaitExit(absl::ZeroDuration());
  if (!exit.ok()) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("the daemon has ended with ", *exit));
}

absl::Status World::Check(const std::vector<std::string>& models, const Holdings& before) {
  RETURN_IF_ERROR(CheckAlive());
  RETURN_IF_ERROR(Delete(models));
  ASSIGN_OR_RETURN(const std::string hash, StateHash(kBystander));
  if (hash != state_hash_) {
    return absl::InternalError(absl::StrCat("the bystander's hash: want ", state_hash_, ", got ", hash));
  }
  return AwaitLevel(before);
}

int64_t World::Entries(const char* folder) const {
  return CountEntries(absl::StrCat("/proc/", daemon_.pid(), "/", folder));
}

absl::StatusOr<Holdings> World::Count() const {
  Holdings holdings{.descriptors = Descriptors()};
  for (const auto& [name, count] : ThreadsByName(absl::StrCat(daemon_.pid()))) {
    holdings.threads += count;
    if (IsOfAPool(name)) holdings.pool_threads += count;
  }
  if (!on_gpus_) return holdings;
  ASSIGN_OR_RETURN(holdings.gpu_mebibytes, GpuMebibytes());
  return holdings;
}

// Waits until the resources of a round are released. Its model, the threads of its epoch and its clients are gone. But
// gRPC closes a connection some time after its client has gone, and the driver frees a killed process's GPU memory when
// its kernels have ended.
absl::Status World::AwaitLevel(const Holdings& before) const {
  Holdings now;
  const auto is_level = [&]() -> absl::StatusOr<bool> {
    ASSIGN_OR_RETURN(now, Count());
    return AreLevel(now, before);
  };
  ASSIGN_OR_RETURN(const bool level, Poll({.timeout = kLevelTimeout}, is_level));
  if (level) return absl::OkStatus();
  const auto names = absl::StrJoin(ThreadsByName(absl::StrCat(daemon_.pid())), ", ", absl::PairFormatter(" "));
  return absl::InternalError(absl::StrCat("want ", Describe(before), ", got ", Describe(now), ": ", names));
}

}  // namespace paramshard::test
