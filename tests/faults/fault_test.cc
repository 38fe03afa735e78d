// Real daemons and trainers in processes of their own, killed, stopped and misled. Afterwards the state must be
// unchanged, or equal an uninterrupted run's.

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/shared_memory/file_descriptor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/faults/training.h"
#include "tests/support/child_process.h"
#include "tests/support/daemon_process.h"
#include "tests/support/environment.h"
#include "tests/support/process_counts.h"
#include "tests/support/status_matchers.h"

namespace paramshard::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr int64_t kKillStep = 3;

// Numbers of a trainer's board.
enum BoardNumber { kStepReached = 0, kGrandchild = 1 };

const std::string kDaemon = Program(PARAMSHARDD);

// By which a process that stands still is named. One that moves must not be late: from its attachment to its first
// command a trainer on a GPU takes up to seconds.
std::string ShortStepTimeout() { return TestDevices() == "cuda" ? "--step-timeout=5s" : "--step-timeout=1s"; }

nlohmann::json CtlOf(const std::string& socket_dir, const std::string& arguments) {
  const auto output =
      OutputOf(absl::StrCat(Program(PARAMSHARDCTL), " --socket-dir=", socket_dir, " -o json ", arguments));
  EXPECT_OK(output.status());
  return output.ok() ? nlohmann::json::parse(*output) : nlohmann::json();
}

// Returns the hash of masters and moments; checks that planes match them.
std::string StateHashOf(const std::string& socket_dir, const std::string& model) {
  const nlohmann::json verified = CtlOf(socket_dir, "verify " + model);
  EXPECT_EQ(verified["summary"]["mismatchCount"], "0") << verified.dump(2);
  return verified["summary"]["stateHash"];
}

ChildProcess Start(const Training& training) {
  return ChildProcess::Run([training](Board&) { return Train(training); });
}

// Returns true if an epoch may have ended because the machine was slow: then its trainers come again.
bool IsWorthAnotherEpoch(const absl::Status& end) { return absl::IsAborted(end) || absl::IsDeadlineExceeded(end); }

// A trainer that stops itself the first time that it is at the point of step kKillStep. It resumes until then.
ChildProcess StartStopping(Training training, Point point) {
  return ChildProcess::Run([training, point](Board&) mutable {
    bool stopped = false;
    training.at = [&stopped, point](Point reached, int64_t commit) {
      if (stopped || commit != kKillStep || reached != point) return;
      stopped = true;
      raise(SIGSTOP);
    };
    absl::Status end;
    do {
      end = Train(training);
    } while (!stopped && IsWorthAnotherEpoch(end));
    return end;
  });
}

// Starts a trainer that resumes until an epoch ends with `what`.
ChildProcess StartUntil(Training training, const std::string& what) {
  training.resume = false;
  return ChildProcess::Run([training, what](Board&) {
    absl::Status end;
    do {
      end = Train(training);
    } while (IsWorthAnotherEpoch(end) && !absl::StrContains(end.message(), what));
    return end;
  });
}

// A daemon with two devices, and trainers for it.
class FaultTest : public testing::Test {
 protected:
  void StartDaemon(std::vector<std::string> more_flags = {}) {
    std::vector<std::string> flags = DeviceFlags(2);
    flags.insert(flags.end(), more_flags.begin(), more_flags.end());
    absl::StatusOr<DaemonProcess> daemon = DaemonProcess::Start(kDaemon, directory_.path(), flags);
    ASSERT_OK(daemon.status());
    daemon_.emplace(*std::move(daemon));
  }

  Training TrainingOf(const std::string& model, int rank) const {
    return {.socket_dir = directory_.path(),
            .model = model,
            .rank = rank,
            .accumulators = accumulators_,
            .differs = differs_};
  }

  nlohmann::json Ctl(const std::string& arguments) const { return CtlOf(directory_.path(), arguments); }
  std::string StateHash(const std::string& model) const { return StateHashOf(directory_.path(), model); }

  // Until a trainer is attached; each look is a call of a program, the test's timeout bounds them.
  void AwaitSession() const {
    nlohmann::json sessions;
    while (sessions.empty()) sessions = Ctl("sessions").value("sessions", nlohmann::json::array());
  }

  // Trains the model to its end without a fault.
  std::string UninterruptedHash() {
    const auto start = [this](int rank) {
      Training training = TrainingOf("uninterrupted", rank);
      training.mistakes = false;
      return Start(training);
    };
    ChildProcess first = start(0);
    ChildProcess second = start(1);
    EXPECT_OK(first.Await());
    // The last rank may find that the other has left after the last commit.
    EXPECT_OK(second.Await());
    return StateHash("uninterrupted");
  }

  GradientType accumulators_ = GradientType::kFP32;  // of the models that are trained
  bool differs_ = false;                             // ranks run different units
  TemporaryDirectory directory_;
  std::optional<DaemonProcess> daemon_;
};

// A process that keeps every descriptor of its parent open and does nothing else.
uint32_t ForkHolder() {
  // The bare system call: no library in this process may act on the fork.
  const auto pid = syscall(SYS_fork);
  while (pid == 0) pause();
  return static_cast<uint32_t>(pid);
}

class VanishingTrainerTest : public FaultTest,
                             public testing::WithParamInterface<std::tuple<Point, bool, GradientType>> {};

TEST_P(VanishingTrainerTest, LeavesNoTraceInTheEnd) {
  accumulators_ = std::get<GradientType>(GetParam());
  differs_ = accumulators_ == GradientType::kBF16;
  StartDaemon();
  const std::string expected = UninterruptedHash();
  ChildProcess survivor = Start(TrainingOf("interrupted", 0));
  ChildProcess victim = ChildProcess::Run([&](Board& board) {
    Training training = TrainingOf("interrupted", 1);
    training.at = [&](Point reached, int64_t commit) {
      const auto& [point, with_forked_child, accumulators] = GetParam();
      if (commit != kKillStep || reached != point) return;
      if (with_forked_child) board.numbers[kGrandchild] = ForkHolder();
      raise(SIGKILL);
    };
    return Train(training);
  });
  EXPECT_THAT(victim.Await(), StatusIs(absl::StatusCode::kUnknown, HasSubstr("signal 9")));
  ChildProcess replacement = Start(TrainingOf("interrupted", 1));
  EXPECT_OK(replacement.Await());
  EXPECT_OK(survivor.Await());
  EXPECT_EQ(StateHash("interrupted"), expected);
  const auto grandchild = static_cast<pid_t>(victim.board().numbers[kGrandchild].load());
  if (grandchild != 0) kill(grandchild, SIGKILL);
}

INSTANTIATE_TEST_SUITE_P(AtEveryPoint, VanishingTrainerTest,
                         testing::Combine(testing::Values(Point::kStart, Point::kGathering, Point::kHolding,
                                                          Point::kReleased, Point::kMistaken, Point::kDiscarded,
                                                          Point::kFilling, Point::kPushed, Point::kAllPushed,
                                                          Point::kCommitting, Point::kCommitted),
                                          testing::Bool(), testing::Values(GradientType::kFP32)));
INSTANTIATE_TEST_SUITE_P(BetweenBF16Sums, VanishingTrainerTest,
                         testing::Combine(testing::Values(Point::kMistaken, Point::kDiscarded, Point::kPushed,
                                                          Point::kAllPushed, Point::kCommitting),
                                          testing::Values(false), testing::Values(GradientType::kBF16)));

TEST_F(FaultTest, ADeadTrainersPeersAreToldWhoLeftAndWhereToResume) {
  StartDaemon();
  Training staying = TrainingOf("told", 0);
  staying.resume = false;
  ChildProcess survivor = Start(staying);
  ChildProcess victim = ChildProcess::Run([&](Board&) {
    Training training = TrainingOf("told", 1);
    training.at = [](Point reached, int64_t commit) {
      if (commit == kKillStep && reached == Point::kPushed) raise(SIGKILL);
    };
    return Train(training);
  });
  const std::string victim_pid = absl::StrCat(victim.pid());
  EXPECT_THAT(survivor.Await(),
              StatusIs(absl::StatusCode::kAborted, AllOf(HasSubstr(victim_pid), HasSubstr("commit 2"))));
}

TEST_F(FaultTest, AStoppedTrainerIsNamedAfterTheStepTimeout) {
  StartDaemon({ShortStepTimeout()});
  ChildProcess survivor = StartUntil(TrainingOf("stopped", 0), "discard");
  ChildProcess stopped = StartStopping(TrainingOf("stopped", 1), Point::kReleased);
  EXPECT_THAT(survivor.Await(), StatusIs(absl::StatusCode::kDeadlineExceeded,
                                         AllOf(HasSubstr("rank 1 did not reach discard"), HasSubstr("of rank 0"))));
  StateHash("stopped");
}

class StoppedTrainerTest : public FaultTest, public testing::WithParamInterface<Point> {
 protected:
  // Returns why the model's last epoch ended, as soon as the reason contains `what`, or after a minute. Earlier epochs
  // may have ended because the machine was slow. Each check runs a program.
  std::string AwaitEpochEnd(const std::string& model, const std::string& what) const {
    std::string end;
    const absl::Time deadline = absl::Now() + absl::Minutes(1);
    while (!absl::StrContains(end, what) && absl::Now() < deadline) {
      const nlohmann::json listing = Ctl("models");
      for (const nlohmann::json& listed : listing["models"]) {
        if (listed["name"] == model) end = listed.value("lastEnd", "");
      }
    }
    return end;
  }
};

TEST_P(StoppedTrainerTest, IsNamedAndLeavesNoTraceWhenItGoesOn) {
  StartDaemon({ShortStepTimeout()});
  const std::string expected = UninterruptedHash();
  ChildProcess waiting = Start(TrainingOf("interrupted", 0));
  ChildProcess stopped = StartStopping(TrainingOf("interrupted", 1), GetParam());
  ASSERT_TRUE(stopped.AwaitStopped());
  EXPECT_THAT(AwaitEpochEnd("interrupted", "rank 1 did not reach"),
              AllOf(HasSubstr("DEADLINE_EXCEEDED"), HasSubstr("rank 1 did not reach")));
  stopped.Signal(SIGCONT);
  EXPECT_OK(stopped.Await());
  EXPECT_OK(waiting.Await());
  EXPECT_EQ(StateHash("interrupted"), expected);
}

INSTANTIATE_TEST_SUITE_P(AtEveryPoint, StoppedTrainerTest,
                         testing::Values(Point::kStart, Point::kGathering, Point::kHolding, Point::kReleased,
                                         Point::kMistaken, Point::kDiscarded, Point::kFilling, Point::kPushed,
                                         Point::kAllPushed, Point::kCommitting, Point::kCommitted));

TEST_F(FaultTest, AStoppedDaemonKeepsItsTrainersWaitingAndLosesNothing) {
  StartDaemon();
  const std::string expected = UninterruptedHash();
  ChildProcess trainers[] = {StartStopping(TrainingOf("paused", 0), Point::kStart),
                             StartStopping(TrainingOf("paused", 1), Point::kStart)};
  for (ChildProcess& trainer : trainers) ASSERT_TRUE(trainer.AwaitStopped());
  daemon_->Pause();
  for (ChildProcess& trainer : trainers) trainer.Signal(SIGCONT);
  // A new client times out.
  ChildProcess newcomer = ChildProcess::Run([&](Board&) {
    return Client::Connect({.socket_dir = directory_.path(), .connect_timeout = absl::Seconds(1)}).status();
  });
  EXPECT_THAT(newcomer.Await(), StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("timed out after 1s")));
  EXPECT_THAT(
      OutputOf(absl::StrCat(Program(PARAMSHARDCTL), " --socket-dir=", directory_.path(), " --timeout=1s version"))
          .status(),
      StatusIs(absl::StatusCode::kInternal, HasSubstr("exit status 3")));
  daemon_->Signal(SIGCONT);
  for (ChildProcess& trainer : trainers) EXPECT_OK(trainer.Await());
  EXPECT_EQ(StateHash("paused"), expected);
}

// A rank that is waited for comes while the daemon stands still, which takes longer than the step timeout.
TEST_F(FaultTest, ADaemonThatStoodStillDoesNotTakeItsRanksForLate) {
  StartDaemon({"--step-timeout=5s"});
  Training early = TrainingOf("still", 0);
  early.resume = false;
  ChildProcess waiting = ChildProcess::Run([&](Board& board) {
    early.at = [&](Point reached, int64_t commit) {
      if (commit == kKillStep && reached == Point::kCommitting) Reach(board, kStepReached, 1);
    };
    return Train(early);
  });
  Training late = TrainingOf("still", 1);
  late.resume = false;
  ChildProcess awaited = ChildProcess::Run([&](Board&) {
    late.at = [](Point reached, int64_t commit) {
      if (commit == kKillStep && reached == Point::kPushed) raise(SIGSTOP);
    };
    return Train(late);
  });
  ASSERT_TRUE(awaited.AwaitStopped());
  ASSERT_TRUE(waiting.AwaitNumber(kStepReached, 1));
  daemon_->Pause();
  awaited.Signal(SIGCONT);
  absl::SleepFor(absl::Seconds(6));  // the stall itself
  daemon_->Signal(SIGCONT);
  EXPECT_OK(waiting.Await());
  EXPECT_OK(awaited.Await());
}

TEST_F(FaultTest, ADaemonThatIsKilledWhileStoppedWakesItsTrainers) {
  StartDaemon();
  std::vector<ChildProcess> trainers;
  for (int rank = 0; rank < 2; ++rank) {
    Training training = TrainingOf("orphans", rank);
    training.resume = false;
    trainers.push_back(StartStopping(training, Point::kStart));
  }
  for (ChildProcess& trainer : trainers) ASSERT_TRUE(trainer.AwaitStopped());
  daemon_->Pause();
  for (ChildProcess& trainer : trainers) trainer.Signal(SIGCONT);
  daemon_->Signal(SIGKILL);
  for (ChildProcess& trainer : trainers) {
    EXPECT_THAT(trainer.Await(), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("has died")));
  }
}

TEST_F(FaultTest, ADeadDaemonWakesItsWaitingTrainers) {
  StartDaemon();
  Training waiting = TrainingOf("orphans", 0);
  waiting.resume = false;
  ChildProcess waiter = ChildProcess::Run([&](Board& board) {
    waiting.at = [&](Point reached, int64_t commit) {
      if (reached == Point::kGathering) Reach(board, kStepReached, commit);
    };
    return Train(waiting);
  });
  // This one never gets to the step that the other waits for.
  ChildProcess idler = ChildProcess::Run([&](Board&) {
    Training training = TrainingOf("orphans", 1);
    training.at = [](Point reached, int64_t commit) {
      while (commit == kKillStep && reached == Point::kStart) pause();
    };
    return Train(training);
  });
  ASSERT_TRUE(waiter.AwaitNumber(kStepReached, kKillStep));
  daemon_->Signal(SIGKILL);
  EXPECT_THAT(waiter.Await(), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("daemon")));
}

TEST_F(FaultTest, TheSecondTrainerOfARankIsRefusedUnlessItTakesOver) {
  StartDaemon();
  // Rank 1 never comes: rank 0 waits for the epoch.
  ChildProcess holder = Start(TrainingOf("contested", 0));
  const std::string holder_pid = absl::StrCat(holder.pid());
  AwaitSession();
  const auto open = [&](bool take_over) {
    return ChildProcess::Run([&, take_over](Board&) -> absl::Status {
      auto client = Client::Connect(
          {.rank = 0, .socket_dir = directory_.path(), .attach_timeout = absl::Seconds(1), .take_over = take_over});
      return client.ok() ? client->OpenModel(SmallModel("contested")).status() : client.status();
    });
  };
  ChildProcess refused = open(false);
  EXPECT_THAT(refused.Await(), StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr(holder_pid)));
  ChildProcess taker = open(true);
  EXPECT_THAT(holder.Await(), StatusIs(absl::StatusCode::kUnknown, HasSubstr("signal 9")));
  EXPECT_THAT(taker.Await(), StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("1")));
}

TEST_F(FaultTest, RanksThatDisagreeAreBothNamed) {
  StartDaemon();
  const auto end_step = [&](int rank) {
    return ChildProcess::Run([&, rank](Board&) -> absl::Status {
      auto client = Client::Connect({.rank = rank, .socket_dir = directory_.path()});
      if (!client.ok()) return client.status();
      auto model = client->OpenModel(SmallModel("disagreeing"));
      if (!model.ok()) return model.status();
      if (rank == 0) {
        if (const absl::Status discarded = model->Discard(); !discarded.ok()) return discarded;
      }
      auto commit = model->Commit({});
      return commit.ok() ? commit->Wait().status() : commit.status();
    });
  };
  ChildProcess first = end_step(0);
  ChildProcess second = end_step(1);
  const auto disagreement =
      StatusIs(absl::StatusCode::kFailedPrecondition,
               AllOf(HasSubstr("sent discard"), HasSubstr("sent commit 1"), HasSubstr("rank 0"), HasSubstr("rank 1")));
  EXPECT_THAT(first.Await(), disagreement);
  EXPECT_THAT(second.Await(), disagreement);
  StateHash("disagreeing");
}

TEST_F(FaultTest, AModelThatDoesNotFitIsRefusedWithNumbersAndLeavesNothing) {
  StartDaemon({"--memory-limit=1MiB"});
  ChildProcess child = ChildProcess::Run([&](Board&) -> absl::Status {
    auto client = Client::Connect({.socket_dir = directory_.path()});
    if (!client.ok()) return client.status();
    ModelSpec spec = SmallModel("large");
    spec.units[0].parameters[0].shape = {4096, 4096};
    return client->CreateModel(spec).status();
  });
  EXPECT_THAT(child.Await(),
              StatusIs(absl::StatusCode::kResourceExhausted, AllOf(HasSubstr("master"), HasSubstr("free"))));
  EXPECT_EQ(Ctl("memory")["totalBytes"], "0");
}

// Found before a GPU is opened: this machine need not have one.
TEST_F(FaultTest, GpusOfSeveralDaemonsWithoutNcclEndTheStartAsAWrongFlagDoes) {
  for (const char* library : {"/nowhere/libnccl.so.2", "libm.so.6"}) {
    EXPECT_THAT(DaemonProcess::Start(kDaemon, directory_.path(),
                                     {"--device=cuda:0", "--nodes=2", "--cluster-address=127.0.0.1:1",
                                      absl::StrCat("--nccl-library=", library)})
                    .status(),
                StatusIs(absl::StatusCode::kUnavailable, HasSubstr("exited with 2")));
  }
}

int64_t EntriesOf(pid_t pid, const std::string& folder) {
  const auto listing = OutputOf(absl::StrCat("ls /proc/", pid, "/", folder, " | wc -l"));
  return listing.ok() ? std::atoll(listing->c_str()) : -1;
}

TEST_F(FaultTest, AThousandSessionsLeaveNothingBehind) {
  StartDaemon();
  constexpr int kPerChild = 125;
  const auto open_and_drop = [&](int rank, int count) {
    return ChildProcess::Run([&, rank, count](Board&) -> absl::Status {
      auto client = Client::Connect({.rank = rank, .socket_dir = directory_.path()});
      for (int i = 0; i < count && client.ok(); ++i) {
        auto model = client->OpenModel(SmallModel("dropped"));
        // The other rank may have dropped its session first.
        if (!model.ok() && !absl::IsAborted(model.status())) return model.status();
      }
      return client.status();
    });
  };
  const auto round = [&] {
    ChildProcess first = open_and_drop(0, kPerChild);
    ChildProcess second = open_and_drop(1, kPerChild);
    // One of them may be left waiting for a partner that has had its share.
    const absl::Status first_end = first.Await(absl::Seconds(30));
    const absl::Status second_end = second.Await(absl::Seconds(30));
    EXPECT_TRUE(first_end.ok() || second_end.ok()) << first_end << " " << second_end;
  };
  round();
  const int64_t descriptors = EntriesOf(daemon_->pid(), "fd");
  const std::string daemon = absl::StrCat(daemon_->pid());
  const int64_t threads = OwnThreads(daemon);
  for (int i = 0; i < 3; ++i) round();
  // The daemon hears of the last ones a moment after their processes have ended.
  const absl::Time deadline = absl::Now() + absl::Seconds(30);
  while ((EntriesOf(daemon_->pid(), "fd") > descriptors + 2 || OwnThreads(daemon) > threads + 2) &&
         absl::Now() < deadline) {
  }
  EXPECT_LE(EntriesOf(daemon_->pid(), "fd"), descriptors + 2);
  EXPECT_LE(OwnThreads(daemon), threads + 2);
}

TEST_F(FaultTest, SigtermFinishesAndExitsWithZero) {
  StartDaemon();
  Training training = TrainingOf("drained", 0);
  training.resume = false;
  training.commits = 1000000;
  ChildProcess first = ChildProcess::Run([&](Board& board) {
    training.at = [&](Point reached, int64_t commit) {
      if (reached == Point::kCommitted) Reach(board, kStepReached, commit);
    };
    return Train(training);
  });
  Training other = TrainingOf("drained", 1);
  other.resume = false;
  other.commits = training.commits;
  ChildProcess second = Start(other);
  ASSERT_TRUE(first.AwaitNumber(kStepReached, 3));
  daemon_->Signal(SIGTERM);
  EXPECT_THAT(daemon_->AwaitExit(absl::Seconds(30)), IsOkAndHolds(0));
  EXPECT_THAT(first.Await(), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("")));
  EXPECT_THAT(second.Await(), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("")));
}

// --- A trainer that goes in order ---

// One rank leaves with its results while the other has not yet waited for the results that both have requested: the
// last evaluation of a training, on ranks of different speeds.
TEST_F(FaultTest, WhoLeavesTakesNothingFromTheOthersThatAllHaveAskedFor) {
  StartDaemon();
  const auto gather_last = [&](int rank, const std::function<void()>& before_wait) -> absl::Status {
    auto client = Client::Connect({.rank = rank, .socket_dir = directory_.path()});
    if (!client.ok()) return client.status();
    auto model = client->OpenModel(SmallModel("evaluated"));
    if (!model.ok()) return model.status();
    auto gathered = model->Gather("first", Phase::kForward);
    if (!gathered.ok()) return gathered.status();
    before_wait();
    return gathered->Wait();
  };
  ChildProcess slow = ChildProcess::Run([&](Board& board) {
    return gather_last(0, [&] {
      Reach(board, kStepReached, 1);
      while (board.numbers[kGrandchild] == 0) usleep(1000);  // until the parent says so
    });
  });
  ChildProcess fast = ChildProcess::Run([&](Board&) { return gather_last(1, [] {}); });
  ASSERT_TRUE(slow.AwaitNumber(kStepReached, 1));
  EXPECT_OK(fast.Await());
  slow.board().numbers[kGrandchild] = 1;
  EXPECT_OK(slow.Await());
}

// --- A trainer that means harm ---

// Where this process maps the words page of its only session: a word on each cache line.
std::atomic<uint32_t>* FindWordsPage() {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (!absl::StrContains(line, "paramshard-words")) continue;
    return reinterpret_cast<std::atomic<uint32_t>*>(std::stoull(line, nullptr, 16));
  }
  return nullptr;
}

// Claims that the daemon does not sleep, rewrites the doorbell, and moves threads that sleep there to a word that no
// thread wakes.
[[noreturn]] void Torment(std::atomic<uint32_t>* page) {
  constexpr size_t kLine = 16;
  std::atomic<uint32_t>& daemon_waits = page[2 * kLine];
  std::atomic<uint32_t>& doorbell = page[4 * kLine];
  std::atomic<uint32_t>& nobodys = page[4 * kLine + 1];
  for (uint32_t i = 0;; ++i) {
    daemon_waits = 0;
    if (i % 1024 == 0) doorbell = i;
    syscall(SYS_futex, &doorbell, FUTEX_CMP_REQUEUE, 0, 1, &nobodys, doorbell.load());
  }
}

class HostileTrainerTest : public FaultTest {
 protected:
  // Rank 0 waits in step kKillStep for rank 1, which writes into its page until it is killed.
  void StartTraining() {
    Training waiting = TrainingOf("tormented", 0);
    waiting.resume = false;
    waiting_.emplace(Start(waiting));
    hostile_.emplace(ChildProcess::Run([this](Board& board) {
      Training training = TrainingOf("tormented", 1);
      training.at = [&](Point reached, int64_t commit) {
        if (commit != kKillStep || reached != Point::kStart) return;
        std::atomic<uint32_t>* const page = FindWordsPage();
        if (page == nullptr) std::abort();
        Reach(board, kStepReached, kKillStep);
        Torment(page);
      };
      return Train(training);
    }));
    ASSERT_TRUE(hostile_->AwaitNumber(kStepReached, kKillStep));
  }
  absl::Status DeleteModel() const {
    return ChildProcess::Run([&](Board&) -> absl::Status {
             auto client = Client::Connect({.rank = 0, .socket_dir = directory_.path()});
             return client.ok() ? client->DeleteModel("tormented") : client.status();
           })
        .Await();
  }

  std::optional<ChildProcess> waiting_, hostile_;
};

TEST_F(HostileTrainerTest, ItsDeathEndsTheEpochAndTheModelGoesOn) {
  StartDaemon();
  const std::string expected = UninterruptedHash();
  ASSERT_NO_FATAL_FAILURE(StartTraining());
  hostile_->Signal(SIGKILL);
  EXPECT_THAT(waiting_->Await(), StatusIs(absl::StatusCode::kAborted, HasSubstr("rank 1")));
  ChildProcess first = Start(TrainingOf("tormented", 0));
  ChildProcess second = Start(TrainingOf("tormented", 1));
  EXPECT_OK(first.Await());
  EXPECT_OK(second.Await());
  EXPECT_EQ(StateHash("tormented"), expected);
}

TEST_F(HostileTrainerTest, AnotherTrainersDeathEndsTheEpochAndTheModelCanBeDeleted) {
  StartDaemon();
  ASSERT_NO_FATAL_FAILURE(StartTraining());
  waiting_->Signal(SIGKILL);
  // Still at it, it is killed only when the daemon has ended the epoch.
  ChildProcess next = Start([&] {
    Training training = TrainingOf("tormented", 0);
    training.resume = false;
    return training;
  }());
  nlohmann::json ended;
  while (ended.empty() || ended.value("lastEnd", "") == "") ended = Ctl("models")["models"][0];
  EXPECT_THAT(std::string(ended["lastEnd"]), HasSubstr("rank 0"));
  hostile_->Signal(SIGKILL);
  next.Signal(SIGKILL);
  absl::Status deleted;
  do {
    deleted = DeleteModel();  // until the daemon has noticed both deaths; the test's timeout bounds it
  } while (absl::IsFailedPrecondition(deleted));
  EXPECT_OK(deleted);
}

TEST_F(HostileTrainerTest, TheDaemonDrainsAndStops) {
  StartDaemon();
  ASSERT_NO_FATAL_FAILURE(StartTraining());
  daemon_->Signal(SIGTERM);
  EXPECT_THAT(daemon_->AwaitExit(absl::Seconds(60)), IsOkAndHolds(0));
  EXPECT_THAT(waiting_->Await(), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("")));
}

// --- Two daemons ---

// Span of a shard group.
enum class Sharding { kInsideDaemons, kOverTheWorld };

// Two daemons of two devices each, four ranks; where there are fewer than four GPUs, of one GPU each.
class TwoDaemonsTest : public testing::TestWithParam<Sharding> {
 protected:
  void SetUp() override {
    const int present = DevicesUpTo(4);
    if (present < 2) GTEST_SKIP() << "needs two GPUs, got " << present;
    if (present < 4) devices_ = 1;
    const std::string cluster = absl::StrCat("--cluster-address=127.0.0.1:", FreePort());
    for (int node = 0; node < 2; ++node) {
      std::vector<std::string> flags = DeviceFlags(devices_, TestDevices() == "cuda" ? devices_ * node : 0);
      flags.insert(flags.end(), {absl::StrCat("--node=", node), "--nodes=2", cluster, step_timeout(), doubt_timeout()});
      daemons_.push_back(DaemonProcess::Spawn(kDaemon, directories_[node].path(), flags));
    }
    for (DaemonProcess& daemon : daemons_) ASSERT_OK(daemon.AwaitReady());
  }

  virtual std::string step_timeout() const { return "--step-timeout=20s"; }
  virtual std::string doubt_timeout() const { return "--doubt-timeout=5m"; }

  Training TrainingOf(const std::string& model, int rank) const {
    Training training{.socket_dir = directories_[NodeOf(rank)].path(), .model = model, .rank = rank};
    training.shard_size = ShardSize();
    return training;
  }

  int ranks() const { return 2 * devices_; }
  int NodeOf(int rank) const { return rank / devices_; }
  int ShardSize() const { return GetParam() == Sharding::kOverTheWorld ? ranks() : devices_; }

  std::vector<std::string> Hashes(const std::string& model) const {
    return {StateHashOf(directories_[0].path(), model), StateHashOf(directories_[1].path(), model)};
  }

  std::vector<std::string> UninterruptedHashes() {
    std::vector<ChildProcess> trainers;
    for (int rank = 0; rank < ranks(); ++rank) trainers.push_back(Start(TrainingOf("uninterrupted", rank)));
    for (ChildProcess& trainer : trainers) EXPECT_OK(trainer.Await());
    return Hashes("uninterrupted");
  }

  int devices_ = 2;  // of each daemon
  TemporaryDirectory directories_[2];
  std::vector<DaemonProcess> daemons_;
};

TEST_P(TwoDaemonsTest, AKilledTrainerLeavesNoTraceInTheEnd) {
  const std::vector<std::string> expected = UninterruptedHashes();
  if (GetParam() == Sharding::kInsideDaemons) {
    EXPECT_EQ(expected[0], expected[1]) << "replicas hold equal bytes";
  }
  const int last = ranks() - 1;
  std::vector<ChildProcess> survivors;
  for (int rank = 0; rank < last; ++rank) survivors.push_back(Start(TrainingOf("interrupted", rank)));
  ChildProcess victim = ChildProcess::Run([&](Board&) {
    Training training = TrainingOf("interrupted", last);
    training.at = [](Point reached, int64_t commit) {
      if (commit == kKillStep && reached == Point::kPushed) raise(SIGKILL);
    };
    return Train(training);
  });
  EXPECT_THAT(victim.Await(), StatusIs(absl::StatusCode::kUnknown, HasSubstr("signal 9")));
  ChildProcess replacement = Start(TrainingOf("interrupted", last));
  EXPECT_OK(replacement.Await());
  for (ChildProcess& survivor : survivors) EXPECT_OK(survivor.Await());
  EXPECT_EQ(Hashes("interrupted"), expected);
}

// The value of a series on the page of a daemon; nothing where it is not there.
std::optional<double> MetricOf(const std::string& socket_dir, const std::string& series) {
  const std::string page = CtlOf(socket_dir, "metrics")["text"];
  const std::string begin = absl::StrCat("\n", series, " ");
  const size_t at = page.find(begin);
  if (at == page.npos) return std::nullopt;
  return std::stod(page.substr(at + begin.size()));
}

TEST_P(TwoDaemonsTest, MetricsTellWhatMovesAndWhoIsMissing) {
  std::vector<ChildProcess> trainers;
  for (int rank = 0; rank < ranks(); ++rank) trainers.push_back(Start(TrainingOf("m", rank)));
  for (ChildProcess& trainer : trainers) EXPECT_OK(trainer.Await());
  const bool on_gpus = TestDevices() == "cuda";
  const auto moved = [&](int node, const std::string& engine, const std::string& direction) {
    return MetricOf(directories_[node].path(),
                    absl::StrCat("paramshard_moved_bytes_total{engine=\"", engine, "\",direction=\"", direction, "\"}"))
        .value_or(-1);
  };
  const std::string mesh = on_gpus ? "nccl" : "gloo";
  // Sums of sent and received bytes are equal: a daemon sends to the other daemon, or to itself.
  EXPECT_GT(moved(0, mesh, "sent"), 0);
  EXPECT_EQ(moved(0, mesh, "sent") + moved(1, mesh, "sent"), moved(0, mesh, "received") + moved(1, mesh, "received"));
  const bool direct = GetParam() == Sharding::kInsideDaemons && devices_ > 1;
  for (int node = 0; node < 2; ++node) {
    const std::string& directory = directories_[node].path();
    for (const std::string& direction : {std::string("sent"), std::string("received")}) {
      EXPECT_EQ(moved(node, on_gpus ? "copy_engine" : "memcpy", direction) > 0, direct) << "node " << node;
    }
    EXPECT_EQ(MetricOf(directory, "paramshard_commits_total{result=\"applied\"}"), 6);
    EXPECT_EQ(MetricOf(directory, "paramshard_commit_number{model=\"m\"}"), 6);
    // Until the daemon has noticed that its trainers have left; the test's timeout bounds it.
    while (MetricOf(directory, "paramshard_epochs_ended_total{reason=\"detached\"}") != 1) {
    }
    EXPECT_EQ(MetricOf(directory, "paramshard_server_restarts_total"), 0);
    EXPECT_EQ(MetricOf(directory, "paramshard_world_nodes{state=\"absent\"}"),
              node == 0 ? std::optional(0.0) : std::nullopt);
  }
  daemons_[1].Signal(SIGKILL);
  // Until node 0 has noticed it; the test's timeout bounds it.
  while (MetricOf(directories_[0].path(), "paramshard_world_nodes{state=\"absent\"}") != 1) {
  }
}

TEST_P(TwoDaemonsTest, AKilledDaemonIsNamedAndTheOtherStaysOpenToInspection) {
  std::vector<ChildProcess> trainers;
  for (int rank = 0; rank < ranks(); ++rank) {
    Training training = TrainingOf("bereft", rank);
    training.resume = false;
    training.commits = 1000000;
    trainers.push_back(ChildProcess::Run([training](Board& board) mutable {
      training.at = [&](Point reached, int64_t commit) {
        if (reached == Point::kCommitted) Reach(board, kStepReached, static_cast<uint32_t>(commit));
      };
      return Train(training);
    }));
  }
  for (ChildProcess& trainer : trainers) ASSERT_TRUE(trainer.AwaitNumber(kStepReached, 3));
  daemons_[1].Signal(SIGKILL);
  for (int rank = 0; rank < ranks(); ++rank) {
    EXPECT_THAT(trainers[rank].Await(),
                StatusIs(absl::StatusCode::kUnavailable, HasSubstr(NodeOf(rank) == 0 ? "node 1" : "daemon")));
  }
  StateHashOf(directories_[0].path(), "bereft");
}

TEST_P(TwoDaemonsTest, WhoWaitsWithoutNodeZeroIsToldSo) {
  const std::string& directory = directories_[1].path();
  EXPECT_EQ(MetricOf(directory, "paramshard_coordinator_reached"), 1);
  daemons_[0].Signal(SIGKILL);
  // Until node 1 has noticed it, and then that all its ranks but one are there; the test's timeout bounds both.
  while (MetricOf(directory, "paramshard_coordinator_reached") != 0) {
  }
  std::vector<ChildProcess> others;
  for (int rank = devices_ + 1; rank < ranks(); ++rank) others.push_back(Start(TrainingOf("m", rank)));
  while (MetricOf(directory, "paramshard_sessions{model=\"m\"}").value_or(0) != devices_ - 1) {
  }
  Training training = TrainingOf("m", devices_);
  training.attach_timeout = absl::Seconds(1);
  training.resume = false;
  EXPECT_THAT(Start(training).Await(),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       AllOf(HasSubstr("attach m: no epoch began within 1s: node 0 (127.0.0.1:"),
                             HasSubstr("is not reached"))));
}

TEST_P(TwoDaemonsTest, RanksOfDifferentDaemonsThatDisagreeAreBothNamed) {
  std::vector<ChildProcess> trainers;
  for (int rank = 0; rank < ranks(); ++rank) {
    trainers.push_back(ChildProcess::Run([&, rank](Board&) -> absl::Status {
      auto client = Client::Connect({.rank = rank, .socket_dir = directories_[NodeOf(rank)].path()});
      if (!client.ok()) return client.status();
      ModelSpec spec = SmallModel("disagreeing");
      spec.shard_size = ShardSize();
      auto model = client->OpenModel(spec);
      if (!model.ok()) return model.status();
      auto gathered = model->Gather(NodeOf(rank) == 0 ? "first" : "second", Phase::kForward);
      if (!gathered.ok()) return gathered.status();
      // Where groups lie inside daemons this gather succeeds; the disagreement is told to a later call.
      absl::Status status = gathered->Wait();
      gathered->Release();
      while (status.ok()) {
        auto commit = model->Commit({});
        status = commit.ok() ? commit->Wait().status() : commit.status();
      }
      return status;
    }));
  }
  for (ChildProcess& trainer : trainers) {
    EXPECT_THAT(trainer.Await(), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("rank")));
  }
}

class ImpatientDaemonsTest : public TwoDaemonsTest {
 protected:
  // Long enough for processes that do move, of which two daemons have many.
  std::string step_timeout() const override {
    return TestDevices() == "cuda" ? "--step-timeout=5s" : "--step-timeout=3s";
  }
};

TEST_P(ImpatientDaemonsTest, ADaemonWhoseTrainersStopBeforeTheirCommitHoldsNobodyForLong) {
  std::vector<ChildProcess> trainers;
  for (int rank = 0; rank < ranks(); ++rank) {
    const Training training = TrainingOf("unvoted", rank);
    trainers.push_back(NodeOf(rank) == 0 ? StartUntil(training, "commit 3")
                                         : StartStopping(training, Point::kAllPushed));
  }
  for (int rank = 0; NodeOf(rank) == 0; ++rank) {
    EXPECT_THAT(trainers[rank].Await(), StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("commit 3")));
  }
  StateHashOf(directories_[0].path(), "unvoted");
  StateHashOf(directories_[1].path(), "unvoted");
}

// Node 0 dies after node 1 has voted.
class BereftVoterTest : public TwoDaemonsTest {
 protected:
  // Returns node 1's trainers, whose commit kKillStep only node 0 could decide.
  std::vector<ChildProcess> KillNodeZeroBeforeItDecides() {
    std::vector<ChildProcess> voters;
    for (int rank = 0; rank < ranks(); ++rank) {
      Training training = TrainingOf("doubtful", rank);
      training.resume = false;
      if (NodeOf(rank) == 0) {
        decider_trainers_.push_back(StartStopping(training, Point::kAllPushed));
      } else {
        voters.push_back(Start(training));
      }
    }
    for (ChildProcess& trainer : decider_trainers_) EXPECT_TRUE(trainer.AwaitStopped());
    EXPECT_TRUE(AwaitVote());
    daemons_[0].Signal(SIGKILL);
    return voters;
  }

  absl::Status OnNodeOne(std::function<absl::Status(Client&)> call, absl::Duration timeout = absl::Seconds(30)) const {
    return ChildProcess::Run([&](Board&) -> absl::Status {
             auto client =
                 Client::Connect({.rank = devices_, .socket_dir = directories_[1].path(), .attach_timeout = timeout});
             return client.ok() ? call(*client) : client.status();
           })
        .Await();
  }
  absl::Status OpenOnNodeOne(absl::Duration timeout = absl::Seconds(30)) const {
    const auto open = [this](Client& client) {
      ModelSpec spec = SmallModel("doubtful");
      spec.shard_size = ShardSize();
      return client.OpenModel(spec).status();
    };
    return OnNodeOne(open, timeout);
  }

 private:
  // Until node 1 waits for node 0's vote. Each look is a call of a program.
  bool AwaitVote() const {
    const absl::Time deadline = absl::Now() + absl::Minutes(1);
    while (absl::Now() < deadline) {
      const nlohmann::json listing = CtlOf(directories_[1].path(), "sessions");
      for (const nlohmann::json& session : listing.value("sessions", nlohmann::json::array())) {
        if (absl::StrContains(session.value("waitsFor", ""), "votes of other daemons")) return true;
      }
    }
    return false;
  }

  std::vector<ChildProcess> decider_trainers_;
};

TEST_P(BereftVoterTest, AModelInDoubtIsDeletedAtOnceAndOthersAreNotConcerned) {
  std::vector<ChildProcess> voters = KillNodeZeroBeforeItDecides();
  const auto create = [&](const std::string& name) {
    return OnNodeOne([&](Client& client) { return client.CreateModel(SmallModel(name)).status(); });
  };
  EXPECT_OK(create("other"));
  // The daemon has heard of the death when it lets the model go.
  const absl::Time deadline = absl::Now() + absl::Minutes(1);
  absl::Status deleted = absl::FailedPreconditionError("");
  while (absl::IsFailedPrecondition(deleted) && absl::Now() < deadline) {
    deleted = OnNodeOne([](Client& client) { return client.DeleteModel("doubtful"); });
  }
  EXPECT_OK(deleted);
  for (ChildProcess& voter : voters) {
    EXPECT_THAT(voter.Await(), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("node 0")));
  }
  EXPECT_OK(create("doubtful"));
  StateHashOf(directories_[1].path(), "other");
}

class ShortDoubtTest : public BereftVoterTest {
 protected:
  std::string doubt_timeout() const override { return "--doubt-timeout=1s"; }
};

TEST_P(ShortDoubtTest, AModelWhoseDoubtPassesItsBoundIsNotTrainedOn) {
  std::vector<ChildProcess> voters = KillNodeZeroBeforeItDecides();
  for (ChildProcess& voter : voters) {
    EXPECT_THAT(voter.Await(), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("node 0")));
  }
  const auto says_so =
      AllOf(HasSubstr("commit 3 is in doubt"), HasSubstr("timed out after 1s"), HasSubstr("the state of commit 2"));
  if (GetParam() == Sharding::kInsideDaemons) {
    // Another daemon may come that heals it.
    EXPECT_THAT(OpenOnNodeOne(absl::Seconds(1)), StatusIs(absl::StatusCode::kDeadlineExceeded));
    EXPECT_THAT(CtlOf(directories_[1].path(), "models").dump(), says_so);
  } else {
    EXPECT_THAT(OpenOnNodeOne(), StatusIs(absl::StatusCode::kDataLoss, says_so));
  }
  StateHashOf(directories_[1].path(), "doubtful");
  EXPECT_OK(OnNodeOne([](Client& client) { return client.DeleteModel("doubtful"); }));
}

INSTANTIATE_TEST_SUITE_P(ReplicasAndFullSharding, BereftVoterTest,
                         testing::Values(Sharding::kInsideDaemons, Sharding::kOverTheWorld));
INSTANTIATE_TEST_SUITE_P(ReplicasAndFullSharding, ShortDoubtTest,
                         testing::Values(Sharding::kInsideDaemons, Sharding::kOverTheWorld));

// Node 0 decides commits, the other does not.
class StoppedDaemonTest : public ImpatientDaemonsTest {
 protected:
  void StopNode(int node) {
    const std::vector<std::string> expected = UninterruptedHashes();
    std::vector<ChildProcess> trainers;
    for (int rank = 0; rank < ranks(); ++rank) {
      Training training = TrainingOf("interrupted", rank);
      training.resume = false;
      trainers.push_back(StartStopping(training, Point::kStart));
    }
    for (ChildProcess& trainer : trainers) ASSERT_TRUE(trainer.AwaitStopped());
    daemons_[node].Pause();
    for (ChildProcess& trainer : trainers) trainer.Signal(SIGCONT);
    for (int rank = 0; rank < ranks(); ++rank) {
      if (NodeOf(rank) == node) continue;
      EXPECT_THAT(trainers[rank].Await(),
                  StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr(absl::StrCat("node ", node))));
    }
    daemons_[node].Signal(SIGCONT);
    for (int rank = 0; rank < ranks(); ++rank) {
      if (NodeOf(rank) != node) continue;
      EXPECT_FALSE(trainers[rank].Await().ok());
    }
    std::vector<ChildProcess> replacements;
    for (int rank = 0; rank < ranks(); ++rank) replacements.push_back(Start(TrainingOf("interrupted", rank)));
    for (ChildProcess& replacement : replacements) EXPECT_OK(replacement.Await());
    EXPECT_EQ(Hashes("interrupted"), expected);
  }
};

TEST_P(StoppedDaemonTest, IsNamedToTheOthersTrainersAndGoesOnLater) { StopNode(1); }

TEST_P(StoppedDaemonTest, IsNamedWhenItIsTheOneThatDecides) { StopNode(0); }

// Two daemons that are killed and started again, one at a time, at random points of a training.
class NodeDeathsTest : public testing::Test {
 protected:
  static constexpr int kDevices = 2;
  static constexpr int kRanks = 2 * kDevices;

  void SetUp() override {
    if (TestDevices() == "cuda") GTEST_SKIP() << "needs cpu devices: on a GPU a daemon takes seconds to start";
    for (int node = 0; node < 2; ++node) Spawn(node);
    for (int node = 0; node < 2; ++node) Settle(node);
  }

  void Spawn(int node) {
    std::vector<std::string> flags = DeviceFlags(kDevices);
    flags.insert(flags.end(), {absl::StrCat("--node=", node), "--nodes=2", cluster_, "--doubt-timeout=1s"});
    daemons_[node].emplace(DaemonProcess::Spawn(kDaemon, directories_[node].path(), flags));
  }

  // Gives a daemon that has just started a model without trainers.
  void Settle(int node) {
    ASSERT_OK(daemons_[node]->AwaitReady());
    ASSERT_OK(OnNode(node, [](Client& client) { return client.CreateModel(SmallModel("bystander")).status(); }));
    const std::string hash = StateHashOf(directories_[node].path(), "bystander");
    if (bystander_.empty()) bystander_ = hash;
    EXPECT_EQ(hash, bystander_);
    levels_[node].reset();
  }

  absl::Status OnNode(int node, const std::function<absl::Status(Client&)>& call) const {
    return ChildProcess::Run([&](Board&) -> absl::Status {
             auto client = Client::Connect({.rank = kDevices * node, .socket_dir = directories_[node].path()});
             return client.ok() ? call(*client) : client.status();
           })
        .Await();
  }

  // Trains the model until the daemon dies, `delay` after the step has been reached; all trainers are told.
  void TrainAndKill(const std::string& model, int victim, uint32_t step, absl::Duration delay, bool across) {
    std::vector<ChildProcess> trainers;
    for (int rank = 0; rank < kRanks; ++rank) {
      Training training{.socket_dir = directories_[rank / kDevices].path(), .model = model, .rank = rank};
      training.shard_size = across ? kRanks : kDevices;
      training.resume = false;
      training.commits = 1000000;
      trainers.push_back(ChildProcess::Run([training](Board& board) mutable {
        training.at = [&](Point reached, int64_t commit) {
          if (reached == Point::kCommitted) Reach(board, kStepReached, static_cast<uint32_t>(commit));
        };
        return Train(training);
      }));
    }
    ASSERT_TRUE(trainers[0].AwaitNumber(kStepReached, step));
    absl::SleepFor(delay);  // the point at which the daemon dies is to be any
    daemons_[victim]->Signal(SIGKILL);
    ASSERT_THAT(daemons_[victim]->AwaitExit(absl::Seconds(30)), IsOkAndHolds(128 + SIGKILL));
    for (int rank = 0; rank < kRanks; ++rank) {
      const std::string named = rank / kDevices == victim ? "daemon" : absl::StrCat("node ", victim);
      EXPECT_THAT(trainers[rank].Await(), StatusIs(absl::StatusCode::kUnavailable, HasSubstr(named)))
          << "rank " << rank;
    }
  }

  // The survivor lets the model go, has kept the other one, and holds no more than after the last death.
  void CheckSurvivor(int node, const std::string& model) {
    EXPECT_OK(OnNode(node, [&](Client& client) { return client.DeleteModel(model); }));
    EXPECT_EQ(StateHashOf(directories_[node].path(), "bystander"), bystander_);
    const auto level = [&] {
      const pid_t pid = daemons_[node]->pid();
      return std::make_pair(EntriesOf(pid, "fd"), OwnThreads(absl::StrCat(pid)));
    };
    auto now = level();
    if (!levels_[node].has_value()) levels_[node] = now;
    const auto [descriptors, threads] = *levels_[node];
    // Descriptors and threads of a connection are released a moment after it closes.
    const absl::Time deadline = absl::Now() + absl::Seconds(30);
    while ((now.first > descriptors + 4 || now.second > threads + 4) && absl::Now() < deadline) now = level();
    EXPECT_LE(now.first, descriptors + 4) << "descriptors";
    EXPECT_LE(now.second, threads + 4) << "threads";
  }

  const std::string cluster_ = absl::StrCat("--cluster-address=127.0.0.1:", FreePort());
  TemporaryDirectory directories_[2];
  std::optional<DaemonProcess> daemons_[2];
  std::optional<std::pair<int64_t, int64_t>> levels_[2];  // descriptors and threads, after its first survival
  std::string bystander_;                                 // its hash
};

TEST_F(NodeDeathsTest, AnyOfThemTellsAllTrainersAndHarmsNoOtherModel) {
  const auto seed = static_cast<uint32_t>(
      std::strtoul(EnvironmentOr("PARAMSHARD_TEST_SEED", std::to_string(std::random_device{}())).c_str(), nullptr, 10));
  const int rounds = std::atoi(EnvironmentOr("PARAMSHARD_NODE_DEATHS", "6").c_str());
  std::cout << "seed " << seed << ", " << rounds << " deaths" << std::endl;
  std::mt19937 random(seed);
  for (int round = 0; round < rounds && !HasFailure(); ++round) {
    const int victim = static_cast<int>(random() % 2);
    const std::string model = absl::StrCat("round ", round);
    SCOPED_TRACE(absl::StrCat(model, ", node ", victim, " dies"));
    TrainAndKill(model, victim, 1 + random() % 4, absl::Microseconds(random() % 30000), random() % 2 == 0);
    if (HasFatalFailure()) return;
    CheckSurvivor(1 - victim, model);
    Spawn(victim);
    Settle(victim);
  }
}

INSTANTIATE_TEST_SUITE_P(ReplicasAndFullSharding, StoppedDaemonTest,
                         testing::Values(Sharding::kInsideDaemons, Sharding::kOverTheWorld));
INSTANTIATE_TEST_SUITE_P(ReplicasAndFullSharding, ImpatientDaemonsTest,
                         testing::Values(Sharding::kInsideDaemons, Sharding::kOverTheWorld));
INSTANTIATE_TEST_SUITE_P(ReplicasAndFullSharding, TwoDaemonsTest,
                         testing::Values(Sharding::kInsideDaemons, Sharding::kOverTheWorld));

}  // namespace
}  // namespace paramshard::test
