// Mirrors of a training on other nodes, each with a reader beside it: all are daemons of this machine. Weights are known
// at every commit, so that a reader tells whether each byte is the commit's that it was given.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/client.h"
#include "client/reader.h"
#include "gmock/gmock.h"
#include "kernels/base/status_macros.h"
#include "kernels/formats/format.h"
#include "tests/support/child_process.h"
#include "tests/support/daemon_process.h"
#include "tests/support/environment.h"
#include "tests/support/status_matchers.h"

namespace paramshard::test {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kTimeout = absl::Seconds(60);

// Four significant bits, as many as E4M3 has. Neighbouring commits differ, and differences are exact in float32.
float ValueAt(int64_t commit) {
  const int place = static_cast<int>(commit % 64);
  return std::ldexp(static_cast<float>(8 + place % 8), place / 8 - 8);
}

ModelSpec KnownModel(int ranks) {
  ModelSpec spec{.name = "m", .units = {{.name = "first"}, {.name = "second"}}};
  spec.groups = {{.optimizer = Optimizer::kSgd}};
  spec.small_parameter_bytes = 4096;
  spec.shard_size = ranks;
  const auto parameter = [](Format format, std::vector<int64_t> shape) {
    return ParameterSpec{.name = std::string(FormatName(format)),
                         .shape = std::move(shape),
                         .encoding = {.format = format},
                         .initial_value = {Initializer::kConstant, ValueAt(0)}};
  };
  spec.units[0].parameters = {parameter(Format::kFP32, {48, 32}), parameter(Format::kMXFP8, {64, 64})};
  spec.units[1].parameters = {parameter(Format::kFP8Block128x128, {300, 640}), parameter(Format::kBF16, {40, 48})};
  return spec;
}

absl::Status Step(Model& model, int64_t commit) {
  for (const UnitSpec& unit : model.spec().units) {
    ASSIGN_OR_RETURN(UnitGradients gradients, model.Gradients(unit.name));
    for (const ParameterSpec& parameter : unit.parameters) {
      ASSIGN_OR_RETURN(const GradientView view, gradients.Get(parameter.name));
      std::fill(view.fp32().begin(), view.fp32().end(), ValueAt(commit - 1) - ValueAt(commit));
    }
    RETURN_IF_ERROR(gradients.Push());
  }
  ASSIGN_OR_RETURN(PendingCommit pending, model.Commit({.learning_rate = 1.0f}));
  ASSIGN_OR_RETURN(const StepResult result, pending.Wait());
  if (result.commit_number == commit && !result.skipped) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("applied commit: want ", commit, ", got ", result.commit_number));
}

// Daemons of one rank each, which share one model, and their trainers on threads.
class MirroredTraining {
 public:
  explicit MirroredTraining(int nodes, std::vector<std::string> flags = {}) : flags_(std::move(flags)) {
    for (int node = 0; node < nodes; ++node) {
      sockets_.emplace_back();
      ports_.push_back(FreePort());
    }
    if (nodes > 1) cluster_address_ = absl::StrCat("--cluster-address=127.0.0.1:", FreePort());
    for (int node = 0; node < nodes; ++node) daemons_.push_back(Spawn(node));
  }
  ~MirroredTraining() {
    stopped_ = true;
    for (std::thread& trainer : trainers_) trainer.join();
  }

  absl::Status AwaitReady() {
    for (DaemonProcess& daemon : daemons_) RETURN_IF_ERROR(daemon.AwaitReady());
    return absl::OkStatus();
  }
  // Trains until `commits`, or until the end of this object, across servers that die.
  void Train(int64_t commits) {
    commit_ = 0;
    for (int rank = 0; rank < static_cast<int>(daemons_.size()); ++rank) {
      trainers_.emplace_back([this, rank, commits] { EXPECT_OK(TrainRank(rank, commits)); });
    }
  }
  void Join() {
    for (std::thread& trainer : trainers_) trainer.join();
    trainers_.clear();
  }
  int64_t commit() const { return commit_; }

  const std::string& sockets(int node) const { return sockets_[node].path(); }
  std::string address() const { return absl::StrCat("127.0.0.1:", ports_[0]); }

 private:
  DaemonProcess Spawn(int node) {
    std::vector<std::string> flags = {absl::StrCat("--device=cpu:", node),
                                      absl::StrCat("--listen=127.0.0.1:", ports_[node]), "--insecure=on",
                                      "--log-level=warning"};
    if (!cluster_address_.empty()) {
      flags.insert(flags.end(),
                   {absl::StrCat("--node=", node), absl::StrCat("--nodes=", sockets_.size()), cluster_address_});
    }
    flags.insert(flags.end(), flags_.begin(), flags_.end());
    return DaemonProcess::Spawn(Program(PARAMSHARDD), sockets_[node].path(), flags);
  }

  absl::Status TrainRank(int rank, int64_t commits) {
    absl::Status status;
    do {
      status = TrainEpoch(rank, commits);
    } while (!stopped_ && (absl::IsAborted(status) || absl::IsUnavailable(status)));
    return stopped_ ? absl::OkStatus() : status;
  }
  absl::Status TrainEpoch(int rank, int64_t commits) {
    ASSIGN_OR_RETURN(
        Client client,
        Client::Connect(
            {.rank = rank,
             .socket_dir = sockets_[rank].path(),
             .attach_timeout = kTimeout,
             .restart_timeout = kTimeout,
             .on_wait = [](absl::string_view) {},
             .interrupted = [this] { return stopped_ ? absl::CancelledError("stopped") : absl::OkStatus(); }}));
    ASSIGN_OR_RETURN(Model model, client.OpenModel(KnownModel(static_cast<int>(daemons_.size()))));
    for (int64_t commit = model.commit_number() + 1; commit <= commits && !stopped_; ++commit) {
      RETURN_IF_ERROR(Step(model, commit));
      if (rank == 0) commit_ = commit;
    }
    return absl::OkStatus();
  }

  const std::vector<std::string> flags_;
  std::string cluster_address_;
  std::vector<TemporaryDirectory> sockets_;
  std::vector<int> ports_;
  std::vector<DaemonProcess> daemons_;
  std::atomic<int64_t> commit_ = 0;
  std::atomic<bool> stopped_ = false;
  std::vector<std::thread> trainers_;
};

// A mirror, and the reader beside it.
class ReadMirror {
 public:
  ReadMirror(const MirroredTraining& training, std::vector<std::string> flags = {})
      : flags_(std::move(flags)), reader_(*Reader::Create({.model = "m", .socket_dir = sockets_.path()})) {
    flags_.insert(flags_.end(), {absl::StrCat("--mirror=", training.address()), "--keeper=off", "--log-level=warning"});
    Start();
  }

  void Start() {
    daemon_.reset();
    daemon_.emplace(DaemonProcess::Spawn(Program(PARAMSHARDD), sockets_.path(), flags_));
  }
  DaemonProcess& daemon() { return *daemon_; }
  const std::string& sockets() const { return sockets_.path(); }

  // Waits for a version of at least that commit, reads all of it, and returns its commit number. INTERNAL a value is
  // not that commit's.
  absl::StatusOr<int64_t> Read(int64_t least_commit) {
    while (true) {
      ASSIGN_OR_RETURN(const Snapshot snapshot, reader_->Acquire({.min_commit = least_commit, .timeout = kTimeout}));
      const absl::Status status = CheckValues(snapshot);
      if (status.ok()) return snapshot.version().commit_number;
      if (!absl::IsAborted(status) && !absl::IsUnavailable(status)) return status;
    }
  }

 private:
  static absl::Status CheckValues(const Snapshot& snapshot) {
    const int64_t commit = snapshot.version().commit_number;
    for (const ReadParameter& parameter : snapshot.parameters()) {
      std::vector<float> values(parameter.rows * parameter.columns);
      RETURN_IF_ERROR(snapshot.Read(parameter.name, absl::MakeSpan(values)));
      const float expected = ValueAt(commit);
      const auto wrong = std::find_if(values.begin(), values.end(), [&](float value) { return value != expected; });
      if (wrong == values.end()) continue;
      return absl::InternalError(absl::StrCat(parameter.name, " at commit ", commit, ": element ",
                                              wrong - values.begin(), ": want ", expected, ", got ", *wrong));
    }
    return absl::OkStatus();
  }

  const TemporaryDirectory sockets_;
  std::vector<std::string> flags_;
  const std::unique_ptr<Reader> reader_;
  std::optional<DaemonProcess> daemon_;
};

absl::StatusOr<nlohmann::json> Ctl(const std::string& sockets, const std::string& words) {
  ASSIGN_OR_RETURN(const std::string output,
                   OutputOf(absl::StrCat(Program(PARAMSHARDCTL), " --socket-dir=", sockets, " -o json ", words)));
  return nlohmann::json::parse(output);
}

// Returns the server's process of a daemon.
absl::StatusOr<pid_t> ServerOf(const std::string& sockets) {
  ASSIGN_OR_RETURN(const nlohmann::json version, Ctl(sockets, "version"));
  return static_cast<pid_t>(std::stoll(version.value("pid", "0")));
}

std::string Activate(const ReadMirror& mirror, int64_t commit) {
  return absl::StrCat(Program(PARAMSHARDCTL), " --socket-dir=", mirror.sockets(), " mirror activate m ", commit,
                      " >/dev/null 2>&1");
}

// Reads so many versions, each newer than the one before.
absl::Status ReadVersions(ReadMirror& mirror, int versions) {
  int64_t commit = 0;
  for (int i = 0; i < versions; ++i) {
    ASSIGN_OR_RETURN(commit, mirror.Read(commit + 1));
  }
  return absl::OkStatus();
}

TEST(MirrorTest, AReaderBesideAMirrorReadsEveryByteOfItsVersions) {
  for (const int nodes : {1, 2}) {
    SCOPED_TRACE(absl::StrCat(nodes, " nodes"));
    MirroredTraining training(nodes);
    ASSERT_OK(training.AwaitReady());
    ReadMirror mirror(training);
    training.Train(/*commits=*/1'000'000);
    EXPECT_OK(ReadVersions(mirror, 30));
  }
}

TEST(MirrorTest, TheLastVersionArrives) {
  MirroredTraining training(2);
  ASSERT_OK(training.AwaitReady());
  ReadMirror mirror(training);
  training.Train(100);
  training.Join();
  EXPECT_THAT(mirror.Read(100), IsOkAndHolds(100));
}

TEST(MirrorTest, AMirrorThatIsKilledComesBack) {
  MirroredTraining training(2);
  ASSERT_OK(training.AwaitReady());
  ReadMirror mirror(training), other(training);
  training.Train(/*commits=*/1'000'000);
  ASSERT_OK(ReadVersions(mirror, 3));
  for (int i = 0; i < 3; ++i) {
    const int64_t before = training.commit();
    mirror.daemon().Signal(SIGKILL);
    ASSERT_OK(mirror.daemon().AwaitExit(kTimeout));
    // Neither the training nor another mirror waits for it.
    ASSERT_OK(other.Read(before + 10));
    mirror.Start();
    ASSERT_OK(mirror.Read(before + 10));
  }
}

TEST(MirrorTest, AMirrorThatStandsStillIsCutOff) {
  MirroredTraining training(1);
  ASSERT_OK(training.AwaitReady());
  ReadMirror mirror(training), other(training);
  training.Train(/*commits=*/1'000'000);
  ASSERT_OK(ReadVersions(mirror, 3));
  const int64_t before = training.commit();
  mirror.daemon().Pause();
  ASSERT_OK(other.Read(before + 100));
  mirror.daemon().Signal(SIGCONT);
  EXPECT_OK(mirror.Read(before + 100));
}

// Its keeper starts the next server, and the training goes on.
TEST(MirrorTest, AMirrorOutlivesAnOwner) {
  MirroredTraining training(2, {"--keeper=on"});
  ASSERT_OK(training.AwaitReady());
  ReadMirror mirror(training);
  training.Train(/*commits=*/1'000'000);
  ASSERT_OK(ReadVersions(mirror, 3));
  for (const int node : {1, 0}) {
    SCOPED_TRACE(absl::StrCat("node ", node));
    const int64_t before = training.commit();
    ASSERT_OK_AND_ASSIGN(const pid_t server, ServerOf(training.sockets(node)));
    kill(server, SIGKILL);
    // The version of the mirror can be read all the while.
    ASSERT_OK(mirror.Read(1));
    EXPECT_OK(mirror.Read(before + 20));
  }
}

// Waits until the mirror has staged a version. Returns its commit number.
absl::StatusOr<int64_t> AwaitStaged(const ReadMirror& mirror, int64_t least_commit) {
  const absl::Time deadline = absl::Now() + kTimeout;
  while (absl::Now() < deadline) {
    ASSIGN_OR_RETURN(const nlohmann::json listed, Ctl(mirror.sockets(), "mirror list"));
    const nlohmann::json& model = listed["mirrors"][0];
    if (!model.contains("staged")) continue;
    const int64_t commit = std::stoll(model["staged"].value("commitNumber", "0"));
    if (commit >= least_commit) return commit;
  }
  return absl::DeadlineExceededError("no version was staged");
}

TEST(MirrorTest, MirrorsChangeOverByOrder) {
  MirroredTraining training(1);
  ASSERT_OK(training.AwaitReady());
  const std::vector<std::string> manual = {"--mirror-activate=manual"};
  ReadMirror mirror(training, manual);
  ASSERT_OK(mirror.daemon().AwaitReady());
  training.Train(20);
  training.Join();
  // It may have staged an earlier version, and keeps that until it is told of a later one.
  ASSERT_OK_AND_ASSIGN(const int64_t first, AwaitStaged(mirror, 0));
  EXPECT_EQ(std::system(Activate(mirror, 20).c_str()) == 0, first == 20);
  if (first < 20) {
    ASSERT_OK(AwaitStaged(mirror, 20));
    EXPECT_EQ(std::system(Activate(mirror, 20).c_str()), 0);
  }
  EXPECT_THAT(mirror.Read(0), IsOkAndHolds(20));
  // It is active already; another one is left behind.
  EXPECT_EQ(std::system(Activate(mirror, 20).c_str()), 0);
  EXPECT_NE(std::system(Activate(mirror, 19).c_str()), 0);
  EXPECT_THAT(mirror.Read(0), IsOkAndHolds(20));
}

TEST(MirrorTest, ReadersHearOfADeletedModelAndReadTheNextOne) {
  MirroredTraining training(1);
  ASSERT_OK(training.AwaitReady());
  ReadMirror mirror(training);
  training.Train(5);
  training.Join();
  ASSERT_OK(mirror.Read(5));
  ASSERT_OK_AND_ASSIGN(Client client, Client::Connect({.socket_dir = training.sockets(0)}));
  ASSERT_OK(client.DeleteModel("m"));
  ASSERT_OK_AND_ASSIGN(const auto reader, Reader::Create({.model = "m", .socket_dir = mirror.sockets()}));
  const absl::Time deadline = absl::Now() + kTimeout;
  absl::Status status;
  // The mirror hears of it when it asks.
  while (!absl::StrContains(status.message(), "not found") && absl::Now() < deadline) {
    status = reader->Acquire({.timeout = absl::Milliseconds(100)}).status();
  }
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("not found")));
  training.Train(3);
  training.Join();
  EXPECT_THAT(mirror.Read(3), IsOkAndHolds(3));
}

TEST(MirrorTest, AMirrorTrainsNothing) {
  MirroredTraining training(1);
  ASSERT_OK(training.AwaitReady());
  ReadMirror mirror(training);
  ASSERT_OK(mirror.daemon().AwaitReady());
  ASSERT_OK_AND_ASSIGN(Client client, Client::Connect({.socket_dir = mirror.sockets()}));
  EXPECT_THAT(client.OpenModel(KnownModel(1)),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("this daemon is a mirror of 127.0.0.1:")));
}

}  // namespace
}  // namespace paramshard::test
