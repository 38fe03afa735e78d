#include "lab/campaign/reader_campaign.h"

#include <algorithm>
#include <cmath>
#include <csignal>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "kernels/base/polling.h"
#include "kernels/base/status_macros.h"
#include "lab/campaign/campaign.h"
#include "lab/campaign/kept_server.h"
#include "lab/campaign/moments.h"
#include "lab/campaign/readable_training.h"
#include "lab/campaign/world.h"
#include "nlohmann/json.hpp"
#include "tests/support/process_counts.h"

namespace paramshard::test {
namespace {

constexpr const char* kModel = "read";
constexpr const char* kCalmModel = "calm";
constexpr int kRanks = 2;
constexpr int64_t kCommitsOfNewLife = 40;
// Between two disturbances of readers.
constexpr absl::Duration kLongestPeace = absl::Milliseconds(150);
constexpr absl::Duration kLongestStop = absl::Seconds(3);
// Machines are busy, and so are processes with 200 readers: a commit may take so long besides the hold.
constexpr absl::Duration kCommitNoise = absl::Seconds(5);
// A wait may end so much later than it should.
constexpr absl::Duration kWaitNoise = absl::Seconds(1);
// gRPC closes a connection some time after its client has gone.
constexpr absl::Duration kLevelTimeout = absl::Seconds(60);

// The readers of a round.
class Population {
 public:
  Population(ReaderCampaignResult& result, std::mt19937_64& random, std::string socket_dir, int64_t verifiers)
      : result_(result), random_(random), socket_dir_(std::move(socket_dir)), verifiers_(verifiers) {}

  void Start() {
    for (int64_t i = 0; i < verifiers_; ++i) Add(ReaderKind::kVerifier);
    for (int kind = 1; kind < kReaderKinds; ++kind) Add(static_cast<ReaderKind>(kind));
  }

  // Kills, stops or ends one of them; continues those whose time has come.
  absl::Status Disturb() {
    for (Seat& seat : seats_) {
      if (absl::Now() >= seat.continues_at) Continue(seat);
    }
    const size_t number = random_() % seats_.size();
    Seat& seat = seats_[number];
    const auto draw = random_() % 20;
    if (draw < 13) return Kill(seat);
    if (draw < 19) {
      seat.process.Signal(SIGSTOP);
      ++result_.reader_stops;
      // Now and then to the end of the phase.
      seat.continues_at = draw < 17 ? absl::Now() + UpTo(kLongestStop, random_) : absl::InfiniteFuture();
      return absl::OkStatus();
    }
    Continue(seat);
    RETURN_IF_ERROR(End(seat));
    Replace(seat);
    return absl::OkStatus();
  }

  // Ends all; every one must have been content.
  absl::Status Stop() {
    for (Seat& seat : seats_) {
      Continue(seat);
      Reach(seat.process.board(), kStop, 1);
    }
    for (Seat& seat : seats_) RETURN_IF_ERROR(End(seat));
    seats_.clear();
    return absl::OkStatus();
  }

  int64_t Sum(ReaderNumber number) {
    int64_t sum = result_.numbers[number];
    for (Seat& seat : seats_) sum += seat.process.board().numbers[number];
    return sum;
  }

 private:
  struct Seat {
    ReaderKind kind;
    ChildProcess process;
    absl::Time continues_at = absl::InfiniteFuture();
  };

  ChildProcess Run(ReaderKind kind) {
    return ChildProcess::Run(
        [plan = ReaderPlan{.kind = kind, .socket_dir = socket_dir_, .model = kModel, .seed = random_()}](Board& board) {
          return ReadUntilStopped(plan, board);
        });
  }
  void Add(ReaderKind kind) { seats_.push_back({.kind = kind, .process = Run(kind)}); }
  void Replace(Seat& seat) { seat = {.kind = seat.kind, .process = Run(seat.kind)}; }

  static void Continue(Seat& seat) {
    seat.process.Signal(SIGCONT);
    seat.continues_at = absl::InfiniteFuture();
  }

  void Count(Seat& seat) {
    for (int number = 0; number < kReaderNumbers; ++number) {
      result_.numbers[number] += seat.process.board().numbers[number];
    }
  }

  absl::Status Kill(Seat& seat) {
    seat.process.Signal(SIGKILL);
    const absl::Status end = seat.process.Await(kTimeout);
    // The end of one that found something wrong is no kill.
    if (!absl::IsUnknown(end)) return Ended(end);
    ++result_.reader_kills;
    result_.reading_kills += seat.process.board().numbers[kInside];
    Count(seat);
    Replace(seat);
    return absl::OkStatus();
  }

  absl::Status End(Seat& seat) {
    Reach(seat.process.board(), kStop, 1);
    const absl::Status end = seat.process.Await(kTimeout);
    Count(seat);
    return end.ok() ? end : Ended(end);
  }

  static absl::Status Ended(const absl::Status& end) {
    return absl::InternalError(absl::StrCat("a reader ended with ", end.ToString()));
  }

  ReaderCampaignResult& result_;
  std::mt19937_64& random_;
  const std::string socket_dir_;
  const int64_t verifiers_;
  std::vector<Seat> seats_;
};

struct Level {
  int64_t threads = 0;
  int64_t descriptors = 0;
};

Level LevelOf(pid_t process) {
  const std::string id = absl::StrCat(process);
  return {.threads = OwnThreads(id), .descriptors = CountEntries(absl::StrCat("/proc/", id, "/fd"))};
}

// What is released later may have been counted before: less is level, too.
absl::Status AwaitLevel(absl::string_view name, pid_t process, const Level& before) {
  Level now;
  const auto is_level = [&]() -> absl::StatusOr<bool> {
    now = LevelOf(process);
    return now.threads <= before.threads && now.descriptors <= before.descriptors;
  };
  ASSIGN_OR_RETURN(const bool level, Poll({.timeout = kLevelTimeout}, is_level));
  return Expect(level, absl::StrCat(name, " after readers: want ", before.threads, " threads and ", before.descriptors,
                                    " descriptors, got ", now.threads, " and ", now.descriptors));
}

class ReaderRound {
 public:
  static absl::Status Run(const ReaderCampaignOptions& options, int64_t number, ReaderCampaignResult& result) {
    CampaignOptions campaign{
        .daemon = options.daemon, .ctl = options.ctl, .seed = options.seed, .tells = options.tells};
    KeptServer::Spec spec{.shape = KeptServer::Shape::kOneDaemon, .sites = {}, .commits = options.commits};
    spec.sites.push_back({.flags = {absl::StrCat("--reader-hold=", absl::FormatDuration(options.reader_hold))},
                          .devices = campaign.devices});
    ASSIGN_OR_RETURN(KeptServer server, KeptServer::Start(campaign, std::move(spec)));
    return ReaderRound(options, number, std::move(server), result).Run();
  }

 private:
  ReaderRound(const ReaderCampaignOptions& options, int64_t number, KeptServer server, ReaderCampaignResult& result)
      : options_(options),
        result_(result),
        server_(std::move(server)),
        random_(options.seed * 1'000'003 + static_cast<uint64_t>(number)),
        sums_(number % 2 == 0 ? GradientSums::kAtPush : GradientSums::kAtCommit),
        readers_(result, random_, socket_dir(), options.verifiers) {}

  std::string socket_dir() const { return server_.TrainingOf(kModel, 0).socket_dir; }
  void Tell(const std::string& what) const { test::Tell(server_.options(), what); }

  absl::Status Run() {
    ASSIGN_OR_RETURN(const std::string calm_hash, TrainCalmly());
    RETURN_IF_ERROR(Delete(kCalmModel));
    const Level keeper = LevelOf(server_.keeper(0));
    std::vector<ChildProcess> trainers = StartTrainers(kModel, /*life=*/0, sums_, options_.commits);
    readers_.Start();
    // Two thirds of the commits with kills of the server.
    for (int64_t kill = 1; kill <= options_.kills; ++kill) {
      RETURN_IF_ERROR(KillServer(trainers, options_.commits * 2 * kill / (3 * options_.kills)));
    }
    RETURN_IF_ERROR(ReadWithoutKills(trainers));
    readers_.Start();
    AllowCommit(trainers, static_cast<uint32_t>(options_.commits));
    RETURN_IF_ERROR(Finish(trainers));
    ASSIGN_OR_RETURN(const std::string hash, server_.StateHash(kModel));
    RETURN_IF_ERROR(Expect(hash == calm_hash, absl::StrCat("state's hash: want ", calm_hash, ", got ", hash)));
    RETURN_IF_ERROR(LiveAgain());
    RETURN_IF_ERROR(readers_.Stop());
    RETURN_IF_ERROR(Delete(kModel));
    return AwaitLevel("keeper", server_.keeper(0), keeper);
  }

  std::vector<ChildProcess> StartTrainers(const std::string& model, int life, GradientSums sums, int64_t commits) {
    std::vector<ChildProcess> trainers;
    for (int rank = 0; rank < kRanks; ++rank) {
      const ReadableTraining training{.socket_dir = socket_dir(),
                                      .model = model,
                                      .life = life,
                                      .gradient_sums = sums,
                                      .rank = rank,
                                      .commits = commits};
      trainers.push_back(ChildProcess::Run([training](Board& board) { return TrainReadable(training, board); }));
    }
    return trainers;
  }

  absl::StatusOr<std::string> TrainCalmly() {
    std::vector<ChildProcess> trainers = StartTrainers(kCalmModel, /*life=*/0, sums_, options_.commits);
    AllowCommit(trainers, static_cast<uint32_t>(options_.commits));
    RETURN_IF_ERROR(AwaitEnds(trainers, 5 * kTimeout));
    result_.longest_calm_commit = std::max(result_.longest_calm_commit, LongestCommit(trainers));
    return server_.StateHash(kCalmModel);
  }

  absl::Status KillServer(std::vector<ChildProcess>& trainers, int64_t commit) {
    AllowCommit(trainers, static_cast<uint32_t>(commit - 1));
    RETURN_IF_ERROR(DisturbUntil(trainers, commit));
    RETURN_IF_ERROR(CheckHolds());
    const Moment moment = random_() % 2 == 0 ? Moment::kInAStep : Moment::kAfterDecision;
    RETURN_IF_ERROR(
        AwaitMoment(server_, kModel, trainers, static_cast<uint32_t>(commit), /*watched=*/0, moment, random_));
    server_began_ = absl::Now();
    RETURN_IF_ERROR(server_.End({0}, absl::ZeroDuration(), SIGKILL));
    ++result_.server_kills;
    result_.decided_kills += moment == Moment::kAfterDecision;
    RETURN_IF_ERROR(readers_.Disturb());
    RETURN_IF_ERROR(server_.AwaitNext({0}));
    Tell(absl::StrCat("server killed at commit ", commit, "; ", readers_.Sum(kAccepted), " snapshots accepted, ",
                      result_.reader_kills, " readers killed"));
    return absl::OkStatus();
  }

  // What readers take of a server they give back: the server before and after is the same process.
  absl::Status ReadWithoutKills(std::vector<ChildProcess>& trainers) {
    RETURN_IF_ERROR(readers_.Stop());
    const int64_t begin = options_.commits * 3 / 4;
    AllowCommit(trainers, static_cast<uint32_t>(begin - 1));
    for (ChildProcess& trainer : trainers) {
      const bool there = trainer.AwaitNumber(kAtCommit, static_cast<uint32_t>(begin), kTimeout);
      RETURN_IF_ERROR(Expect(there, absl::StrCat("timed out waiting for a trainer at commit ", begin)));
    }
    const Level server = LevelOf(server_.server(0));
    readers_.Start();
    AllowCommit(trainers, static_cast<uint32_t>(options_.commits - 1));
    RETURN_IF_ERROR(DisturbUntil(trainers, options_.commits));
    RETURN_IF_ERROR(CheckHolds());
    RETURN_IF_ERROR(readers_.Stop());
    return AwaitLevel("server", server_.server(0), server);
  }

  // Readers of the deleted model come to the new one, which has other values at the same commits.
  absl::Status LiveAgain() {
    RETURN_IF_ERROR(Delete(kModel));
    const int64_t before = readers_.Sum(kNewLife);
    const GradientSums sums = sums_ == GradientSums::kAtPush ? GradientSums::kAtCommit : GradientSums::kAtPush;
    std::vector<ChildProcess> trainers = StartTrainers(kModel, /*life=*/1, sums, kCommitsOfNewLife);
    AllowCommit(trainers, kCommitsOfNewLife - 1);
    RETURN_IF_ERROR(DisturbUntil(trainers, kCommitsOfNewLife));
    const auto is_read = [&] { return readers_.Sum(kNewLife) > before; };
    RETURN_IF_ERROR(Disturb("a snapshot of the new model", is_read));
    AllowCommit(trainers, kCommitsOfNewLife);
    return Finish(trainers);
  }

  absl::Status Finish(std::vector<ChildProcess>& trainers) {
    RETURN_IF_ERROR(AwaitEnds(trainers, kTimeout));
    for (ChildProcess& trainer : trainers) result_.commits += trainer.board().numbers[kAtCommit];
    const absl::Duration longest = LongestCommit(trainers);
    result_.longest_commit = std::max(result_.longest_commit, longest);
    const absl::Duration most = options_.reader_hold + kCommitNoise;
    return Expect(longest <= most, absl::StrCat("a commit's time: want at most ", absl::FormatDuration(most), ", got ",
                                                absl::FormatDuration(longest)));
  }

  static absl::Duration LongestCommit(std::vector<ChildProcess>& trainers) {
    uint32_t longest = 0;
    for (ChildProcess& trainer : trainers)
      longest = std::max(longest, trainer.board().numbers[kLongestCommitUs].load());
    return absl::Microseconds(longest);
  }

  absl::Status DisturbUntil(std::vector<ChildProcess>& trainers, int64_t commit) {
    const auto is_there = [&] {
      return std::any_of(trainers.begin(), trainers.end(),
                         [&](ChildProcess& trainer) { return trainer.board().numbers[kAtCommit] >= commit; });
    };
    const absl::Status status = Disturb(absl::StrCat("commit ", commit), is_there);
    if (!absl::IsDeadlineExceeded(status)) return status;
    RETURN_IF_ERROR(AwaitEnds(trainers, absl::ZeroDuration()));
    return status;
  }

  template <typename Done>
  absl::Status Disturb(absl::string_view what, Done is_done) {
    const absl::Time latest = absl::Now() + kTimeout;
    while (absl::Now() < latest) {
      if (is_done()) return absl::OkStatus();
      RETURN_IF_ERROR(readers_.Disturb());
      // Waits for no event, to hit any time.
      absl::SleepFor(UpTo(kLongestPeace, random_));
    }
    return absl::DeadlineExceededError(absl::StrCat("timed out waiting for ", what));
  }

  // Asks the daemon how long steps have waited. A hostile reader is waited for always.
  absl::Status CheckHolds() {
    ASSIGN_OR_RETURN(const std::string output,
                     OutputOf(absl::StrCat(options_.ctl, " --socket-dir=", socket_dir(), " -o json readers")));
    const nlohmann::json answer = nlohmann::json::parse(output, nullptr, /*allow_exceptions=*/false);
    const absl::Duration allowed = options_.reader_hold + 0.01 * (absl::Now() - server_began_);
    for (const nlohmann::json& reader : answer.value("readers", nlohmann::json::array())) {
      absl::Duration held;
      const std::string text = reader.value("held", "0s");
      RETURN_IF_ERROR(Expect(absl::ParseDuration(text, &held), absl::StrCat("held: want a duration, got ", text)));
      result_.longest_held = std::max(result_.longest_held, held);
      result_.most_held = std::max(result_.most_held, absl::FDivDuration(held, allowed));
      RETURN_IF_ERROR(
          Expect(held <= allowed + kWaitNoise,
                 absl::StrCat("steps waited for reader ", reader.value("name", ""), ": want ",
                              absl::FormatDuration(allowed), " at most, got ", absl::FormatDuration(held))));
    }
    return absl::OkStatus();
  }

  absl::Status Delete(const std::string& model) const {
    return ChildProcess::Run([&](Board&) -> absl::Status {
             ASSIGN_OR_RETURN(Client client, Client::Connect({.socket_dir = socket_dir()}));
             return client.DeleteModel(model);
           })
        .Await(kTimeout);
  }

  const ReaderCampaignOptions& options_;
  ReaderCampaignResult& result_;
  KeptServer server_;
  std::mt19937_64 random_;
  const GradientSums sums_;
  Population readers_;
  absl::Time server_began_ = absl::Now();  // at the latest
};

struct Line {
  const char* name;
  int64_t count;
};

std::vector<Line> LinesOf(const ReaderCampaignResult& result) {
  return {{"accepted", result.numbers[kAccepted]},       {"versions", result.numbers[kVersions]},
          {"ofNewModels", result.numbers[kNewLife]},     {"aborted", result.numbers[kAborted]},
          {"tornAndRefused", result.numbers[kTorn]},     {"daemonDied", result.numbers[kLost]},
          {"releasedUnread", result.numbers[kReleased]}, {"noSnapshot", result.numbers[kNoSnapshot]},
          {"hostileWrites", result.numbers[kWrites]},    {"serverKills", result.server_kills},
          {"decidedServerKills", result.decided_kills},  {"readerKills", result.reader_kills},
          {"readerKillsInARead", result.reading_kills},  {"readerStops", result.reader_stops}};
}

}  // namespace

ReaderCampaignResult RunReaderCampaign(const ReaderCampaignOptions& options) {
  ReaderCampaignResult result;
  result.seed = options.seed;
  const absl::Time begin = absl::Now();
  for (int64_t i = 0; i < options.rounds && absl::Now() - begin < options.time && result.status.ok(); ++i) {
    const int64_t number = options.first_round + i;
    const absl::Status status = ReaderRound::Run(options, number, result);
    ++result.rounds;
    if (status.ok()) continue;
    result.status =
        absl::Status(status.code(), absl::StrCat("seed ", options.seed, ", round ", number, ": ", status.message()));
  }
  result.time = absl::Now() - begin;
  return result;
}

std::string ReaderCampaignResult::Table() const {
  std::string text;
  for (const Line& line : LinesOf(*this)) absl::StrAppendFormat(&text, "%-20s %10d\n", line.name, line.count);
  absl::StrAppendFormat(&text,
                        "seed %d, %d rounds in %d s, %d commits of ranks; longest commit %s with readers, %s without; "
                        "steps waited at most "
                        "%s for a reader, %.0f %% of what they may\n",
                        seed, rounds, absl::ToInt64Seconds(time), commits, absl::FormatDuration(longest_commit),
                        absl::FormatDuration(longest_calm_commit), absl::FormatDuration(longest_held), 100 * most_held);
  return absl::StrCat(text, status.ok() ? "everything held" : status.ToString(), "\n");
}

std::string ReaderCampaignResult::Json() const {
  nlohmann::ordered_json json = {{"seed", seed},
                                 {"rounds", rounds},
                                 {"seconds", std::round(absl::ToDoubleSeconds(time))},
                                 {"held", status.ok()},
                                 {"status", status.ToString()},
                                 {"commitsOfRanks", commits},
                                 {"longestCommitSeconds", absl::ToDoubleSeconds(longest_commit)},
                                 {"longestCalmCommitSeconds", absl::ToDoubleSeconds(longest_calm_commit)},
                                 {"longestHeldSeconds", absl::ToDoubleSeconds(longest_held)},
                                 {"mostHeldOfAllowed", most_held}};
  for (const Line& line : LinesOf(*this)) json[line.name] = line.count;
  return json.dump(2) + "\n";
}

}  // namespace paramshard::test
