#include "tests/campaign/campaign.h"

#include <signal.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <random>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "client/client.h"
#include "kernels/base/polling.h"
#include "kernels/base/status_macros.h"
#include "nlohmann/json.hpp"
#include "tests/campaign/hostile_client.h"
#include "tests/campaign/hostile_trainer.h"
#include "tests/faults/training.h"
#include "tests/process_counts.h"
#include "tests/support/child_process.h"
#include "tests/support/daemon_process.h"
#include "tests/support/stepped_clock.h"

namespace paramshard::test {
namespace {

using Count = CampaignResult::Count;

constexpr char kBystander[] = "bystander";
constexpr char kVictim[] = "victim";
constexpr int64_t kCommits = 6;
constexpr absl::Duration kStepTimeout = absl::Seconds(1);
// How long anything may take to come right again.
constexpr absl::Duration kPatience = absl::Seconds(60);
// A pool of threads may have grown by as many, and caches of descriptors: what leaks goes on.
constexpr int64_t kSlack = 8;
constexpr int kReachedCommit = 0;  // the board's number

// The daemon, and two models: one to be fought over, one to be left alone.
class World {
 public:
  static absl::StatusOr<World> Start(const CampaignOptions& options);

  DaemonProcess& daemon() { return daemon_; }
  const std::string& socket_dir() const { return directory_.path(); }
  const std::string& state_hash() const { return state_hash_; }
  Training TrainingOf(const std::string& model, int rank) const {
    return {.socket_dir = socket_dir(), .model = model, .rank = rank, .commits = kCommits};
  }

  // Trains both ranks to the end.
  absl::Status Train(const std::string& model) const;
  // The hash of masters and moments; planes must match them.
  absl::StatusOr<std::string> StateHash(const std::string& model) const;
  absl::Status DeleteVictim() const;
  // Waits for the end of a trainer. The error for one that hangs quotes what the daemon says about it.
  absl::Status AwaitEnd(ChildProcess& trainer) const;
  void StepWallClock(absl::Duration by) { clock_.Step(by); }
  absl::Status CheckAlive();
  // Everything that must hold between rounds.
  absl::Status Check(int64_t threads, int64_t descriptors);

  int64_t Threads() const { return Entries("task"); }
  int64_t Descriptors() const { return Entries("fd"); }

 private:
  World(const CampaignOptions& options, TemporaryDirectory directory, SteppedClock clock, DaemonProcess daemon)
      : ctl_(options.ctl), directory_(std::move(directory)), clock_(std::move(clock)), daemon_(std::move(daemon)) {}

  int64_t Entries(const char* folder) const { return CountEntries(absl::StrCat("/proc/", daemon_.pid(), "/", folder)); }
  absl::StatusOr<nlohmann::json> Ctl(const std::string& arguments) const;
  absl::Status AwaitCounts(int64_t threads, int64_t descriptors) const;

  std::string ctl_;
  TemporaryDirectory directory_;
  SteppedClock clock_;
  DaemonProcess daemon_;
  std::string state_hash_;
};

absl::StatusOr<World> World::Start(const CampaignOptions& options) {
  TemporaryDirectory directory;
  SteppedClock clock(options.wall_clock, directory.path() + "/wall_clock");
  ASSIGN_OR_RETURN(DaemonProcess daemon,
                   DaemonProcess::Start(options.daemon, directory.path(),
                                        {"--device=cpu:0,cpu:1", "--log-level=error",
                                         absl::StrCat("--step-timeout=", absl::FormatDuration(kStepTimeout))},
                                        kPatience, {.environment = clock.Environment()}));
  World world(options, std::move(directory), std::move(clock), std::move(daemon));
  RETURN_IF_ERROR(world.Train(kBystander));
  ASSIGN_OR_RETURN(world.state_hash_, world.StateHash(kBystander));
  RETURN_IF_ERROR(world.Train(kVictim));
  RETURN_IF_ERROR(world.DeleteVictim());
  return world;
}

absl::Status World::Train(const std::string& model) const {
  std::vector<ChildProcess> trainers;
  for (int rank : {0, 1}) {
    trainers.push_back(
        ChildProcess::Run([training = TrainingOf(model, rank)](Board&) { return test::Train(training); }));
  }
  for (ChildProcess& trainer : trainers) RETURN_IF_ERROR(trainer.Await(kPatience));
  return absl::OkStatus();
}

absl::StatusOr<nlohmann::json> World::Ctl(const std::string& arguments) const {
  ASSIGN_OR_RETURN(const std::string output,
                   OutputOf(absl::StrCat(ctl_, " --socket-dir=", socket_dir(), " -o json ", arguments)));
  return nlohmann::json::parse(output, nullptr, /*allow_exceptions=*/false);
}

absl::StatusOr<std::string> World::StateHash(const std::string& model) const {
  ASSIGN_OR_RETURN(const nlohmann::json verified, Ctl(absl::StrCat("verify --quiet ", model)));
  return verified.value("/summary/stateHash"_json_pointer, std::string());
}

// The daemon sees ends and arrivals in their order: when it welcomes this client, it knows that the trainers have gone.
absl::Status World::DeleteVictim() const {
  return ChildProcess::Run([&](Board&) -> absl::Status {
           ASSIGN_OR_RETURN(Client client, Client::Connect({.socket_dir = socket_dir()}));
           const absl::Status status = client.DeleteModel(kVictim);
           return absl::IsNotFound(status) ? absl::OkStatus() : status;
         })
      .Await(kPatience);
}

absl::Status World::AwaitEnd(ChildProcess& trainer) const {
  const pid_t pid = trainer.pid();
  const absl::Status status = trainer.Await(kPatience);
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
  return absl::InternalError(absl::StrCat("the daemon expected to live, ended with ", *exit));
}

absl::Status World::Check(int64_t threads, int64_t descriptors) {
  RETURN_IF_ERROR(CheckAlive());
  RETURN_IF_ERROR(DeleteVictim());
  ASSIGN_OR_RETURN(const std::string hash, StateHash(kBystander));
  if (hash != state_hash_) {
    return absl::InternalError(absl::StrCat("the bystander's hash ", state_hash_, " expected, got ", hash));
  }
  return AwaitCounts(threads, descriptors);
}

// What the round began has ended: the model is gone, with its epoch's threads, and the round's clients are. But gRPC
// closes a connection some time after its client has gone.
absl::Status World::AwaitCounts(int64_t threads, int64_t descriptors) const {
  const auto are_level = [&]() -> absl::StatusOr<bool> {
    return Threads() <= threads + kSlack && Descriptors() <= descriptors + kSlack;
  };
  ASSIGN_OR_RETURN(const bool level, Poll({.timeout = kPatience}, are_level));
  if (level) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(threads, " threads and ", descriptors, " descriptors expected, got ",
                                          Threads(), " and ", Descriptors()));
}

// --- What rounds do ---

using Random = std::mt19937_64;

absl::Duration UpTo(absl::Duration longest, Random& random) {
  return longest * (static_cast<double>(random() % 1000) / 1000);
}

// This process, by its own timer.
void KillAfter(absl::Duration time) {
  sigevent event{};
  event.sigev_notify = SIGEV_SIGNAL;
  event.sigev_signo = SIGKILL;
  timer_t timer = nullptr;
  itimerspec when{};
  when.it_value = absl::ToTimespec(std::max(time, absl::Nanoseconds(1)));
  if (timer_create(CLOCK_MONOTONIC, &event, &timer) != 0 || timer_settime(timer, 0, &when, nullptr) != 0)
    raise(SIGKILL);
}

// A trainer that tells how far it has come.
ChildProcess StartTelling(Training training) {
  return ChildProcess::Run([training](Board& board) mutable {
    training.at = [&board](Point point, int64_t commit) {
      if (point == Point::kStart) Reach(board, kReachedCommit, static_cast<uint32_t>(commit));
    };
    return Train(training);
  });
}

absl::Status Expect(bool holds, const std::string& what) {
  return holds ? absl::OkStatus() : absl::InternalError(what);
}

// Dies `after` a step has begun, or its process for step 0, wherever it is then, but not later than at the last step: a
// trainer that is started again has something to do.
ChildProcess StartDying(Training training, int64_t step, absl::Duration after) {
  return ChildProcess::Run([training, step, after](Board&) mutable {
    training.at = [step, after](Point point, int64_t commit) {
      if (point != Point::kStart) return;
      if (commit == kCommits) raise(SIGKILL);
      if (commit == step) KillAfter(after);
    };
    if (step == 0) KillAfter(after);
    return Train(training);
  });
}

absl::Status Kill(World& world, Random& random, Count& count, int64_t step, absl::Duration after) {
  const int victim = static_cast<int>(random() % 2);
  const auto start = [&](int rank) {
    return ChildProcess::Run([training = world.TrainingOf(kVictim, rank)](Board&) { return Train(training); });
  };
  ChildProcess survivor = start(1 - victim);
  ChildProcess killed = StartDying(world.TrainingOf(kVictim, victim), step, after);
  count.errors += !killed.Await(kPatience).ok();
  ChildProcess again = start(victim);
  RETURN_IF_ERROR(world.AwaitEnd(again));
  RETURN_IF_ERROR(world.AwaitEnd(survivor));
  ASSIGN_OR_RETURN(const std::string hash, world.StateHash(kVictim));
  return Expect(hash == world.state_hash(), absl::StrCat("the bystander's hash expected after a kill, got ", hash));
}

absl::Status KillTrainer(World& world, Random& random, Count& count) {
  const auto step = 1 + static_cast<int64_t>(random() % (kCommits - 1));
  return Kill(world, random, count, step, UpTo(absl::Milliseconds(5), random));
}

absl::Status KillStart(World& world, Random& random, Count& count) {
  return Kill(world, random, count, /*step=*/0, UpTo(absl::Milliseconds(60), random));
}

// Trains while `disturb` happens at a random time. Trainers may fail, but must end.
template <typename Disturb>
absl::Status TrainDisturbed(World& world, Random& random, Count& count, const Disturb& disturb) {
  std::vector<ChildProcess> trainers;
  for (int rank : {0, 1}) {
    Training training = world.TrainingOf(kVictim, rank);
    training.resume = false;
    trainers.push_back(StartTelling(training));
  }
  const int chosen = static_cast<int>(random() % 2);
  RETURN_IF_ERROR(
      Expect(trainers[chosen].AwaitNumber(kReachedCommit, 1 + random() % kCommits), "a trainer does not move"));
  disturb(trainers[chosen]);
  for (ChildProcess& trainer : trainers) {
    const absl::Status status = world.AwaitEnd(trainer);
    if (trainer.pid() > 0) return status;
    count.errors += !status.ok();
  }
  return absl::OkStatus();
}

absl::Status StopTrainer(World& world, Random& random, Count& count) {
  return TrainDisturbed(world, random, count, [&](ChildProcess& trainer) {
    trainer.Signal(SIGSTOP);
    absl::SleepFor(UpTo(3 * kStepTimeout, random));
    trainer.Signal(SIGCONT);
  });
}

absl::Status StopDaemon(World& world, Random& random, Count& count) {
  return TrainDisturbed(world, random, count, [&](ChildProcess&) {
    world.daemon().Pause();
    absl::SleepFor(UpTo(3 * kStepTimeout, random));
    world.daemon().Signal(SIGCONT);
  });
}

absl::Status StopBoth(World& world, Random& random, Count& count) {
  return TrainDisturbed(world, random, count, [&](ChildProcess& trainer) {
    const auto stop_trainer = [&] { trainer.Signal(SIGSTOP); };
    const auto stop_daemon = [&] { world.daemon().Pause(); };
    const auto go_on_trainer = [&] { trainer.Signal(SIGCONT); };
    const auto go_on_daemon = [&] { world.daemon().Signal(SIGCONT); };
    const bool daemon_stops_first = random() % 2 == 0, daemon_goes_on_first = random() % 2 == 0;
    daemon_stops_first ? (stop_daemon(), stop_trainer()) : (stop_trainer(), stop_daemon());
    absl::SleepFor(UpTo(2 * kStepTimeout, random));
    daemon_goes_on_first ? go_on_daemon() : go_on_trainer();
    absl::SleepFor(UpTo(2 * kStepTimeout, random));
    daemon_goes_on_first ? go_on_trainer() : go_on_daemon();
  });
}

// Nothing that a trainer does depends on the wall clock: not one of them fails.
absl::Status StepClock(World& world, Random& random, Count& count) {
  const absl::Duration step = absl::Seconds(static_cast<int64_t>(random() % 14400) - 7200);
  const absl::Status status = TrainDisturbed(world, random, count, [&](ChildProcess&) { world.StepWallClock(step); });
  RETURN_IF_ERROR(status);
  ASSIGN_OR_RETURN(const std::string hash, world.StateHash(kVictim));
  world.StepWallClock(-step);
  return Expect(hash == world.state_hash(), absl::StrCat("the bystander's hash expected after a step by ",
                                                         absl::FormatDuration(step), ", got ", hash));
}

absl::Status Requests(World& world, Random& random, Count& count) {
  constexpr int kRequests = 40;
  ChildProcess child = ChildProcess::Run([&world, seed = random()](Board& board) -> absl::Status {
    ASSIGN_OR_RETURN(const int answered, SendMutatedRequests(world.socket_dir(), kVictim, kRequests, seed));
    Reach(board, kReachedCommit, static_cast<uint32_t>(answered));
    return absl::OkStatus();
  });
  RETURN_IF_ERROR(child.Await(kPatience));
  const auto answered = static_cast<int64_t>(child.board().numbers[kReachedCommit].load());
  count.errors += kRequests - answered;
  return Expect(answered > 0, "an answer to mutated requests expected, got none");
}

absl::Status Handoff(World& world, Random& random, Count&) {
  ChildProcess child =
      ChildProcess::Run([&world, seed = random()](Board&) { return SendHandoffNoise(world.socket_dir(), 200, seed); });
  return child.Await(kPatience);
}

// Does something under a limit that is lifted afterwards.
absl::Status WithLimit(World& world, __rlimit_resource resource, rlim_t soft,
                       absl::FunctionRef<absl::Status()> something) {
  const pid_t daemon = world.daemon().pid();
  rlimit before{};
  if (prlimit(daemon, resource, nullptr, &before) != 0) return absl::ErrnoToStatus(errno, "prlimit");
  const rlimit limit{.rlim_cur = soft, .rlim_max = before.rlim_max};
  if (prlimit(daemon, resource, &limit, nullptr) != 0) return absl::ErrnoToStatus(errno, "prlimit");
  const absl::Status status = something();
  if (prlimit(daemon, resource, &before, nullptr) != 0) return absl::ErrnoToStatus(errno, "prlimit");
  return status;
}

// Trainers may fail, but must end.
absl::Status TrainUnderLimit(World& world, Count& count) {
  std::vector<ChildProcess> trainers;
  for (int rank : {0, 1}) {
    Training training = world.TrainingOf(kVictim, rank);
    training.resume = false;
    trainers.push_back(ChildProcess::Run([training](Board&) { return Train(training); }));
  }
  // One may wait for another one that was refused.
  absl::Status first = trainers[0].Await(3 * kStepTimeout);
  absl::Status second = trainers[1].Await(3 * kStepTimeout);
  count.errors += !first.ok() + !second.ok();
  return absl::OkStatus();
}

absl::Status LimitDescriptors(World& world, Random& random, Count& count) {
  return WithLimit(world, RLIMIT_NOFILE, world.Descriptors() + random() % 16,
                   [&] { return TrainUnderLimit(world, count); });
}

// What the daemon has mapped, and `more_mebibytes`.
absl::StatusOr<rlim_t> AddressSpace(World& world, uint64_t more_mebibytes) {
  ASSIGN_OR_RETURN(const std::string pages,
                   OutputOf(absl::StrCat("cut -d' ' -f1 /proc/", world.daemon().pid(), "/statm")));
  return std::stoull(pages) * sysconf(_SC_PAGESIZE) + (more_mebibytes << 20);
}

absl::Status LimitThreads(World& world, Random& random, Count& count) {
  // A stack has 8 MiB.
  ASSIGN_OR_RETURN(const rlim_t limit, AddressSpace(world, 2 + random() % 30));
  return WithLimit(world, RLIMIT_AS, limit, [&] { return TrainUnderLimit(world, count); });
}

// A model of which some memory may fit, and not all: each of its matrices has 16 MiB of master.
absl::Status CreateLarge(World& world, Count& count) {
  ChildProcess child = ChildProcess::Run([&world](Board&) -> absl::Status {
    ASSIGN_OR_RETURN(Client client, Client::Connect({.socket_dir = world.socket_dir()}));
    ModelSpec spec = SmallModel(kVictim);
    for (UnitSpec& unit : spec.units) unit.parameters[0].shape = {2048, 2048};
    const absl::Status created = client.CreateModel(spec);
    return absl::IsResourceExhausted(created) ? absl::OkStatus() : created;
  });
  const absl::Status status = child.Await(kPatience);
  count.errors += !status.ok();
  return status;
}

absl::Status LimitMemory(World& world, Random& random, Count& count) {
  ASSIGN_OR_RETURN(const rlim_t limit, AddressSpace(world, 10 + random() % 200));
  RETURN_IF_ERROR(WithLimit(world, RLIMIT_AS, limit, [&] { return CreateLarge(world, count); }));
  return WithLimit(world, RLIMIT_AS, limit, [&] { return TrainUnderLimit(world, count); });
}

absl::Status Hostile(World& world, Random& random, Count& count, PageArea area) {
  const int rank = static_cast<int>(random() % 2);
  Training honest = world.TrainingOf(kVictim, 1 - rank);
  honest.resume = false;
  ChildProcess other = ChildProcess::Run([honest](Board&) { return Train(honest); });
  ChildProcess hostile = ChildProcess::Run([training = world.TrainingOf(kVictim, rank), area, seed = random()](Board&) {
    return TrainHostile(training, area, seed);
  });
  // It may have made its own library hang.
  if (const absl::Status status = hostile.Await(2 * kStepTimeout); !status.ok()) {
    ++count.errors;
    hostile.Signal(SIGKILL);
  }
  const absl::Status status = world.AwaitEnd(other);
  return other.pid() > 0 ? status : absl::OkStatus();
}

struct Assault {
  const char* name;
  absl::Status (*run)(World& world, Random& random, Count& count);
};

constexpr Assault kAssaults[] = {
    {"kill-trainer", KillTrainer},
    {"kill-start", KillStart},
    {"stop-trainer", StopTrainer},
    {"stop-daemon", StopDaemon},
    {"stop-both", StopBoth},
    {"clock", StepClock},
    {"requests", Requests},
    {"handoff", Handoff},
    {"descriptors", LimitDescriptors},
    {"threads", LimitThreads},
    {"memory", LimitMemory},
    {"ring", [](World& world, Random& random, Count& count) { return Hostile(world, random, count, PageArea::kRing); }},
    {"words",
     [](World& world, Random& random, Count& count) { return Hostile(world, random, count, PageArea::kWords); }},
};

const Assault* FindAssault(const std::string& name) {
  const auto* const found = std::find_if(std::begin(kAssaults), std::end(kAssaults),
                                         [&](const Assault& assault) { return assault.name == name; });
  return found == std::end(kAssaults) ? nullptr : found;
}

absl::Status RunRounds(const CampaignOptions& options, World& world, CampaignResult& result) {
  const std::vector<std::string> names = options.assaults.empty() ? AssaultNames() : options.assaults;
  const absl::Time end = absl::Now() + options.time;
  for (int64_t i = 0; i < options.rounds && absl::Now() < end; ++i) {
    const int64_t round = options.first_round + i;
    const std::string& name = names[round % names.size()];
    const Assault* const assault = FindAssault(name);
    if (assault == nullptr) return absl::InvalidArgumentError(absl::StrCat("a known assault expected, got ", name));
    std::seed_seq seeds{static_cast<uint32_t>(options.seed), static_cast<uint32_t>(options.seed >> 32),
                        static_cast<uint32_t>(round)};
    Random random(seeds);
    Count& count = result.counts[name];
    ++count.rounds;
    ++result.rounds;
    absl::Status status = assault->run(world, random, count);
    // That the daemon is gone says more than the error that a client was answered.
    if (const absl::Status alive = world.CheckAlive(); !alive.ok()) status = alive;
    if (status.ok()) status = world.Check(result.threads_before, result.descriptors_before);
    if (!status.ok()) {
      return absl::Status(status.code(), absl::StrCat("round ", round, " (", name, "): ", status.message()));
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<std::string> AssaultNames() {
  std::vector<std::string> names;
  for (const Assault& assault : kAssaults) names.emplace_back(assault.name);
  return names;
}

CampaignResult RunCampaign(const CampaignOptions& options) {
  CampaignResult result;
  result.seed = options.seed;
  absl::StatusOr<World> world = World::Start(options);
  if (!world.ok()) {
    result.status = world.status();
    return result;
  }
  result.state_hash = world->state_hash();
  result.threads_before = world->Threads();
  result.descriptors_before = world->Descriptors();
  result.status = RunRounds(options, *world, result);
  if (world->daemon().pid() > 0) {
    result.threads_after = world->Threads();
    result.descriptors_after = world->Descriptors();
  }
  return result;
}

std::string CampaignResult::Table() const {
  std::string text = absl::StrFormat("%-14s %8s %8s\n", "ASSAULT", "ROUNDS", "ERRORS");
  for (const auto& [name, count] : counts)
    absl::StrAppendFormat(&text, "%-14s %8d %8d\n", name, count.rounds, count.errors);
  absl::StrAppendFormat(&text, "seed %d, %d rounds; threads %d before, %d after; descriptors %d before, %d after\n",
                        seed, rounds, threads_before, threads_after, descriptors_before, descriptors_after);
  return absl::StrCat(text, status.ok() ? "everything held" : status.ToString(), "\n");
}

std::string CampaignResult::Json() const {
  nlohmann::ordered_json json = {{"seed", seed},
                                 {"rounds", rounds},
                                 {"held", status.ok()},
                                 {"status", status.ToString()},
                                 {"threads", {{"before", threads_before}, {"after", threads_after}}},
                                 {"descriptors", {{"before", descriptors_before}, {"after", descriptors_after}}},
                                 {"stateHash", state_hash},
                                 {"assaults", nlohmann::ordered_json::object()}};
  for (const auto& [name, count] : counts) {
    json["assaults"][name] = {{"rounds", count.rounds}, {"errors", count.errors}};
  }
  return json.dump(2) + "\n";
}

}  // namespace paramshard::test
