#include "tests/net/network_campaign.h"

#include <algorithm>
#include <csignal>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "kernels/base/polling.h"
#include "kernels/base/status_macros.h"
#include "tests/campaign/moments.h"
#include "tests/campaign/world.h"
#include "tests/net/network_world.h"

namespace paramshard::test {
namespace {

constexpr char kModel[] = "disturbed";
constexpr absl::Duration kShort = absl::Seconds(1);
// Keepalive notices a silent connection within 15 s; the rest is for a machine that is busy with other worlds.
constexpr absl::Duration kNoticeBound = absl::Seconds(45);
constexpr absl::Duration kLongStop = absl::Seconds(16);
constexpr absl::Duration kPatienceWithAWorld = absl::Hours(1);

absl::Status Annotated(const absl::Status& status, const std::string& where) {
  return status.ok() ? status : absl::Status(status.code(), absl::StrCat(where, ": ", status.message()));
}

// One event of a world.
struct Scene {
  NetworkWorld& world;
  std::mt19937_64& random;
  int victim;                                    // a node
  int other;                                     // another one
  absl::Duration notice = absl::ZeroDuration();  // how long it took until all daemons had ended the epoch

  const Machines& machines() const { return world.machines(); }
  KeptServer& server() { return world.server(); }
  void Pass() { absl::SleepFor(UpTo(kShort, random)); }
};

// Each daemon tells its trainers that the epoch is over, and so does not wait for the network.
absl::Status AwaitEpochEnds(Scene& scene) {
  const absl::Time begin = absl::Now();
  std::set<int> running;
  for (int node = 0; node < scene.server().daemons(); ++node) running.insert(node);
  const auto ended = [&]() -> absl::StatusOr<bool> {
    std::erase_if(running, [&](int node) { return !scene.server().IsRunning(node, kModel).value_or(true); });
    return running.empty();
  };
  ASSIGN_OR_RETURN(const bool all, Poll({.timeout = kNoticeBound}, ended));
  scene.notice = absl::Now() - begin;
  return Expect(all, absl::StrCat("every daemon expected to end its epoch within ", absl::FormatDuration(kNoticeBound),
                                  ", got none at nodes ", absl::StrJoin(running, ", ")));
}

absl::Status Cut(Scene& scene) {
  RETURN_IF_ERROR(scene.machines().Cut(scene.victim));
  scene.Pass();
  return scene.machines().Join(scene.victim);
}

absl::Status CutLong(Scene& scene) {
  RETURN_IF_ERROR(scene.machines().Cut(scene.victim));
  const absl::Status noticed = AwaitEpochEnds(scene);
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
  const absl::Status noticed = AwaitEpochEnds(scene);
  RETURN_IF_ERROR(scene.machines().Unmute(scene.victim, scene.other));
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

absl::Status KillDaemon(Scene& scene) { return scene.server().Lose(std::max(scene.victim, 1), {}); }

absl::Status StopFor(Scene& scene, absl::Duration time) {
  const pid_t server = scene.server().server(scene.victim);
  kill(server, SIGSTOP);
  absl::SleepFor(time);
  kill(server, SIGCONT);
  return absl::OkStatus();
}

absl::Status Restart(Scene& scene) { return scene.server().Restart(std::max(scene.victim, 1)); }

absl::Status Rotate(Scene& scene) {
  scene.world.Certify(scene.victim);
  return absl::OkStatus();
}

struct Event {
  absl::string_view name;
  absl::Status (*run)(Scene& scene);
  int weight = 20;           // how often it is drawn
  bool of_replicas = false;  // shards are lost with their daemon
  bool kills = false;
};

constexpr Event kEvents[] = {
    {.name = "cut", .run = Cut},
    {.name = "cut-long", .run = CutLong, .weight = 1},
    {.name = "mute", .run = Mute},
    {.name = "mute-long", .run = MuteLong, .weight = 1},
    {.name = "loss-1", .run = Lose<1>},
    {.name = "loss-10", .run = Lose<10>},
    {.name = "loss-30", .run = Lose<30>},
    {.name = "slow", .run = Slow},
    {.name = "half-open", .run = HalfOpen, .kills = true},
    {.name = "clock", .run = StepClock},
    {.name = "kill-server", .run = KillServer, .kills = true},
    {.name = "kill-daemon", .run = KillDaemon, .of_replicas = true, .kills = true},
    {.name = "stop", .run = [](Scene& scene) { return StopFor(scene, UpTo(kShort, scene.random)); }},
    {.name = "stop-long", .run = [](Scene& scene) { return StopFor(scene, kLongStop); }, .weight = 1},
    {.name = "restart", .run = Restart, .of_replicas = true, .kills = true},
    {.name = "rotate", .run = Rotate},
};

// What has happened in a world.
struct Tale {
  std::vector<std::string> events;
  absl::Duration longest_recovery, longest_notice;
};

std::vector<const Event*> Possible(const NetworkCampaignOptions& options, KeptServer::Shape shape) {
  std::vector<const Event*> possible;
  for (const Event& event : kEvents) {
    const bool wanted =
        options.only.empty() || std::find(options.only.begin(), options.only.end(), event.name) != options.only.end();
    if (wanted && (shape == KeptServer::Shape::kReplicas || !event.of_replicas)) possible.push_back(&event);
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

absl::Status Disturb(NetworkWorld& world, const NetworkCampaignOptions& options,
                     const std::vector<const Event*>& possible, std::mt19937_64& random,
                     std::vector<ChildProcess>& trainers, Tale& tale) {
  absl::Time ended = absl::InfiniteFuture();
  bool killed = false;
  for (int64_t commit = 1; commit <= options.events; ++commit) {
    const Event& event = Draw(possible, random);
    const int nodes = world.server().daemons();
    const auto victim = static_cast<int>(random() % nodes);
    Scene scene{.world = world,
                .random = random,
                .victim = victim,
                .other = static_cast<int>((victim + 1 + random() % (nodes - 1)) % nodes)};
    const Moment moment = random() % 2 == 0 ? Moment::kInAStep : Moment::kAfterDecision;
    const std::string previous = tale.events.empty() ? "the start" : tale.events.back();
    RETURN_IF_ERROR(Annotated(AwaitMoment(world.server(), kModel, trainers, static_cast<uint32_t>(commit),
                                          /*watched=*/0, moment, random),
                              absl::StrCat("commit ", commit, " after ", previous)));
    tale.longest_recovery = std::max(tale.longest_recovery, absl::Now() - ended);
    // Before another daemon ends what was lost is healed, in this step: two at once may be more than replicas survive.
    if (std::exchange(killed, event.kills) && event.kills) {
      killed = false;
      continue;
    }
    RETURN_IF_ERROR(
        Annotated(event.run(scene), absl::StrCat(event.name, " of node ", scene.victim, " at commit ", commit)));
    ended = absl::Now();
    tale.events.emplace_back(event.name);
    tale.longest_notice = std::max(tale.longest_notice, scene.notice);
  }
  return absl::OkStatus();
}

// What the daemons have to say goes with the world.
void KeepLogs(const KeptServer& server, const NetworkCampaignOptions& options, int64_t number) {
  for (int node = 0; node < server.daemons(); ++node) {
    std::ofstream(absl::StrCat(options.logs, "/seed-", options.seed, "-world-", number, "-node-", node, ".log"))
        << std::ifstream(server.LogOf(node)).rdbuf();
  }
}

absl::Status RunWorld(const NetworkCampaignOptions& options, int64_t number, Tale& tale) {
  std::seed_seq seeds{static_cast<uint32_t>(options.seed), static_cast<uint32_t>(options.seed >> 32),
                      static_cast<uint32_t>(number)};
  std::mt19937_64 random(seeds);
  CampaignOptions daemons;
  daemons.daemon = options.daemon;
  daemons.ctl = options.ctl;
  daemons.wall_clock = options.wall_clock;
  daemons.devices.clear();
  // Small worlds are faster, and have the same protocol.
  const int nodes = random() % 4 == 0 ? 2 + static_cast<int>(random() % (options.most_nodes - 1))
                                      : 2 + static_cast<int>(random() % 2);
  for (int node = 0; node < std::min(nodes, options.most_nodes); ++node) daemons.devices.emplace_back("cpu:0");
  const auto shape = random() % 3 == 0 ? KeptServer::Shape::kShards : KeptServer::Shape::kReplicas;
  const std::vector<const Event*> possible = Possible(options, shape);
  if (possible.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::unique_ptr<NetworkWorld> world,
                   NetworkWorld::Start(daemons, shape, /*commits=*/options.events + 1));
  ASSIGN_OR_RETURN(const std::string expected,
                   TrainOn(world->server(), "calm", [](std::vector<ChildProcess>&) { return absl::OkStatus(); }));
  const absl::StatusOr<std::string> hash = TrainOn(world->server(), kModel, [&](std::vector<ChildProcess>& trainers) {
    return Disturb(*world, options, possible, random, trainers, tale);
  });
  absl::Status status = hash.status();
  if (status.ok()) status = Expect(*hash == expected, absl::StrCat("the hashes ", expected, " expected, got ", *hash));
  const std::set<std::string> different = absl::StrSplit(expected, ' ');
  if (status.ok() && shape == KeptServer::Shape::kReplicas)
    status = Expect(different.size() == 1, absl::StrCat("one hash of all replicas expected, got ", expected));
  if (status.ok()) return status;
  if (!options.logs.empty()) KeepLogs(world->server(), options, number);
  return Annotated(
      status, absl::StrCat(world->server().daemons(), shape == KeptServer::Shape::kReplicas ? " replicas" : " shards",
                           " after ", absl::StrJoin(tale.events, " ")));
}

ChildProcess StartWorld(const NetworkCampaignOptions& options, int64_t number) {
  return ChildProcess::Run([&options, number](Board& board) {
    Tale tale;
    const absl::Status status = RunWorld(options, number, tale);
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
      result.status.Update(Annotated(wave[i].Await(kPatienceWithAWorld), absl::StrCat("world ", first + i)));
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
