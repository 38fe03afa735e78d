#include "lab/campaign/assaults.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <ctime>
#include <iterator>
#include <memory>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/client.h"
#include "kernels/base/status_macros.h"
#include "lab/campaign/dying_world.h"
#include "lab/campaign/hostile_client.h"
#include "lab/campaign/hostile_trainer.h"
#include "lab/campaign/kept_server.h"
#include "lab/campaign/moments.h"
#include "tests/faults/training.h"
#include "tests/support/child_process.h"

namespace paramshard::test {
namespace {

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

// Point at which a trainer dies, before its last step at the latest, so that its successor has work left.
struct TrainerDeath {
  int64_t step = 0;  // of its own steps, from 1 on; 0: its start
  Point point = Point::kStart;
  absl::Duration after;  // it has got there
};

ChildProcess StartDying(Training training, const TrainerDeath& death) {
  return ChildProcess::Run([training, death](Board&) mutable {
    training.at = [death, step = int64_t{0}](Point point, int64_t commit) mutable {
      if (point == Point::kStart) ++step;
      if (point == Point::kStart && commit == kCommits) raise(SIGKILL);
      if (step == death.step && point == death.point) KillAfter(death.after);
    };
    if (death.step == 0) KillAfter(death.after);
    return Train(training);
  });
}

absl::Status AwaitKill(World& world, ChildProcess& trainer) {
  const absl::Status status = world.AwaitEnd(trainer);
  return Expect(absl::IsUnknown(status), absl::StrCat("want a killed trainer, got ", status.ToString()));
}

// Kills one rank's trainer and starts it again, round.kills times.
absl::Status Kill(Round& round, absl::FunctionRef<TrainerDeath()> choose) {
  const int victim = static_cast<int>(round.random() % 2);
  const auto start = [&](int rank) {
    return ChildProcess::Run([training = round.TrainingOf(rank)](Board&) { return Train(training); });
  };
  ChildProcess survivor = start(1 - victim);
  for (int64_t i = 0; i < round.kills; ++i) {
    ChildProcess killed = StartDying(round.TrainingOf(victim), choose());
    RETURN_IF_ERROR(AwaitKill(round.world, killed));
    ++round.count.trainers;
  }
  ChildProcess again = start(victim);
  RETURN_IF_ERROR(round.world.AwaitEnd(again));
  RETURN_IF_ERROR(round.world.AwaitEnd(survivor));
  ASSIGN_OR_RETURN(const std::string hash, round.world.StateHash(round.model));
  return Expect(hash == round.world.state_hash(), absl::StrCat("after kills: want the bystander's hash, got ", hash));
}

absl::Status KillTrainer(Round& round) {
  const int64_t steps = std::max<int64_t>(1, (kCommits - 1) / round.kills);
  return Kill(round, [&] {
    return TrainerDeath{.step = 1 + static_cast<int64_t>(round.random() % steps),
                        .point = static_cast<Point>(round.random() % kPointCount),
                        .after = UpTo(absl::Milliseconds(3), round.random)};
  });
}

absl::Status KillStart(Round& round) {
  return Kill(round, [&] { return TrainerDeath{.after = UpTo(1.2 * round.world.start_time(), round.random)}; });
}

// Longest start of a server, until it serves.
constexpr absl::Duration kLongestStart = absl::Milliseconds(100);

// Some of the daemons, one at least.
std::vector<int> Victims(const KeptServer& server, std::mt19937_64& random) {
  std::vector<int> victims;
  const uint64_t bits = random() % ((uint64_t{1} << server.daemons()) - 1) + 1;
  for (int daemon = 0; daemon < server.daemons(); ++daemon) {
    if ((bits >> daemon & 1) != 0) victims.push_back(daemon);
  }
  return victims;
}

// Draws the signals that end `count` servers, one after the other. Draws nothing if there is no choice.
std::vector<int> Signals(Round& round, size_t count) {
  const std::vector<int>& signals = round.world.options().server_signals;
  std::vector<int> chosen(count, signals.front());
  if (signals.size() == 1) return chosen;
  for (int& signal : chosen) signal = signals[round.random() % signals.size()];
  return chosen;
}

// Servers are killed at such a moment of one commit after another. The last one is left to the last servers, so that
// there is always something to do.
absl::Status KillServersAt(Round& round, KeptServer::Shape shape, Moment moment) {
  ASSIGN_OR_RETURN(KeptServer server, KeptServer::Start(round.world.options(), shape));
  ASSIGN_OR_RETURN(const std::string expected,
                   TrainOn(server, "calm", [](std::vector<ChildProcess>&) { return absl::OkStatus(); }));
  const auto kill = [&](std::vector<ChildProcess>& trainers) -> absl::Status {
    const int64_t kills = std::min(round.kills, kCommits - 1);
    for (int64_t commit = 1; commit <= kills; ++commit) {
      const std::vector<int> victims = Victims(server, round.random);
      std::vector<absl::Duration> followers(round.random() % 3);
      for (absl::Duration& follower : followers) follower = UpTo(kLongestStart, round.random);
      RETURN_IF_ERROR(AwaitMoment(server, round.model, trainers, static_cast<uint32_t>(commit), victims.front(), moment,
                                  round.random));
      RETURN_IF_ERROR(server.Kill(victims, followers, Signals(round, 1 + followers.size())));
      round.count.servers += static_cast<int64_t>(victims.size() * (1 + followers.size()));
    }
    return absl::OkStatus();
  };
  ASSIGN_OR_RETURN(const std::string hash, TrainOn(server, round.model, kill));
  ASSIGN_OR_RETURN(const KeptServer::FinishedSteps finished, server.StepsFinished(round.model));
  round.count.finished = finished.steps;
  round.count.torn = finished.torn_bands;
  return Expect(hash == expected, absl::StrCat("hash after kills: want ", expected, ", got ", hash));
}

absl::Status KillServer(Round& round) { return KillServersAt(round, KeptServer::Shape::kOneDaemon, Moment::kInAStep); }

absl::Status KillWorld(Round& round) {
  const auto shape = round.random() % 2 == 0 ? KeptServer::Shape::kReplicas : KeptServer::Shape::kShards;
  return KillServersAt(round, shape, round.random() % 2 == 0 ? Moment::kInAStep : Moment::kAfterDecision);
}

// A daemon that has nothing left is healed by its replica, and now and then dies again while it is.
constexpr absl::Duration kLongestHealing = absl::Milliseconds(600);

absl::Status LoseNode(Round& round) {
  ASSIGN_OR_RETURN(KeptServer server, KeptServer::Start(round.world.options(), KeptServer::Shape::kReplicas));
  ASSIGN_OR_RETURN(const std::string expected,
                   TrainOn(server, "calm", [](std::vector<ChildProcess>&) { return absl::OkStatus(); }));
  const auto lose = [&](std::vector<ChildProcess>& trainers) -> absl::Status {
    const int64_t kills = std::min(round.kills, kCommits - 1);
    for (int64_t commit = 1; commit <= kills; ++commit) {
      // A loss of node 0 would lose the decisions, and could leave the others in doubt.
      const int victim = 1 + static_cast<int>(round.random() % (server.daemons() - 1));
      const auto moment = round.random() % 2 == 0 ? Moment::kInAStep : Moment::kAfterDecision;
      std::vector<absl::Duration> followers(round.random() % 3);
      for (absl::Duration& follower : followers) follower = UpTo(kLongestHealing, round.random);
      // Node 0 decides, and has a journal all the time.
      RETURN_IF_ERROR(AwaitMoment(server, round.model, trainers, static_cast<uint32_t>(commit), /*watched=*/0, moment,
                                  round.random));
      RETURN_IF_ERROR(server.Lose(victim, followers));
      round.count.daemons += static_cast<int64_t>(1 + followers.size());
    }
    return absl::OkStatus();
  };
  ASSIGN_OR_RETURN(const std::string hash, TrainOn(server, round.model, lose));
  return Expect(hash == expected, absl::StrCat("hash after losses: want ", expected, ", got ", hash));
}

absl::Status KillAny(Round& round) {
  DyingWorld::Spec spec{.kills = round.kills, .replicas = round.random() % 2 == 0};
  spec.keeps_decisions = spec.replicas && round.random() % 2 == 0;
  spec.logs = absl::StrCat("seed-", round.world.options().seed, "-round-", round.number);
  ASSIGN_OR_RETURN(const std::unique_ptr<DyingWorld> world, DyingWorld::Start(round.world.options(), spec));
  return world->Train(round.model, round.random, round.count);
}

absl::Status KillDecided(Round& round) {
  return KillServersAt(round, KeptServer::Shape::kOneDaemon, Moment::kAfterDecision);
}

// Waits for a trainer to end by itself. It may have failed with an error.
absl::Status AwaitOwnEnd(Round& round, ChildProcess& trainer) {
  const absl::Status status = round.world.AwaitEnd(trainer);
  if (trainer.pid() > 0) return status;
  if (absl::IsUnknown(status)) {
    return absl::InternalError(absl::StrCat("want a trainer that ends by itself, got ", status.ToString()));
  }
  round.count.errors += !status.ok();
  return absl::OkStatus();
}

// Trains the model to its end, and checks that it has the bystander's bytes.
absl::Status TrainToTheEnd(Round& round) {
  std::vector<ChildProcess> trainers;
  for (int rank : {0, 1}) {
    trainers.push_back(ChildProcess::Run([training = round.TrainingOf(rank)](Board&) { return Train(training); }));
  }
  for (ChildProcess& trainer : trainers) RETURN_IF_ERROR(round.world.AwaitEnd(trainer));
  ASSIGN_OR_RETURN(const std::string hash, round.world.StateHash(round.model));
  return Expect(hash == round.world.state_hash(), absl::StrCat("at the end: want the bystander's hash, got ", hash));
}

// Trains while `disturb` happens at a random time.
template <typename Disturb>
absl::Status TrainDisturbed(Round& round, const Disturb& disturb) {
  std::vector<ChildProcess> trainers;
  for (int rank : {0, 1}) {
    Training training = round.TrainingOf(rank);
    training.resume = false;
    trainers.push_back(StartTelling(training));
  }
  const int chosen = static_cast<int>(round.random() % 2);
  RETURN_IF_ERROR(
      Expect(trainers[chosen].AwaitNumber(kReachedCommit, 1 + round.random() % kCommits), "a trainer does not move"));
  disturb(trainers[chosen]);
  for (ChildProcess& trainer : trainers) RETURN_IF_ERROR(AwaitOwnEnd(round, trainer));
  return absl::OkStatus();
}

template <typename Disturb>
absl::Status TrainDisturbedAndOn(Round& round, const Disturb& disturb) {
  RETURN_IF_ERROR(TrainDisturbed(round, disturb));
  return TrainToTheEnd(round);
}

absl::Status StopTrainer(Round& round) {
  return TrainDisturbedAndOn(round, [&](ChildProcess& trainer) {
    trainer.Signal(SIGSTOP);
    absl::SleepFor(UpTo(3 * round.world.step_timeout(), round.random));
    trainer.Signal(SIGCONT);
  });
}

absl::Status StopDaemon(Round& round) {
  return TrainDisturbedAndOn(round, [&](ChildProcess&) {
    round.world.daemon().Pause();
    absl::SleepFor(UpTo(3 * round.world.step_timeout(), round.random));
    round.world.daemon().Signal(SIGCONT);
  });
}

absl::Status StopBoth(Round& round) {
  return TrainDisturbedAndOn(round, [&](ChildProcess& trainer) {
    const auto stop_trainer = [&] { trainer.Signal(SIGSTOP); };
    const auto stop_daemon = [&] { round.world.daemon().Pause(); };
    const auto go_on_trainer = [&] { trainer.Signal(SIGCONT); };
    const auto go_on_daemon = [&] { round.world.daemon().Signal(SIGCONT); };
    const bool daemon_stops_first = round.random() % 2 == 0, daemon_goes_on_first = round.random() % 2 == 0;
    daemon_stops_first ? (stop_daemon(), stop_trainer()) : (stop_trainer(), stop_daemon());
    absl::SleepFor(UpTo(2 * round.world.step_timeout(), round.random));
    daemon_goes_on_first ? go_on_daemon() : go_on_trainer();
    absl::SleepFor(UpTo(2 * round.world.step_timeout(), round.random));
    daemon_goes_on_first ? go_on_trainer() : go_on_daemon();
  });
}

// Steps the wall clock. Trainers do not depend on it: none may fail.
absl::Status StepClock(Round& round) {
  const absl::Duration step = absl::Seconds(static_cast<int64_t>(round.random() % 14400) - 7200);
  const absl::Status status = TrainDisturbed(round, [&](ChildProcess&) { round.world.StepWallClock(step); });
  RETURN_IF_ERROR(status);
  RETURN_IF_ERROR(
      Expect(round.count.errors == 0,
             absl::StrCat(round.count.errors, " trainers have noticed a clock step of ", absl::FormatDuration(step))));
  ASSIGN_OR_RETURN(const std::string hash, round.world.StateHash(round.model));
  round.world.StepWallClock(-step);
  return Expect(hash == round.world.state_hash(), absl::StrCat("after a clock step of ", absl::FormatDuration(step),
                                                               ": want the bystander's hash, got ", hash));
}

absl::Status Requests(Round& round) {
  constexpr int kRequests = 40;
  ChildProcess child = ChildProcess::Run([&round, seed = round.random()](Board& board) -> absl::Status {
    ASSIGN_OR_RETURN(const int answered, SendMutatedRequests(round.world.socket_dir(), round.model, kRequests, seed));
    Reach(board, kReachedCommit, static_cast<uint32_t>(answered));
    return absl::OkStatus();
  });
  RETURN_IF_ERROR(child.Await(kTimeout));
  const auto answered = static_cast<int64_t>(child.board().numbers[kReachedCommit].load());
  round.count.errors += kRequests - answered;
  return Expect(answered > 0, "no mutated request was answered");
}

absl::Status CompanionSocket(Round& round) {
  ChildProcess child = ChildProcess::Run(
      [&round, seed = round.random()](Board&) { return SendCompanionNoise(round.world.socket_dir(), 200, seed); });
  return child.Await(kTimeout);
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

absl::Status TrainUnderLimit(Round& round) {
  std::vector<ChildProcess> trainers;
  for (int rank : {0, 1}) {
    Training training = round.TrainingOf(rank);
    training.resume = false;
    // A trainer may wait for a trainer that was rejected.
    training.attach_timeout = 3 * round.world.step_timeout();
    trainers.push_back(ChildProcess::Run([training](Board&) { return Train(training); }));
  }
  for (ChildProcess& trainer : trainers) RETURN_IF_ERROR(AwaitOwnEnd(round, trainer));
  return absl::OkStatus();
}

absl::Status LimitDescriptors(Round& round) {
  RETURN_IF_ERROR(WithLimit(round.world, RLIMIT_NOFILE, round.world.Descriptors() + round.random() % 16,
                            [&] { return TrainUnderLimit(round); }));
  return TrainToTheEnd(round);
}

// Returns the size of the daemon's address space plus `more_mebibytes`.
absl::StatusOr<rlim_t> AddressSpace(World& world, uint64_t more_mebibytes) {
  ASSIGN_OR_RETURN(const std::string pages,
                   OutputOf(absl::StrCat("cut -d' ' -f1 /proc/", world.daemon().pid(), "/statm")));
  return std::stoull(pages) * sysconf(_SC_PAGESIZE) + (more_mebibytes << 20);
}

absl::Status LimitThreads(Round& round) {
  // A stack has 8 MiB.
  ASSIGN_OR_RETURN(const rlim_t limit, AddressSpace(round.world, 2 + round.random() % 30));
  RETURN_IF_ERROR(WithLimit(round.world, RLIMIT_AS, limit, [&] { return TrainUnderLimit(round); }));
  return TrainToTheEnd(round);
}

// Creates a model of which only a part may fit into memory: each of its matrices has a master of 16 MiB.
absl::Status CreateLarge(Round& round) {
  ChildProcess child = ChildProcess::Run([&round](Board& board) -> absl::Status {
    ASSIGN_OR_RETURN(Client client, Client::Connect({.socket_dir = round.world.socket_dir()}));
    ModelSpec spec = SmallModel(round.model);
    for (UnitSpec& unit : spec.units) unit.parameters[0].shape = {2048, 2048};
    const absl::Status created = client.CreateModel(spec).status();
    // The round's model needs the name afterwards.
    if (created.ok()) return client.DeleteModel(round.model);
    if (!absl::IsResourceExhausted(created)) return created;
    Reach(board, kReachedCommit, 1);
    return absl::OkStatus();
  });
  const absl::Status status = child.Await(kTimeout);
  round.count.errors += child.board().numbers[kReachedCommit].load();
  return status;
}

absl::Status LimitMemory(Round& round) {
  ASSIGN_OR_RETURN(const rlim_t limit, AddressSpace(round.world, 10 + round.random() % 200));
  RETURN_IF_ERROR(WithLimit(round.world, RLIMIT_AS, limit, [&] { return CreateLarge(round); }));
  RETURN_IF_ERROR(WithLimit(round.world, RLIMIT_AS, limit, [&] { return TrainUnderLimit(round); }));
  return TrainToTheEnd(round);
}

absl::Status Hostile(Round& round, PageArea area) {
  const int rank = static_cast<int>(round.random() % 2);
  Training honest = round.TrainingOf(1 - rank);
  honest.resume = false;
  ChildProcess other = ChildProcess::Run([honest](Board&) { return Train(honest); });
  ChildProcess hostile = ChildProcess::Run([training = round.TrainingOf(rank), area, seed = round.random()](Board&) {
    return TrainHostile(training, area, seed);
  });
  // The hostile trainer may have made its own library hang.
  if (const absl::Status status = hostile.Await(2 * round.world.step_timeout()); !status.ok()) {
    ++round.count.errors;
    hostile.Signal(SIGKILL);
  }
  return AwaitOwnEnd(round, other);
}

constexpr Assault kAssaults[] = {
    {.name = "kill-trainer", .run = KillTrainer},
    {.name = "kill-start", .run = KillStart},
    {.name = "stop-trainer", .run = StopTrainer},
    {.name = "stop-daemon", .run = StopDaemon, .alone = true},
    {.name = "stop-both", .run = StopBoth, .alone = true},
    {.name = "clock", .run = StepClock, .alone = true},
    {.name = "requests", .run = Requests},
    {.name = "companion", .run = CompanionSocket},
    {.name = "descriptors", .run = LimitDescriptors, .alone = true},
    {.name = "threads", .run = LimitThreads, .alone = true},
    {.name = "memory", .run = LimitMemory, .alone = true},
    {.name = "kill-server", .run = KillServer, .ranks = 1},
    {.name = "kill-decided", .run = KillDecided, .ranks = 1},
    {.name = "kill-world", .run = KillWorld},
    {.name = "lose-node", .run = LoseNode},
    {.name = "kill-any", .run = KillAny, .ranks = 1},
    {.name = "ring", .run = [](Round& round) { return Hostile(round, PageArea::kRing); }},
    {.name = "words", .run = [](Round& round) { return Hostile(round, PageArea::kWords); }},
};

}  // namespace

absl::Span<const Assault> Assaults() { return kAssaults; }

const Assault* FindAssault(const std::string& name) {
  const auto* const found = std::find_if(std::begin(kAssaults), std::end(kAssaults),
                                         [&](const Assault& assault) { return assault.name == name; });
  return found == std::end(kAssaults) ? nullptr : found;
}

}  // namespace paramshard::test
