#include "lab/campaign/dying_world.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "kernels/base/polling.h"
#include "kernels/base/status_macros.h"
#include "lab/campaign/moments.h"
#include "lab/campaign/world.h"

namespace paramshard::test {
namespace {

// Longest time until trainers are told, which errors.md promises within a second: here many trainers share two cores.
constexpr absl::Duration kToldBound = absl::Seconds(30);

absl::Status Annotated(const absl::Status& status, const std::string& where) {
  return status.ok() ? status : absl::Status(status.code(), absl::StrCat(where, ": ", status.message()));
}

uint32_t LastEpoch(std::vector<ChildProcess>& trainers) {
  uint32_t epoch = 0;
  for (ChildProcess& trainer : trainers) epoch = std::max(epoch, trainer.board().numbers[kEpoch].load());
  return epoch;
}

// Times on boards have the low bits alone.
absl::Duration Between(absl::Time begin, uint32_t end_ms) {
  return absl::Milliseconds(static_cast<int32_t>(end_ms - static_cast<uint32_t>(absl::ToUnixMillis(begin))));
}

// The first matrix of SmallModel has three granules; the factor gives each rank at least one.
CampaignOptions WithRowsForAll(CampaignOptions options) {
  options.rows_factor *= std::max(1, options.nodes * options.node_devices / 3);
  return options;
}

}  // namespace

DyingWorld::DyingWorld(const CampaignOptions& options, const Spec& spec)
    : options_(WithRowsForAll(options)), spec_(spec) {}

absl::StatusOr<std::unique_ptr<DyingWorld>> DyingWorld::Start(const CampaignOptions& options, const Spec& spec) {
  std::unique_ptr<DyingWorld> world(new DyingWorld(options, spec));
  absl::StatusOr<KeptServer> server = world->StartServer();
  if (!server.ok()) return Annotated(server.status(), world->Name());
  world->server_ = std::make_unique<KeptServer>(*std::move(server));
  return world;
}

absl::StatusOr<KeptServer> DyingWorld::StartServer() const {
  KeptServer::Spec spec{.shape = spec_.replicas ? KeptServer::Shape::kReplicas : KeptServer::Shape::kShards,
                        .sites = {},
                        .commits = spec_.kills + 1,
                        .restart_timeout = kTimeout};
  std::vector<std::string> devices;
  for (int device = 0; device < options_.node_devices; ++device) devices.push_back(absl::StrCat("cpu:", device));
  const std::string address = absl::StrCat("--cluster-address=127.0.0.1:", FreePort());
  for (int node = 0; node < options_.nodes; ++node) {
    spec.sites.push_back({.flags = {address}, .devices = devices, .log = LogOf(node)});
  }
  if (spec_.keeps_decisions) {
    const std::string state = folder_.path() + "/state";
    if (mkdir(state.c_str(), 0700) != 0) return absl::ErrnoToStatus(errno, absl::StrCat("mkdir ", state));
    spec.sites[0].flags.push_back("--state-dir=" + state);
  }
  return KeptServer::Start(options_, std::move(spec));
}

std::string DyingWorld::LogOf(int node) const {
  return absl::StrCat(options_.logs.empty() ? folder_.path() : options_.logs, "/", spec_.logs, "-node-", node, ".log");
}

std::string DyingWorld::Name() const {
  return absl::StrCat(options_.nodes, " daemons of ", options_.node_devices, " devices, ",
                      spec_.replicas ? "replicas" : "shards", spec_.keeps_decisions ? ", with a --state-dir" : "");
}

absl::Status DyingWorld::Train(const std::string& model, std::mt19937_64& random, CampaignResult::Count& count) {
  Tell(options_, absl::StrCat(Name(), ": ", spec_.kills + 1, " commits without deaths, then with"));
  const absl::Status status = Annotated(TrainAndCompare(model, random, count), Name());
  Tell(options_, status.ok() ? "everything held" : status.ToString());
  for (int node = 0; node < options_.nodes && status.ok(); ++node) unlink(LogOf(node).c_str());
  return status;
}

absl::Status DyingWorld::TrainAndCompare(const std::string& model, std::mt19937_64& random,
                                         CampaignResult::Count& count) {
  ASSIGN_OR_RETURN(const std::string expected,
                   TrainOn(*server_, "calm", [](std::vector<ChildProcess>&) { return absl::OkStatus(); }));
  const auto die = [&](std::vector<ChildProcess>& trainers) -> absl::Status {
    Play play{.model = model, .random = random, .count = count, .trainers = trainers};
    for (int64_t commit = 1; commit <= spec_.kills; ++commit) {
      const absl::Status status = DieAt(static_cast<uint32_t>(commit), play);
      if (status.ok()) continue;
      KeepStacks(trainers);
      return Annotated(status, absl::StrCat("commit ", commit));
    }
    return absl::OkStatus();
  };
  ASSIGN_OR_RETURN(const std::string hash, TrainOn(*server_, model, die));
  ASSIGN_OR_RETURN(const KeptServer::FinishedSteps finished, server_->StepsFinished(model));
  count.finished = finished.steps;
  count.torn = finished.torn_bands;
  RETURN_IF_ERROR(Expect(hash == expected, absl::StrCat("hashes: want ", expected, ", got ", hash)));
  const std::set<std::string> different = absl::StrSplit(expected, ' ');
  return Expect(!spec_.replicas || different.size() == 1,
                absl::StrCat("want one hash of all replicas, got ", expected));
}

void DyingWorld::KeepStacks(std::vector<ChildProcess>& trainers) const {
  if (options_.logs.empty()) return;
  for (int node = 0; node < options_.nodes; ++node) test::KeepStacks(server_->server(node), LogOf(node) + ".stacks");
  constexpr size_t kMostTrainers = 4;  // of many that wait for the same
  for (size_t rank = 0; rank < std::min(trainers.size(), kMostTrainers); ++rank) {
    if (trainers[rank].pid() < 0) continue;
    test::KeepStacks(trainers[rank].pid(), absl::StrCat(options_.logs, "/", spec_.logs, "-rank-", rank, ".stacks"));
  }
}

absl::Status DyingWorld::DieAt(uint32_t commit, Play& play) {
  RETURN_IF_ERROR(AwaitArrival(play.trainers, commit));
  play.count.longest_recovery = std::max(play.count.longest_recovery, absl::Now() - play.ended);
  const std::vector<Death> deaths = DrawDeaths({.nodes = server_->daemons(),
                                                .ranks = server_->ranks(),
                                                .replicas = spec_.replicas,
                                                .node0_heals = spec_.keeps_decisions},
                                               play.random);
  const std::string what = Describe(deaths);
  RETURN_IF_ERROR(Annotated(AwaitRandomMoment(commit, play), "before the deaths of " + what));
  Tell(options_, absl::StrCat("commit ", commit, " in epoch ", LastEpoch(play.trainers), ": ", what));
  RETURN_IF_ERROR(Annotated(Happen(deaths, commit, play), "deaths of " + what));
  play.ended = absl::Now();
  return absl::OkStatus();
}

// Waits for a random moment of an epoch that began after the last deaths. It begins when the lost daemons are healed.
absl::Status DyingWorld::AwaitRandomMoment(uint32_t commit, Play& play) {
  ChildProcess& witness = play.trainers[play.random() % play.trainers.size()];
  const auto point = static_cast<Point>(play.random() % kPointCount);
  const auto await = [&](ChildProcess& trainer, int number, uint32_t value) -> absl::Status {
    if (trainer.AwaitNumber(number, value, kTimeout)) return absl::OkStatus();
    RETURN_IF_ERROR(AwaitEnds(play.trainers, absl::ZeroDuration()));
    return absl::InternalError("all trainers have ended");
  };
  if (play.random() % 3 == 0) {
    RETURN_IF_ERROR(
        AwaitMoment(*server_, play.model, play.trainers, commit, /*watched=*/0, Moment::kAfterDecision, play.random));
    return await(witness, kEpoch, play.epoch + 1);
  }
  AllowCommit(play.trainers, commit);
  RETURN_IF_ERROR(await(witness, kEpoch, play.epoch + 1));
  RETURN_IF_ERROR(await(witness, kPlace, PlaceOf(commit, point)));
  // The next daemon heals a lost one, for which it has to have begun the epoch: one trainer may be far ahead of it.
  for (ChildProcess& trainer : play.trainers) RETURN_IF_ERROR(await(trainer, kEpoch, play.epoch + 1));
  // The deaths come after a random time, whatever the processes have reached.
  absl::SleepFor(UpTo(options_.server_kill_within, play.random));
  return absl::OkStatus();
}

absl::Status DyingWorld::Happen(absl::Span<const Death> deaths, uint32_t commit, Play& play) {
  play.epoch = LastEpoch(play.trainers);
  const absl::Time since = absl::Now();
  for (const Death& death : deaths) {
    RETURN_IF_ERROR(End(death, absl::ZeroDuration(), play));
    absl::SleepFor(death.pause);
  }
  // Daemons that start wait for each other: all begin before one is waited for.
  for (const Death& death : deaths) RETURN_IF_ERROR(Begin(death, commit, play));
  for (const Death& death : deaths) {
    for (const absl::Duration life : death.again) {
      RETURN_IF_ERROR(End(death, life, play));
      RETURN_IF_ERROR(Begin(death, commit, play));
    }
  }
  for (const Death& death : deaths) RETURN_IF_ERROR(AwaitBack(death));
  return AwaitTold(deaths, commit, since, play);
}

// `after` is drawn: it says where in its start one dies that takes another's place.
absl::Status DyingWorld::End(const Death& death, absl::Duration after, Play& play) {
  const std::vector<int>& signals = options_.server_signals;
  switch (death.mortal) {
    case Mortal::kServer:
      ++play.count.servers;
      return server_->End({death.number}, after, signals[play.random() % signals.size()]);
    case Mortal::kDaemon:
      absl::SleepFor(after);
      ++play.count.daemons;
      return server_->Leave(death.number);
    case Mortal::kTrainer:
      break;
  }
  absl::SleepFor(after);
  ++play.count.trainers;
  ChildProcess& trainer = play.trainers[death.number];
  trainer.Signal(SIGKILL);
  const absl::Status status = trainer.Await(kTimeout);
  return Expect(absl::IsUnknown(status), absl::StrCat("want a killed trainer, got ", status.ToString()));
}

absl::Status DyingWorld::Begin(const Death& death, uint32_t commit, Play& play) {
  if (death.mortal == Mortal::kDaemon) return server_->Spawn(death.number);
  if (death.mortal == Mortal::kServer) return absl::OkStatus();  // its keeper begins
  ChildProcess& trainer = play.trainers[death.number];
  trainer = server_->StartTrainer(play.model, death.number, trainer.board().numbers[kAnswered].load());
  Reach(trainer.board(), kMayCommit, commit);
  return absl::OkStatus();
}

absl::Status DyingWorld::AwaitBack(const Death& death) {
  if (death.mortal == Mortal::kDaemon) return server_->AwaitServing(death.number);
  return death.mortal == Mortal::kServer ? server_->AwaitNext({death.number}) : absl::OkStatus();
}

// Waits until each surviving trainer has the answer to its commit, or was told that the epoch has ended.
absl::Status DyingWorld::AwaitTold(absl::Span<const Death> deaths, uint32_t commit, absl::Time since, Play& play) {
  std::set<int> waiting;
  for (int rank = 0; rank < server_->ranks(); ++rank) waiting.insert(rank);
  for (const Death& death : deaths) {
    if (death.mortal == Mortal::kTrainer) waiting.erase(death.number);
  }
  absl::Duration notice;
  const auto was_told = [&](int rank) {
    const auto& numbers = play.trainers[rank].board().numbers;
    if (numbers[kEndedEpoch] == play.epoch) notice = std::max(notice, Between(since, numbers[kEndedAtMs]));
    return numbers[kEndedEpoch] >= play.epoch || numbers[kEpoch] > play.epoch || numbers[kAnswered] >= commit;
  };
  const auto all_were_told = [&]() -> absl::StatusOr<bool> {
    std::erase_if(waiting, was_told);
    return waiting.empty();
  };
  ASSIGN_OR_RETURN(const bool told, Poll({.timeout = kToldBound - (absl::Now() - since)}, all_were_told));
  play.count.longest_notice = std::max(play.count.longest_notice, notice);
  return Expect(
      told && notice <= kToldBound,
      absl::StrCat("notice of all trainers: want ", absl::FormatDuration(kToldBound), " at most, got none at ranks ",
                   absl::StrJoin(waiting, ","), " and at most ", absl::FormatDuration(notice), " at the others"));
}

}  // namespace paramshard::test
