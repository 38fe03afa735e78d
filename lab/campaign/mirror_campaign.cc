#include "lab/campaign/mirror_campaign.h"

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "kernels/base/polling.h"
#include "kernels/base/status_macros.h"
#include "lab/campaign/kept_server.h"
#include "lab/campaign/moments.h"
#include "lab/campaign/network_world.h"
#include "lab/campaign/readable_training.h"
#include "lab/campaign/readers.h"
#include "lab/campaign/world.h"
#include "tests/support/child_process.h"

namespace paramshard::test {
namespace {

constexpr char kModel[] = "mirrored";
constexpr int64_t kLargeRows = 1024;  // 4 MiB
constexpr absl::Duration kShort = absl::Seconds(1), kLonger = absl::Seconds(3), kLongStop = absl::Seconds(16);
// Longer than the ten seconds after which both ends give a transfer up.
constexpr absl::Duration kLong = absl::Seconds(12);
// Between two commits, at least: the machine is for others, too.
constexpr absl::Duration kPace = absl::Milliseconds(20);
constexpr absl::Duration kReaderHold = absl::Milliseconds(250);
// Machines are busy: a commit may take so long besides the hold, and a wait may end so much later than it should.
constexpr absl::Duration kCommitNoise = absl::Seconds(5), kWaitNoise = absl::Seconds(1);

class MirrorPlay;

struct Event {
  absl::string_view name;
  absl::Status (*run)(MirrorPlay& play);
  int weight = 20;           // how often it is drawn
  bool of_training = false;  // commits may take longer
};

// A world and its course.
class MirrorPlay {
 public:
  MirrorPlay(const MirrorCampaignOptions& options, int64_t number, absl::Time latest, MirrorCampaignResult& result)
      : options_(options),
        number_(number),
        latest_(latest),
        result_(result),
        random_(options.seed * 1'000'003 + static_cast<uint64_t>(number)),
        logs_(absl::StrCat(options.logs.empty() ? folder_.path() : options.logs, "/seed-", options.seed, "-world-",
                           number, "-machine-")) {}

  absl::Status Run();

  // For events.
  const Machines& machines() const { return world_->machines(); }
  NetworkWorld& world() { return *world_; }
  KeptServer& server() { return world_->server(); }
  std::mt19937_64& random() { return random_; }
  int node() const { return node_; }
  int mirror() const { return mirror_; }
  int mirror_machine() const { return world_->mirror_machine(mirror_); }
  void Pass(absl::Duration time);
  void PassUpTo(absl::Duration longest) { Pass(UpTo(longest, random_)); }
  absl::Status CreateAnew();
  absl::Status RestoreSave();
  // Commits that trainers may make while something else is waited for.
  void AllowSome() { Allow(allowed_ + 20); }

 private:
  absl::Status Start();
  absl::Status RunEvents(const std::vector<const Event*>& events);
  absl::Status RunEvent(const Event& event);
  void StartTrainers();
  absl::Status StopTrainers();
  void Allow(int64_t commit);
  int64_t Arrived();
  // Stops at a commit, and waits until every reader has it.
  absl::StatusOr<absl::Duration> AwaitFresh();
  absl::Status CheckReaders();
  absl::Status CheckWaits();
  absl::Status AwaitNoImages();
  std::string Sockets(int node) const { return world_->server().TrainingOf(kModel, node).socket_dir; }
  absl::StatusOr<std::string> Ctl(int node, const std::string& words) const {
    return OutputOf(absl::StrCat(options_.ctl, " --socket-dir=", Sockets(node), " ", words, " 2>&1"));
  }
  void Tell(const std::string& what) const;

  const MirrorCampaignOptions& options_;
  const int64_t number_;
  const absl::Time latest_;
  MirrorCampaignResult& result_;
  std::mt19937_64 random_;
  const TemporaryDirectory folder_;
  const std::string logs_;
  int nodes_ = 2;
  int mirrors_ = 1;
  std::unique_ptr<NetworkWorld> world_;
  std::vector<ChildProcess> trainers_;
  std::vector<ChildProcess> readers_;  // one for each mirror
  int64_t allowed_ = 0;
  int life_ = 0;  // of the model
  int lives_ = 1;
  int node_ = 0, mirror_ = 0;  // that an event is about
  absl::Time began_;
};

absl::Status Then(const absl::Status& first, const absl::Status& second) { return first.ok() ? second : first; }

template <int node_or_mirror>
int MachineOf(MirrorPlay& play) {
  return node_or_mirror == 0 ? play.node() : play.mirror_machine();
}
constexpr int kNode = 0, kMirror = 1;

template <int machine, bool is_long>
absl::Status Cut(MirrorPlay& play) {
  const int cut = MachineOf<machine>(play);
  RETURN_IF_ERROR(play.machines().Cut(cut));
  is_long ? play.Pass(kLong) : play.PassUpTo(kShort);
  return play.machines().Join(cut);
}

// `hears`: the mirror does not hear the daemon; else the other way.
template <bool hears, bool is_long>
absl::Status MuteMirror(MirrorPlay& play) {
  const int from = hears ? play.node() : play.mirror_machine(), to = hears ? play.mirror_machine() : play.node();
  RETURN_IF_ERROR(play.machines().Mute(from, to));
  is_long ? play.Pass(kLong) : play.PassUpTo(kShort);
  return play.machines().Unmute(from, to);
}

absl::Status Mute(MirrorPlay& play) {
  const int other = (play.node() + 1) % play.server().daemons();
  RETURN_IF_ERROR(play.machines().Mute(play.node(), other));
  play.PassUpTo(kShort);
  return play.machines().Unmute(play.node(), other);
}

template <int machine>
absl::Status Lose(MirrorPlay& play) {
  const int lossy = MachineOf<machine>(play);
  RETURN_IF_ERROR(play.machines().Lose(lossy, 10));
  play.PassUpTo(machine == kMirror ? kLonger : kShort);
  return play.machines().LoseNone(lossy);
}

template <int kilobits, bool is_long>
absl::Status SlowMirror(MirrorPlay& play) {
  RETURN_IF_ERROR(play.machines().ThrottleTo(play.mirror_machine(), kilobits));
  is_long ? play.Pass(kLong) : play.PassUpTo(kLonger);
  return play.machines().UnthrottleTo(play.mirror_machine());
}

absl::Status KillMirror(MirrorPlay& play) {
  play.world().mirror(play.mirror()).Signal(SIGKILL);
  play.PassUpTo(kShort);
  play.AllowSome();
  return play.world().StartMirror(play.mirror());
}

template <bool is_long>
absl::Status StopMirror(MirrorPlay& play) {
  play.world().mirror(play.mirror()).Pause();
  is_long ? play.Pass(kLongStop) : play.PassUpTo(kShort);
  play.world().mirror(play.mirror()).Signal(SIGCONT);
  return absl::OkStatus();
}

absl::Status Kill(MirrorPlay& play) {
  play.AllowSome();
  return play.server().Kill({play.node()}, {}, {SIGKILL});
}

absl::Status HalfOpen(MirrorPlay& play) {
  RETURN_IF_ERROR(play.machines().Cut(play.node()));
  kill(play.server().server(play.node()), SIGKILL);
  play.PassUpTo(kShort);
  play.AllowSome();
  RETURN_IF_ERROR(play.machines().Join(play.node()));
  return play.server().AwaitNext({play.node()});
}

absl::Status RotateMirror(MirrorPlay& play) {
  play.world().CertifyMirror(play.mirror());
  play.PassUpTo(kLonger);
  return absl::OkStatus();
}

absl::Status Rotate(MirrorPlay& play) {
  play.world().Certify(play.node());
  play.PassUpTo(kLonger);
  return absl::OkStatus();
}

constexpr Event kEvents[] = {
    {.name = "mirror-cut", .run = Cut<kMirror, false>},
    {.name = "mirror-cut-long", .run = Cut<kMirror, true>, .weight = 4},
    {.name = "mirror-mute", .run = MuteMirror<false, false>},
    {.name = "mirror-mute-long", .run = MuteMirror<false, true>, .weight = 4},
    {.name = "mirror-deaf", .run = MuteMirror<true, false>},
    {.name = "mirror-deaf-long", .run = MuteMirror<true, true>, .weight = 4},
    {.name = "mirror-loss", .run = Lose<kMirror>},
    {.name = "mirror-slow", .run = SlowMirror<80'000, false>},
    {.name = "mirror-crawl", .run = SlowMirror<1000, true>, .weight = 4},
    {.name = "mirror-kill", .run = KillMirror},
    {.name = "mirror-stop", .run = StopMirror<false>},
    {.name = "mirror-stop-long", .run = StopMirror<true>, .weight = 3},
    {.name = "mirror-rotate", .run = RotateMirror, .weight = 5},
    {.name = "cut", .run = Cut<kNode, false>, .of_training = true},
    {.name = "cut-long", .run = Cut<kNode, true>, .weight = 2, .of_training = true},
    {.name = "mute", .run = Mute, .of_training = true},
    {.name = "loss", .run = Lose<kNode>, .of_training = true},
    {.name = "kill", .run = Kill, .of_training = true},
    {.name = "half-open", .run = HalfOpen, .of_training = true},
    {.name = "rotate", .run = Rotate, .weight = 5},
    {.name = "delete", .run = [](MirrorPlay& play) { return play.CreateAnew(); }, .weight = 8, .of_training = true},
    {.name = "restore", .run = [](MirrorPlay& play) { return play.RestoreSave(); }, .weight = 8, .of_training = true},
};

const Event* Find(const std::string& name) {
  const auto* const found = absl::c_find_if(kEvents, [&](const Event& event) { return event.name == name; });
  return found == std::end(kEvents) ? nullptr : found;
}

void MirrorPlay::Tell(const std::string& what) const {
  if (!options_.tells) return;
  absl::FPrintF(stderr, "%s world %d: %s\n", absl::FormatTime("%H:%M:%E3S", absl::Now(), absl::UTCTimeZone()), number_,
                what);
}

absl::Status MirrorPlay::Run() {
  nodes_ = random_() % 4 == 0 ? 4 : 2;
  mirrors_ = 1 + static_cast<int>(random_() % 2);
  std::vector<const Event*> events;
  if (options_.script.has_value()) {
    nodes_ = options_.script->nodes;
    mirrors_ = options_.script->mirrors;
    for (const std::string& name : options_.script->events) {
      events.push_back(Find(name));
      if (events.back() == nullptr) return absl::InvalidArgumentError(absl::StrCat(name, ": no event"));
    }
  } else {
    std::vector<const Event*> drawn;  // each as often as its weight
    for (const Event& event : kEvents) {
      const bool wanted = options_.only.empty() || absl::c_linear_search(options_.only, event.name);
      if (wanted) drawn.insert(drawn.end(), event.weight, &event);
    }
    for (int64_t i = 0; i < options_.events; ++i) events.push_back(drawn[random_() % drawn.size()]);
  }
  absl::Status status = Start();
  if (status.ok()) status = RunEvents(events);
  const std::string shape = absl::StrCat(nodes_, " daemons and ", mirrors_, " mirrors");
  if (!status.ok()) status = absl::Status(status.code(), absl::StrCat(shape, ": ", status.message()));
  Tell(status.ok() ? "everything held" : status.ToString());
  for (int machine = 0; machine < nodes_ + mirrors_ && status.ok(); ++machine) {
    unlink(NetworkWorld::LogOf(logs_, machine).c_str());
  }
  return status;
}

absl::Status MirrorPlay::Start() {
  NetworkWorld::Spec spec{.shape = KeptServer::Shape::kShards, .mirrors = mirrors_, .saves = true, .logs = logs_};
  spec.daemons.daemon = options_.daemon;
  spec.daemons.ctl = options_.ctl;
  spec.daemons.wall_clock = options_.wall_clock;
  spec.daemons.devices.assign(nodes_, "cpu:0");
  Tell(absl::StrCat("start of ", nodes_, " daemons and ", mirrors_, " mirrors"));
  ASSIGN_OR_RETURN(world_, NetworkWorld::Start(spec));
  began_ = absl::Now();
  StartTrainers();
  for (int mirror = 0; mirror < mirrors_; ++mirror) {
    readers_.push_back(ChildProcess::Run(
        [plan = ReaderPlan{.socket_dir = world_->mirror_sockets(mirror),
                           .model = kModel,
                           .seed = random_(),
                           .follows = true}](Board& board) { return ReadUntilStopped(plan, board); }));
  }
  return AwaitFresh().status();
}

absl::Status MirrorPlay::RunEvents(const std::vector<const Event*>& events) {
  absl::Status status;
  for (const Event* const event : events) {
    if (absl::Now() >= latest_ || !status.ok()) break;
    status = RunEvent(*event);
    if (!status.ok()) status = absl::Status(status.code(), absl::StrCat(event->name, ": ", status.message()));
  }
  if (status.ok()) status = AwaitNoImages();
  for (ChildProcess& reader : readers_) {
    Reach(reader.board(), kStop, 1);
    status = Then(status, reader.Await(kTimeout));
    const auto& numbers = reader.board().numbers;
    result_.accepted += numbers[kAccepted];
    result_.versions += numbers[kVersions];
    result_.ended += numbers[kAborted] + numbers[kLost];
  }
  return Then(status, StopTrainers());
}

absl::Status MirrorPlay::RunEvent(const Event& event) {
  node_ = static_cast<int>(random_() % nodes_);
  mirror_ = static_cast<int>(random_() % mirrors_);
  PassUpTo(kShort);
  for (ChildProcess& trainer : trainers_) trainer.board().numbers[kLongestCommitUs] = 0;
  Tell(absl::StrCat(event.name, " of node ", node_, ", mirror ", mirror_, ", at commit ", allowed_));
  RETURN_IF_ERROR(event.run(*this));
  ASSIGN_OR_RETURN(const absl::Duration fresh, AwaitFresh());
  MirrorCampaignResult::Event& counted = result_.events[std::string(event.name)];
  ++counted.count;
  counted.longest_fresh = std::max(counted.longest_fresh, fresh);
  absl::Duration longest;
  for (ChildProcess& trainer : trainers_) {
    longest = std::max(longest, absl::Microseconds(trainer.board().numbers[kLongestCommitUs].load()));
  }
  counted.longest_commit = std::max(counted.longest_commit, longest);
  RETURN_IF_ERROR(Expect(event.of_training || longest <= kReaderHold + kCommitNoise,
                         absl::StrCat("longest commit: want ", absl::FormatDuration(kReaderHold + kCommitNoise),
                                      " at most, got ", absl::FormatDuration(longest))));
  return CheckWaits();
}

void MirrorPlay::StartTrainers() {
  for (int rank = 0; rank < nodes_; ++rank) {
    const ReadableTraining training{.socket_dir = Sockets(rank),
                                    .model = kModel,
                                    .life = life_,
                                    .rank = rank,
                                    .ranks = nodes_,
                                    .large_rows = kLargeRows,
                                    .commits = int64_t{1} << 30};
    trainers_.push_back(ChildProcess::Run([training](Board& board) { return TrainReadable(training, board); }));
  }
}

absl::Status MirrorPlay::StopTrainers() {
  result_.commits += allowed_;
  for (ChildProcess& trainer : trainers_) {
    trainer.Signal(SIGKILL);
    const absl::Status end = trainer.Await(kTimeout);
    if (!absl::IsUnknown(end)) return absl::InternalError(absl::StrCat("a trainer ended with ", end.ToString()));
  }
  trainers_.clear();
  return absl::OkStatus();
}

void MirrorPlay::Allow(int64_t commit) {
  allowed_ = std::max(allowed_, commit);
  AllowCommit(trainers_, static_cast<uint32_t>(allowed_));
}

int64_t MirrorPlay::Arrived() {
  int64_t arrived = 0;
  for (ChildProcess& trainer : trainers_) {
    arrived = std::max<int64_t>(arrived, trainer.board().numbers[kAtCommit]);
  }
  return arrived;
}

// Lets the trainers make a commit each pace, unless they are behind.
void MirrorPlay::Pass(absl::Duration time) {
  for (const absl::Time end = absl::Now() + time; absl::Now() < end; absl::SleepFor(kPace)) {
    if (Arrived() > allowed_) Allow(Arrived());
  }
}

absl::Status MirrorPlay::CheckReaders() {
  for (ChildProcess& reader : readers_) {
    const absl::Status status = reader.Await(absl::ZeroDuration());
    if (!absl::IsDeadlineExceeded(status)) {
      return absl::InternalError(absl::StrCat("a reader ended with ", status.ToString()));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<absl::Duration> MirrorPlay::AwaitFresh() {
  const int64_t last = std::max<int64_t>(allowed_, 1);
  Allow(last);
  // One rank is enough: the commit is made, and the answers to others may have been lost with their servers.
  const auto is_made = [&]() -> absl::StatusOr<bool> { return Arrived() > last; };
  ASSIGN_OR_RETURN(const bool made, Poll({.timeout = kTimeout}, is_made));
  RETURN_IF_ERROR(Expect(made, absl::StrCat("timed out waiting for commit ", last)));
  const absl::Time begin = absl::Now();
  const auto are_fresh = [&]() -> absl::StatusOr<bool> {
    return std::all_of(readers_.begin(), readers_.end(),
                       [&](ChildProcess& reader) { return reader.board().numbers[kLastCommit] == last; });
  };
  ASSIGN_OR_RETURN(const bool fresh, Poll({.timeout = kFreshBound}, are_fresh));
  RETURN_IF_ERROR(CheckReaders());
  std::string got;
  for (ChildProcess& reader : readers_) absl::StrAppend(&got, " ", reader.board().numbers[kLastCommit].load());
  RETURN_IF_ERROR(Expect(
      fresh, absl::StrCat("readers after ", absl::FormatDuration(kFreshBound), ": want commit ", last, ", got", got)));
  return absl::Now() - begin;
}

absl::Status MirrorPlay::CheckWaits() {
  const std::string sum = "\nparamshard_reader_wait_seconds_sum ";
  for (int node = 0; node < nodes_; ++node) {
    ASSIGN_OR_RETURN(const std::string metrics, Ctl(node, "metrics"));
    const size_t at = metrics.find(sum);
    double seconds = 0;
    const bool told =
        at != std::string::npos &&
        absl::SimpleAtod(metrics.substr(at + sum.size(), metrics.find('\n', at + 1) - at - sum.size()), &seconds);
    RETURN_IF_ERROR(Expect(told, "metrics: want paramshard_reader_wait_seconds_sum, got none"));
    // Each model has the hold once. The server may be younger than the world.
    const absl::Duration allowed = lives_ * kReaderHold + 0.01 * (absl::Now() - began_);
    result_.most_waited = std::max(result_.most_waited, absl::FDivDuration(absl::Seconds(seconds), allowed));
    RETURN_IF_ERROR(Expect(absl::Seconds(seconds) <= allowed + kWaitNoise,
                           absl::StrCat("waits of node ", node, " for mirrors: want ", absl::FormatDuration(allowed),
                                        " at most, got ", absl::FormatDuration(absl::Seconds(seconds)))));
  }
  return absl::OkStatus();
}

absl::Status MirrorPlay::AwaitNoImages() {
  std::string holder;
  const auto are_gone = [&]() -> absl::StatusOr<bool> {
    for (int node = 0; node < nodes_; ++node) {
      ASSIGN_OR_RETURN(holder, Ctl(node, "memory"));
      if (holder.find("mirror_images") != std::string::npos) return false;
    }
    return true;
  };
  ASSIGN_OR_RETURN(const bool gone, Poll({.timeout = kFreshBound}, are_gone));
  return Expect(gone, absl::StrCat("a daemon keeps an image for mirrors:\n", holder));
}

absl::Status MirrorPlay::CreateAnew() {
  RETURN_IF_ERROR(StopTrainers());
  for (int node = 0; node < nodes_; ++node) {
    absl::StatusOr<std::string> deleted;
    // The daemon may not have noticed yet that the trainers have gone.
    const auto is_deleted = [&]() -> absl::StatusOr<bool> {
      deleted = Ctl(node, absl::StrCat("delete ", kModel));
      return deleted.ok();
    };
    ASSIGN_OR_RETURN(const bool gone, Poll({.timeout = kTimeout}, is_deleted));
    if (!gone) return deleted.status();
  }
  // Now and then mirrors do not notice that it is another model.
  if (random_() % 2 == 0) absl::SleepFor(UpTo(kShort, random_));
  for (ChildProcess& reader : readers_) reader.board().numbers[kLastCommit] = 0;
  life_ = 1 - life_;
  ++lives_;
  allowed_ = 0;
  StartTrainers();
  PassUpTo(kShort);
  return absl::OkStatus();
}

absl::Status MirrorPlay::RestoreSave() {
  RETURN_IF_ERROR(Ctl(0, absl::StrCat("save ", kModel, " --wait")).status());
  PassUpTo(kShort);
  RETURN_IF_ERROR(StopTrainers());
  absl::StatusOr<std::string> restored;
  const auto is_restored = [&]() -> absl::StatusOr<bool> {
    restored = Ctl(0, absl::StrCat("restore ", kModel));
    return restored.ok();
  };
  ASSIGN_OR_RETURN(const bool done, Poll({.timeout = kTimeout}, is_restored));
  if (!done) return restored.status();
  ++lives_;
  allowed_ = 0;
  StartTrainers();
  // They begin behind the saved commit.
  const auto have_begun = [&]() -> absl::StatusOr<bool> { return Arrived() > 0; };
  ASSIGN_OR_RETURN(const bool begun, Poll({.timeout = kTimeout}, have_begun));
  RETURN_IF_ERROR(Expect(begun, "timed out waiting for trainers of a restored model"));
  Allow(Arrived());
  PassUpTo(kShort);
  return absl::OkStatus();
}

}  // namespace

std::vector<std::string> MirrorEventNames() {
  std::vector<std::string> names;
  for (const Event& event : kEvents) names.emplace_back(event.name);
  return names;
}

MirrorCampaignResult RunMirrorCampaign(const MirrorCampaignOptions& options) {
  MirrorCampaignResult result;
  result.seed = options.seed;
  const absl::Time latest = absl::Now() + options.time;
  const int64_t end = options.first_world + options.worlds;
  for (int64_t world = options.first_world; world < end && absl::Now() < latest && result.status.ok(); ++world) {
    const absl::Status status = MirrorPlay(options, world, latest, result).Run();
    if (!status.ok())
      result.status = absl::Status(status.code(), absl::StrCat("world ", world, ": ", status.message()));
    ++result.worlds;
  }
  return result;
}

int64_t MirrorCampaignResult::EventCount() const {
  int64_t sum = 0;
  for (const auto& [name, event] : events) sum += event.count;
  return sum;
}

std::string MirrorCampaignResult::Table() const {
  std::string text = absl::StrFormat("%-18s %8s %14s %15s\n", "EVENT", "COUNT", "LONGEST FRESH", "LONGEST COMMIT");
  for (const auto& [name, event] : events) {
    absl::StrAppendFormat(&text, "%-18s %8d %13.3fs %14.3fs\n", name, event.count,
                          absl::ToDoubleSeconds(event.longest_fresh), absl::ToDoubleSeconds(event.longest_commit));
  }
  absl::StrAppendFormat(&text,
                        "seed %d, %d worlds, %d events, %d commits; readers accepted %d snapshots of %d versions, %d "
                        "ended; steps waited %.0f %% of what they may\n",
                        seed, worlds, EventCount(), commits, accepted, versions, ended, 100 * most_waited);
  return absl::StrCat(text, status.ok() ? "everything held" : status.ToString(), "\n");
}

std::string MirrorCampaignResult::Json() const {
  nlohmann::ordered_json json = {{"seed", seed},
                                 {"worlds", worlds},
                                 {"eventCount", EventCount()},
                                 {"held", status.ok()},
                                 {"status", status.ToString()},
                                 {"commits", commits},
                                 {"accepted", accepted},
                                 {"versions", versions},
                                 {"ended", ended},
                                 {"mostWaitedOfAllowed", most_waited},
                                 {"events", nlohmann::ordered_json::object()}};
  for (const auto& [name, event] : events) {
    json["events"][name] = {{"count", event.count},
                            {"longestFreshSeconds", absl::ToDoubleSeconds(event.longest_fresh)},
                            {"longestCommitSeconds", absl::ToDoubleSeconds(event.longest_commit)}};
  }
  return json.dump(2) + "\n";
}

}  // namespace paramshard::test
