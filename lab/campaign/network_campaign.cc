#include "lab/campaign/network_campaign.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/shared_memory/file_descriptor.h"
#include "kernels/base/polling.h"
#include "kernels/base/status_macros.h"
#include "lab/campaign/moments.h"
#include "lab/campaign/network_world.h"
#include "lab/campaign/world.h"
#include "tests/support/daemon_process.h"
#include "tests/support/temporary_directory.h"

namespace paramshard::test {
namespace {

constexpr char kModel[] = "disturbed";
constexpr absl::Duration kShort = absl::Seconds(1);
// Keepalive notices a silent connection within 15 s; the rest is for a machine that is busy with other worlds.
constexpr absl::Duration kNoticeBound = absl::Seconds(45);
constexpr absl::Duration kLongStop = absl::Seconds(16);
// Longest time until a second node 0 ends.
constexpr absl::Duration kRefusalBound = absl::Seconds(30);
// Longest duration of a world, without events and for each event. All waits in it have bounds of their own.
constexpr absl::Duration kStartTimeout = absl::Minutes(6), knEventTimeout = absl::Minutes(3);
// Commits of elastic worlds after the last event: a daemon that was away ends the epoch at one, and has to stay before.
constexpr int64_t kCommitsUntilWhole = 10;
constexpr absl::Duration kFirstStay = absl::Milliseconds(250), kLongestStay = absl::Seconds(16);

absl::Status Annotated(const absl::Status& status, const std::string& where) {
  return status.ok() ? status : absl::Status(status.code(), absl::StrCat(where, ": ", status.message()));
}

// A daemon that is started again before the commit `until`.
struct Absence {
  int node = -1;
  int64_t until = 0;
};

// One event of a world.
struct Scene {
  NetworkWorld& world;
  std::mt19937_64& random;
  Absence& absence;
  int64_t commit;
  int victim;                                    // a node that is not away
  int other;                                     // another one
  absl::Duration notice = absl::ZeroDuration();  // how long it took until all daemons had ended the epoch

  const Machines& machines() const { return world.machines(); }
  KeptServer& server() { return world.server(); }
  void Pass() { absl::SleepFor(UpTo(kShort, random)); }
};

// Each daemon tells its trainers that the epoch with the `lost` node is over, and so does not wait for the network.
absl::Status AwaitEpochEnds(Scene& scene, int lost) {
  const absl::Time begin = absl::Now();
  std::set<int> running;
  for (int node = 0; node < scene.server().daemons(); ++node) {
    if (node != scene.absence.node) running.insert(node);
  }
  const auto has_ended = [&](int node) {
    const absl::StatusOr<std::set<int>> active = scene.server().ActiveNodes(node, kModel);
    return active.ok() && !active->contains(lost);
  };
  const auto ended = [&]() -> absl::StatusOr<bool> {
    std::erase_if(running, has_ended);
    return running.empty();
  };
  ASSIGN_OR_RETURN(const bool all, Poll({.timeout = kNoticeBound}, ended));
  scene.notice = absl::Now() - begin;
  return Expect(all, absl::StrCat("epochs have not ended after ", absl::FormatDuration(kNoticeBound), " at nodes ",
                                  absl::StrJoin(running, ", ")));
}

absl::Status Cut(Scene& scene) {
  RETURN_IF_ERROR(scene.machines().Cut(scene.victim));
  scene.Pass();
  return scene.machines().Join(scene.victim);
}

absl::Status CutLong(Scene& scene) {
  RETURN_IF_ERROR(scene.machines().Cut(scene.victim));
  const absl::Status noticed = AwaitEpochEnds(scene, scene.victim);
  RETURN_IF_ERROR(scene.machines().Join(scene.victim));
  return noticed;
}

absl::Status Mute(Scene& scene) {
  RETURN_IF_ERROR(scene.machines().Mute(scene.victim, scene.other));
  scene.Pass();
  return scene.machines().Unmute(scene.victim, scene.other);
}

// One of the two is node 0: keepalive is between it and the others.
absl::Status MuteLong(Scene& scene) {
  if (scene.victim != 0) scene.other = 0;
  RETURN_IF_ERROR(scene.machines().Mute(scene.victim, scene.other));
  const absl::Status noticed = AwaitEpochEnds(scene, std::max(scene.victim, scene.other));
  RETURN_IF_ERROR(scene.machines().Unmute(scene.victim, scene.other));
  return noticed;
}

// Severs two nodes that both reach node 0; the others leave the higher node out. Without effect if one of them takes no
// part anyway.
absl::Status Sever(Scene& scene) {
  std::vector<int> others;
  for (int node = 1; node < scene.server().daemons(); ++node) {
    if (node != scene.victim && node != scene.absence.node) others.push_back(node);
  }
  if (others.empty()) return Cut(scene);
  scene.other = others[scene.random() % others.size()];
  const absl::StatusOr<std::set<int>> active = scene.server().ActiveNodes(0, kModel);
  const bool are_linked = active.ok() && active->contains(scene.victim) && active->contains(scene.other);
  RETURN_IF_ERROR(scene.machines().Sever(scene.victim, scene.other));
  absl::Status noticed;
  if (are_linked) {
    noticed = AwaitEpochEnds(scene, std::max(scene.victim, scene.other));
  } else {
    scene.Pass();
  }
  RETURN_IF_ERROR(scene.machines().Mend(scene.victim, scene.other));
  return noticed;
}

template <int percent>
absl::Status Lose(Scene& scene) {
  RETURN_IF_ERROR(scene.machines().Lose(scene.victim, percent));
  scene.Pass();
  return scene.machines().LoseNone(scene.victim);
}

absl::Status Slow(Scene& scene) {
  RETURN_IF_ERROR(scene.machines().Throttle(scene.victim, 2000));
  scene.Pass();
  return scene.machines().Unthrottle(scene.victim);
}

absl::Status HalfOpen(Scene& scene) {
  RETURN_IF_ERROR(scene.machines().Cut(scene.victim));
  kill(scene.server().server(scene.victim), SIGKILL);
  scene.Pass();
  RETURN_IF_ERROR(scene.machines().Join(scene.victim));
  return scene.server().AwaitNext({scene.victim});
}

absl::Status StepClock(Scene& scene) {
  scene.world.StepClock(scene.victim, absl::Seconds(static_cast<int64_t>(scene.random() % 7200) - 3600));
  return absl::OkStatus();
}

absl::Status KillServer(Scene& scene) { return scene.server().Kill({scene.victim}, {}, {SIGKILL}); }

absl::Status KillDaemon(Scene& scene) { return scene.server().Lose(scene.victim, {}); }

// The same flags, but for an address that the machine must have.
absl::Status StartSecondNode0(Scene& scene) {
  const TemporaryDirectory directory;
  KeptServer::Site first = scene.server().site(0);
  first.flags.push_back(absl::StrCat("--data-address=", Machines::Address(scene.victim)));
  const std::string log = absl::StrCat(first.log, ".second");
  const wire::FileDescriptor file(open(log.c_str(), O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0600));
  Surroundings surroundings = first.surroundings;
  surroundings.standard_error = file.get();
  surroundings.network = scene.machines().network(scene.victim);
  DaemonProcess second =
      DaemonProcess::Spawn(scene.server().options().daemon, directory.path(), first.flags, surroundings);
  // UNAVAILABLE: it has ended.
  const absl::Status status = second.AwaitReady(kRefusalBound);
  return Expect(absl::IsUnavailable(status), absl::StrCat("a second node 0: want it to end, got ",
                                                          status.ok() ? "a serving daemon" : status.ToString()));
}

// The second one finds neither a server nor its address taken for a moment, but the folder's lock, which the keeper
// holds.
absl::Status Usurp(Scene& scene) {
  kill(scene.server().server(0), SIGKILL);
  RETURN_IF_ERROR(StartSecondNode0(scene));
  return scene.server().AwaitNext({0});
}

absl::Status GoAway(Scene& scene) {
  RETURN_IF_ERROR(scene.server().Leave(scene.victim));
  scene.absence = {.node = scene.victim, .until = scene.commit + 1 + static_cast<int64_t>(scene.random() % 3)};
  return absl::OkStatus();
}

absl::Status StopFor(Scene& scene, absl::Duration time) {
  const pid_t server = scene.server().server(scene.victim);
  kill(server, SIGSTOP);
  absl::SleepFor(time);
  kill(server, SIGCONT);
  return absl::OkStatus();
}

absl::Status Restart(Scene& scene) { return scene.server().Restart(scene.victim); }

absl::Status Rotate(Scene& scene) {
  scene.world.Certify(scene.victim);
  return absl::OkStatus();
}

enum class Victim { kAny, kNode0, kNotNode0 };

struct Event {
  absl::string_view name;
  absl::Status (*run)(Scene& scene);
  int weight = 20;           // how often it is drawn
  bool of_replicas = false;  // shards are lost with their daemon
  bool of_elastic = false;
  bool of_kept_decisions = false;
  bool kills = false;
  Victim victim = Victim::kAny;
};

constexpr Event kEvents[] = {
    {.name = "cut", .run = Cut},
    {.name = "cut-long", .run = CutLong, .weight = 1},
    {.name = "mute", .run = Mute},
    {.name = "mute-long", .run = MuteLong, .weight = 1},
    {.name = "bad-link", .run = Sever, .weight = 4, .of_elastic = true, .victim = Victim::kNotNode0},
    {.name = "loss-1", .run = Lose<1>},
    {.name = "loss-10", .run = Lose<10>},
    {.name = "loss-30", .run = Lose<30>},
    {.name = "slow", .run = Slow},
    {.name = "half-open", .run = HalfOpen, .kills = true},
    {.name = "clock", .run = StepClock},
    {.name = "kill-server", .run = KillServer, .kills = true},
    {.name = "kill-daemon", .run = KillDaemon, .of_replicas = true, .kills = true, .victim = Victim::kNotNode0},
    {.name = "kill-node0",
     .run = KillDaemon,
     .of_replicas = true,
     .of_kept_decisions = true,
     .kills = true,
     .victim = Victim::kNode0},
    {.name = "second-node0", .run = StartSecondNode0},
    {.name = "usurp", .run = Usurp, .of_kept_decisions = true, .kills = true, .victim = Victim::kNode0},
    {.name = "away",
     .run = GoAway,
     .of_replicas = true,
     .of_elastic = true,
     .kills = true,
     .victim = Victim::kNotNode0},
    {.name = "stop", .run = [](Scene& scene) { return StopFor(scene, UpTo(kShort, scene.random)); }},
    {.name = "stop-long", .run = [](Scene& scene) { return StopFor(scene, kLongStop); }, .weight = 1},
    {.name = "restart", .run = Restart, .of_replicas = true, .kills = true, .victim = Victim::kNotNode0},
    {.name = "rotate", .run = Rotate},
};

// Events in a world, and its longest recovery and notice.
struct Tale {
  std::vector<std::string> events;
  absl::Duration longest_recovery, longest_notice;
};

bool IsPossible(const Event& event, const NetworkScript& script) {
  if (event.of_replicas && script.shape == NetworkShape::kShards) return false;
  if (event.of_elastic && script.shape != NetworkShape::kElastic) return false;
  return script.keeps_decisions || !event.of_kept_decisions;
}

std::vector<const Event*> Possible(const std::vector<std::string>& only, const NetworkScript& script) {
  std::vector<const Event*> possible;
  for (const Event& event : kEvents) {
    const bool wanted = only.empty() || std::find(only.begin(), only.end(), event.name) != only.end();
    if (wanted && IsPossible(event, script)) possible.push_back(&event);
  }
  return possible;
}

const Event& Draw(const std::vector<const Event*>& events, std::mt19937_64& random) {
  int sum = 0;
  for (const Event* event : events) sum += event->weight;
  auto drawn = static_cast<int>(random() % sum);
  for (const Event* event : events) {
    if ((drawn -= event->weight) < 0) return *event;
  }
  return *events.back();
}

NetworkScript DrawWorld(const NetworkCampaignOptions& options, std::mt19937_64& random) {
  NetworkScript script;
  // Small worlds are faster, and have the same protocol.
  script.nodes = random() % 4 == 0 ? 2 + static_cast<int>(random() % (options.most_nodes - 1))
                                   : 2 + static_cast<int>(random() % 2);
  script.nodes = std::min(script.nodes, options.most_nodes);
  script.keeps_decisions = random() % 2 == 0;
  const uint64_t shape = random() % 4;
  if (shape == 0) script.shape = NetworkShape::kShards;
  if (shape != 1 || options.most_nodes < 3) return script;
  script.shape = NetworkShape::kElastic;
  script.nodes = std::clamp(script.nodes, 3, 5);
  return script;
}

// A world and its course.
class Play {
 public:
  Play(const NetworkCampaignOptions& options, int64_t number, Tale& tale, Board& board)
      : options_(options),
        number_(number),
        tale_(tale),
        board_(board),
        random_(Seed(options.seed, number)),
        script_(options.script.has_value() ? *options.script : DrawWorld(options, random_)),
        logs_(absl::StrCat(options.logs.empty() ? folder_.path() : options.logs, "/seed-", options.seed, "-world-",
                           number, "-node-")) {}

  absl::Status Run();

 private:
  static std::mt19937_64 Seed(uint64_t seed, int64_t number) {
    std::seed_seq seeds{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32), static_cast<uint32_t>(number)};
    return std::mt19937_64(seeds);
  }

  // One for each commit but the last ones.
  absl::StatusOr<std::vector<const Event*>> Events();
  absl::Status RunTrainings(const std::vector<const Event*>& events);
  absl::Status Disturb(const std::vector<const Event*>& events, std::vector<ChildProcess>& trainers);
  absl::Status DisturbCommit(const Event& event, int64_t commit, std::vector<ChildProcess>& trainers);
  absl::Status EndAbsence();
  absl::Status AwaitWhole(int64_t commit, std::vector<ChildProcess>& trainers);
  bool IsWhole() const;
  // Writes the stacks of servers beside their logs.
  void KeepStacks() const;
  bool IsElastic() const { return script_.shape == NetworkShape::kElastic; }
  std::string Name() const;
  void Tell(const std::string& what);

  const NetworkCampaignOptions& options_;
  const int64_t number_;
  Tale& tale_;
  Board& board_;
  std::mt19937_64 random_;
  const NetworkScript script_;
  const TemporaryDirectory folder_;
  const std::string logs_;
  std::unique_ptr<NetworkWorld> world_;
  Absence absence_;
  absl::Time ended_ = absl::InfiniteFuture();  // the last event
  bool killed_ = false;                        // in the step before
};

std::string Play::Name() const {
  constexpr absl::string_view kShapes[] = {"shards", "replicas", "elastic replicas"};
  return absl::StrCat(script_.nodes, " ", kShapes[static_cast<int>(script_.shape)],
                      script_.keeps_decisions ? " with a --state-dir" : "");
}

// The board says where a world was that did not end.
void Play::Tell(const std::string& what) {
  absl::SNPrintF(board_.text, sizeof(board_.text), "%s: %s", Name(), what);
  if (!options_.tells) return;
  absl::FPrintF(stderr, "%s world %d: %s\n", absl::FormatTime("%H:%M:%E3S", absl::Now(), absl::UTCTimeZone()), number_,
                what);
}

absl::StatusOr<std::vector<const Event*>> Play::Events() {
  std::vector<const Event*> events;
  if (!options_.script.has_value()) {
    const std::vector<const Event*> possible = Possible(options_.only, script_);
    while (!possible.empty() && static_cast<int64_t>(events.size()) < options_.events) {
      events.push_back(&Draw(possible, random_));
    }
    return events;
  }
  for (const std::string& name : script_.events) {
    const std::vector<const Event*> event = Possible({name}, script_);
    if (event.size() != 1) return absl::InvalidArgumentError(absl::StrCat(name, ": no event of ", Name()));
    events.push_back(event.front());
  }
  return events;
}

absl::Status Play::Run() {
  ASSIGN_OR_RETURN(const std::vector<const Event*> events, Events());
  if (events.empty()) return absl::OkStatus();
  absl::Status status = RunTrainings(events);
  status = Annotated(status, absl::StrCat(Name(), " after ", absl::StrJoin(tale_.events, " ")));
  Tell(status.ok() ? "everything held" : status.ToString());
  // Keeps the daemons' logs if the world has failed.
  for (int node = 0; node < script_.nodes && status.ok(); ++node) {
    unlink(NetworkWorld::LogOf(logs_, node).c_str());
    unlink(absl::StrCat(NetworkWorld::LogOf(logs_, node), ".second").c_str());
  }
  return status;
}

absl::Status Play::RunTrainings(const std::vector<const Event*>& events) {
  constexpr KeptServer::Shape kShapes[] = {KeptServer::Shape::kShards, KeptServer::Shape::kReplicas,
                                           KeptServer::Shape::kElastic};
  NetworkWorld::Spec spec{.shape = kShapes[static_cast<int>(script_.shape)],
                          .keeps_decisions = script_.keeps_decisions,
                          .commits = static_cast<int64_t>(events.size()) + 1 + (IsElastic() ? kCommitsUntilWhole : 0),
                          .logs = logs_};
  spec.daemons.daemon = options_.daemon;
  spec.daemons.ctl = options_.ctl;
  spec.daemons.wall_clock = options_.wall_clock;
  spec.daemons.devices.clear();
  for (int node = 0; node < script_.nodes; ++node) {
    spec.daemons.devices.push_back(options_.devices[node % options_.devices.size()]);
  }
  Tell(absl::StrCat("start of ", Name()));
  ASSIGN_OR_RETURN(world_, NetworkWorld::Start(spec));
  Tell("a training without events");
  ASSIGN_OR_RETURN(const std::string expected,
                   TrainOn(world_->server(), "calm", [](std::vector<ChildProcess>&) { return absl::OkStatus(); }));
  ASSIGN_OR_RETURN(const std::string hash, TrainOn(world_->server(), kModel, [&](std::vector<ChildProcess>& trainers) {
                     const absl::Status status = Disturb(events, trainers);
                     if (!status.ok()) KeepStacks();
                     return status;
                   }));
  RETURN_IF_ERROR(Expect(hash == expected, absl::StrCat("hashes: want ", expected, ", got ", hash)));
  const std::set<std::string> different = absl::StrSplit(expected, ' ');
  if (script_.shape == NetworkShape::kShards) return absl::OkStatus();
  return Expect(different.size() == 1, absl::StrCat("want one hash of all replicas, got ", expected));
}

absl::Status Play::Disturb(const std::vector<const Event*>& events, std::vector<ChildProcess>& trainers) {
  int64_t commit = 0;
  for (const Event* event : events) RETURN_IF_ERROR(DisturbCommit(*event, ++commit, trainers));
  const std::string after = absl::StrCat(" after ", tale_.events.empty() ? "the start" : tale_.events.back());
  RETURN_IF_ERROR(EndAbsence());
  if (IsElastic()) RETURN_IF_ERROR(Annotated(AwaitWhole(commit + 1, trainers), absl::StrCat("the end", after)));
  Tell("the last commits");
  return absl::OkStatus();
}

absl::Status Play::EndAbsence() {
  if (absence_.node < 0) return absl::OkStatus();
  Tell(absl::StrCat("node ", absence_.node, " is back"));
  return world_->server().Return(std::exchange(absence_, Absence()).node);
}

absl::Status Play::DisturbCommit(const Event& event, int64_t commit, std::vector<ChildProcess>& trainers) {
  const int nodes = script_.nodes;
  const std::string previous = tale_.events.empty() ? "the start" : tale_.events.back();
  const std::string where = absl::StrCat("commit ", commit, " after ", previous);
  if (commit == absence_.until) RETURN_IF_ERROR(Annotated(EndAbsence(), where));
  auto victim = static_cast<int>(random_() % nodes);
  if (event.victim == Victim::kNode0) victim = 0;
  if (event.victim == Victim::kNotNode0) victim = std::max(victim, 1);
  if (victim == absence_.node) victim = (victim + 1) % nodes;
  Scene scene{.world = *world_,
              .random = random_,
              .absence = absence_,
              .commit = commit,
              .victim = victim,
              .other = static_cast<int>((victim + 1 + random_() % (nodes - 1)) % nodes)};
  const Moment moment = random_() % 2 == 0 ? Moment::kInAStep : Moment::kAfterDecision;
  Tell(absl::StrCat("commit ", commit));
  RETURN_IF_ERROR(Annotated(AwaitArrival(trainers, static_cast<uint32_t>(commit)), where));
  // Waits for lost replicas to be healed before another daemon ends: replicas may not survive two losses at once.
  const bool may_kill = IsElastic() ? !event.kills || IsWhole() : !std::exchange(killed_, false);
  RETURN_IF_ERROR(Annotated(AwaitMoment(world_->server(), kModel, trainers, static_cast<uint32_t>(commit),
                                        /*watched=*/0, moment, random_),
                            where));
  tale_.longest_recovery = std::max(tale_.longest_recovery, absl::Now() - ended_);
  if (event.kills && !may_kill) return absl::OkStatus();
  killed_ = event.kills;
  Tell(absl::StrCat("commit ", commit, ": ", event.name, " of node ", victim));
  RETURN_IF_ERROR(Annotated(event.run(scene), absl::StrCat(event.name, " of node ", victim, " at commit ", commit)));
  ended_ = absl::Now();
  tale_.events.emplace_back(event.name);
  tale_.longest_notice = std::max(tale_.longest_notice, scene.notice);
  return absl::OkStatus();
}

void Play::KeepStacks() const {
  if (options_.logs.empty()) return;
  for (int node = 0; node < script_.nodes; ++node) {
    test::KeepStacks(world_->server().server(node), NetworkWorld::LogOf(logs_, node) + ".stacks");
  }
}

// All daemons take part in an epoch, and so have a state.
bool Play::IsWhole() const {
  const absl::StatusOr<std::set<int>> active = world_->server().ActiveNodes(0, kModel);
  return active.ok() && static_cast<int>(active->size()) == script_.nodes;
}

// Allows one commit after the other until all daemons take part: a trainer that has made the last one does not come
// again.
absl::Status Play::AwaitWhole(int64_t commit, std::vector<ChildProcess>& trainers) {
  absl::Duration stay = kFirstStay;
  for (const int64_t end = commit + kCommitsUntilWhole; commit < end; ++commit) {
    Tell(absl::StrCat("commit ", commit, ", until all take part"));
    RETURN_IF_ERROR(AwaitArrival(trainers, static_cast<uint32_t>(commit)));
    absl::SleepFor(stay);
    stay = std::min(2 * stay, kLongestStay);
    const bool all_are_there = std::all_of(trainers.begin(), trainers.end(), [&](ChildProcess& trainer) {
      return trainer.board().numbers[kAtCommit] >= commit;
    });
    if (all_are_there && IsWhole()) return absl::OkStatus();
    for (ChildProcess& trainer : trainers) Reach(trainer.board(), kMayCommit, static_cast<uint32_t>(commit));
  }
  const absl::StatusOr<std::set<int>> active = world_->server().ActiveNodes(0, kModel);
  return absl::InternalError(absl::StrCat("nodes that take part: want all, got ",
                                          active.ok() ? absl::StrJoin(*active, ", ") : active.status().ToString()));
}

ChildProcess StartWorld(const NetworkCampaignOptions& options, int64_t number) {
  return ChildProcess::Run([&options, number](Board& board) {
    Tale tale;
    const absl::Status status = Play(options, number, tale, board).Run();
    // The board's text is the status' message: the counts of kinds are numbers, two to each.
    for (const std::string& name : tale.events) {
      const auto* const event =
          std::find_if(std::begin(kEvents), std::end(kEvents), [&](const Event& other) { return other.name == name; });
      const auto index = event - std::begin(kEvents);
      board.numbers[index / 2] += index % 2 == 0 ? 1 : 1 << 16;
    }
    board.numbers[14] = static_cast<uint32_t>(absl::ToInt64Milliseconds(tale.longest_recovery));
    board.numbers[15] = static_cast<uint32_t>(absl::ToInt64Milliseconds(tale.longest_notice));
    return status;
  });
}

void Enter(const Board& board, NetworkCampaignResult& result) {
  for (size_t index = 0; index < std::size(kEvents); ++index) {
    const uint32_t pair = board.numbers[index / 2];
    result.events[std::string(kEvents[index].name)] += index % 2 == 0 ? pair & 0xffff : pair >> 16;
  }
  result.longest_recovery = std::max(result.longest_recovery, absl::Milliseconds(board.numbers[14].load()));
  result.longest_notice = std::max(result.longest_notice, absl::Milliseconds(board.numbers[15].load()));
  ++result.worlds;
}

}  // namespace

std::vector<std::string> NetworkEventNames() {
  std::vector<std::string> names;
  for (const Event& event : kEvents) names.emplace_back(event.name);
  return names;
}

NetworkCampaignResult RunNetworkCampaign(const NetworkCampaignOptions& options) {
  NetworkCampaignResult result;
  result.seed = options.seed;
  const absl::Time latest = absl::Now() + options.time;
  const int64_t end = options.first_world + options.worlds;
  for (int64_t next = options.first_world; next < end && absl::Now() < latest && result.status.ok();) {
    std::vector<ChildProcess> wave;
    const int64_t first = next;
    while (next < std::min(end, first + options.at_once)) wave.push_back(StartWorld(options, next++));
    for (size_t i = 0; i < wave.size(); ++i) {
      absl::Status status = wave[i].Await(kStartTimeout + options.events * knEventTimeout);
      if (absl::IsDeadlineExceeded(status) && wave[i].pid() > 0) {
        status = absl::DeadlineExceededError(absl::StrCat(status.message(), ", at ", wave[i].board().text));
      }
      result.status.Update(Annotated(status, absl::StrCat("world ", first + i)));
      Enter(wave[i].board(), result);
    }
  }
  return result;
}

int64_t NetworkCampaignResult::EventCount() const {
  int64_t sum = 0;
  for (const auto& [name, count] : events) sum += count;
  return sum;
}

std::string NetworkCampaignResult::Table() const {
  std::string text = absl::StrFormat("%-14s %8s\n", "EVENT", "COUNT");
  for (const auto& [name, count] : events) absl::StrAppendFormat(&text, "%-14s %8d\n", name, count);
  absl::StrAppendFormat(
      &text, "seed %d, %d worlds, %d events; at most %s until the next commit, %s until all noticed\n", seed, worlds,
      EventCount(), absl::FormatDuration(longest_recovery), absl::FormatDuration(longest_notice));
  return absl::StrCat(text, status.ok() ? "everything held" : status.ToString(), "\n");
}

std::string NetworkCampaignResult::Json() const {
  nlohmann::ordered_json json = {{"seed", seed},
                                 {"worlds", worlds},
                                 {"eventCount", EventCount()},
                                 {"held", status.ok()},
                                 {"status", status.ToString()},
                                 {"longestRecoverySeconds", absl::ToDoubleSeconds(longest_recovery)},
                                 {"longestNoticeSeconds", absl::ToDoubleSeconds(longest_notice)},
                                 {"events", nlohmann::ordered_json::object()}};
  for (const auto& [name, count] : events) json["events"][name] = count;
  return json.dump(2) + "\n";
}

}  // namespace paramshard::test
