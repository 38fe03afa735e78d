// Trainers of the digits against a real daemon; demo_test has the demo.
#include <signal.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/client.h"
#include "client/demo/child_process.h"
#include "client/demo/report_tail.h"
#include "gmock/gmock.h"
#include "kernels/base/status_macros.h"
#include "tests/support/child_process.h"
#include "tests/support/daemon_process.h"
#include "tests/support/environment.h"
#include "tests/support/status_matchers.h"

namespace paramshard::demo {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr absl::Duration kTimeout = absl::Seconds(60);

struct Training {
  std::string model;
  std::vector<std::string> arguments = {"--steps=6", "--report-interval=3"};
};

class TrainerTest : public testing::Test {
 protected:
  void SetUp() override {
    absl::StatusOr<test::DaemonProcess> daemon =
        test::DaemonProcess::Start(test::Program(PARAMSHARDD), sockets_.path(), test::DeviceFlags(2));
    ASSERT_OK(daemon.status());
    daemon_.emplace(*std::move(daemon));
  }

  absl::StatusOr<ChildProcess> Start(const Training& training, int rank, std::vector<std::string> more = {}) const {
    std::vector<std::string> arguments = {
        test::Program(PARAMSHARD_DIGITS), absl::StrCat("--socket-dir=", sockets_.path()), absl::StrCat("--rank=", rank),
        absl::StrCat("--model=", training.model), absl::StrCat("--report=", ReportFile(training.model, rank))};
    arguments.insert(arguments.end(), training.arguments.begin(), training.arguments.end());
    arguments.insert(arguments.end(), more.begin(), more.end());
    return ChildProcess::Start({.name = absl::StrCat(training.model, " rank ", rank),
                                .arguments = std::move(arguments),
                                .output_file = output_.path() + "/trainers"});
  }

  // In place of the one that runs.
  void RestartDaemon(int devices) {
    daemon_.reset();
    absl::StatusOr<test::DaemonProcess> daemon =
        test::DaemonProcess::Start(test::Program(PARAMSHARDD), sockets_.path(), test::DeviceFlags(devices));
    ASSERT_OK(daemon.status());
    daemon_.emplace(*std::move(daemon));
  }

  // Until the report of rank 0 has such an event.
  void AwaitEvent(const std::string& model, const std::string& event) const {
    const absl::Time deadline = absl::Now() + kTimeout;
    const auto is_it = [&](const nlohmann::json& line) { return line["event"] == event; };
    while (true) {
      const std::vector<nlohmann::json> events = ReportTail(ReportFile(model, 0)).Read();
      if (std::any_of(events.begin(), events.end(), is_it)) return;
      ASSERT_LT(absl::Now(), deadline) << "no event " << event;
      absl::SleepFor(absl::Milliseconds(2));
    }
  }

  // Reads masters and moments, and puts them back as an import of the commit does.
  absl::Status ExportAndImport(const std::string& model) const {
    ASSIGN_OR_RETURN(Client client, Client::Connect({.socket_dir = sockets_.path()}));
    std::vector<ExportedExtent> extents;
    ASSIGN_OR_RETURN(const ExportSummary summary,
                     client.Export(model, {.kinds = {TensorKind::kMaster, TensorKind::kExpAvg, TensorKind::kExpAvgSq}},
                                   [&](const ExportedExtent& extent) {
                                     extents.push_back(extent);
                                     return absl::OkStatus();
                                   }));
    std::vector<ImportTensor> tensors;
    for (const ExportedExtent& extent : extents) {
      tensors.push_back({.parameter = extent.parameter,
                         .kind = extent.kind,
                         .values = extent.values,
                         .first_row = extent.first_row,
                         .rows = extent.rows,
                         .step = extent.step});
    }
    // The daemon may not have seen yet that the trainers are gone.
    const absl::Time deadline = absl::Now() + kTimeout;
    absl::Status status;
    do {
      status = client.Import(model, tensors, {.commit_number = summary.commit_number, .version = summary.version});
    } while (absl::IsFailedPrecondition(status) && absl::Now() < deadline);
    return status;
  }

  std::string Output() const {
    std::ifstream in(output_.path() + "/trainers");
    return std::string(std::istreambuf_iterator<char>(in), {});
  }

  void Train(const Training& training) const {
    ASSERT_OK_AND_ASSIGN(ChildProcess first, Start(training, 0));
    ASSERT_OK_AND_ASSIGN(ChildProcess second, Start(training, 1));
    EXPECT_OK(first.WaitForSuccess(kTimeout));
    EXPECT_OK(second.WaitForSuccess(kTimeout));
  }

  std::string ReportFile(const std::string& model, int rank) const {
    return absl::StrCat(output_.path(), "/", model, "-", rank, ".jsonl");
  }

  // Returns rank 0's report: only numbers that depend on the training.
  std::vector<nlohmann::json> Progress(const std::string& model) const {
    std::vector<nlohmann::json> progress;
    for (const nlohmann::json& event : ReportTail(ReportFile(model, 0)).Read()) {
      if (event["event"] != "progress") continue;
      progress.push_back({event["step"], event["loss"], event["validation_loss"], event["accuracy"]});
    }
    return progress;
  }

  // Returns the hash of masters and moments; verifies the planes, too.
  std::string StateHash(const std::string& model) const {
    const absl::StatusOr<std::string> text = RunAndRead(
        "verify", {test::Program(PARAMSHARDCTL), "--socket-dir=" + sockets_.path(), "-o", "json", "verify", model},
        output_.path() + "/verify", kTimeout);
    EXPECT_OK(text.status());
    const auto hash =
        nlohmann::json::parse(text.value_or("{}")).value("/summary/stateHash"_json_pointer, std::string());
    EXPECT_EQ(hash.size(), 32U) << "a missing hash would equal another missing one";
    return hash;
  }

  const test::TemporaryDirectory sockets_, output_;
  std::optional<test::DaemonProcess> daemon_;
};

TEST_F(TrainerTest, TheSameTrainingTwiceIsTheSame) {
  Train({.model = "once"});
  Train({.model = "again"});
  EXPECT_EQ(Progress("once").size(), 2);
  EXPECT_EQ(Progress("again"), Progress("once"));
  EXPECT_FALSE(StateHash("once").empty());
  EXPECT_EQ(StateHash("again"), StateHash("once"));
}

TEST_F(TrainerTest, AnotherSeedOrStoredTypeIsAnotherTraining) {
  Train({.model = "plain"});
  Train({.model = "seed", .arguments = {"--steps=6", "--seed=2"}});
  Train({.model = "moments", .arguments = {"--steps=6", "--moments=BF16"}});
  EXPECT_NE(StateHash("seed"), StateHash("plain"));
  EXPECT_NE(StateHash("moments"), StateHash("plain"));
  Train({.model = "sums", .arguments = {"--steps=6", "--accumulators=BF16"}});
  EXPECT_NE(StateHash("sums"), StateHash("plain"));
}

// Two ranks: what each multiplies by, and the daemon divides by, loses no bit.
TEST_F(TrainerTest, AMeanOfGradientsIsTheSameTraining) {
  Train({.model = "sum"});
  Train({.model = "mean", .arguments = {"--steps=6", "--report-interval=3", "--gradient-reduction=mean"}});
  EXPECT_EQ(Progress("mean"), Progress("sum"));
  EXPECT_EQ(StateHash("mean"), StateHash("sum"));
}

TEST_F(TrainerTest, ATrainingThatIsKilledInMidStepEndsInTheSameState) {
  Train({.model = "uninterrupted"});
  const Training training{.model = "interrupted"};
  ASSERT_OK_AND_ASSIGN(ChildProcess survivor, Start(training, 0));
  ASSERT_OK_AND_ASSIGN(ChildProcess victim, Start(training, 1, {"--kill-at-step=5"}));
  ASSERT_OK_AND_ASSIGN(const ExitState exit, victim.Wait(kTimeout));
  EXPECT_EQ(exit.signal, SIGKILL);
  ASSERT_OK_AND_ASSIGN(victim, Start(training, 1));
  EXPECT_OK(survivor.WaitForSuccess(kTimeout));
  EXPECT_OK(victim.WaitForSuccess(kTimeout));
  EXPECT_EQ(Progress("interrupted"), Progress("uninterrupted"));
  EXPECT_FALSE(StateHash("uninterrupted").empty());
  EXPECT_EQ(StateHash("interrupted"), StateHash("uninterrupted"));
}

TEST_F(TrainerTest, AModelThatWasExportedAndImportedIsTrainedOn) {
  Train({.model = "whole"});
  const Training training{.model = "cut"};
  {
    ASSERT_OK_AND_ASSIGN(const ChildProcess survivor, Start(training, 0));
    ASSERT_OK_AND_ASSIGN(ChildProcess victim, Start(training, 1, {"--kill-at-step=4"}));
    ASSERT_OK_AND_ASSIGN(const ExitState exit, victim.Wait(kTimeout));
    EXPECT_EQ(exit.signal, SIGKILL);
    AwaitEvent("cut", "progress");
  }
  ASSERT_OK(test::ChildProcess::Run([&](test::Board&) { return ExportAndImport("cut"); }).Await());
  Train(training);
  EXPECT_EQ(Progress("cut"), Progress("whole"));
  EXPECT_FALSE(StateHash("whole").empty());
  EXPECT_EQ(StateHash("cut"), StateHash("whole"));
}

TEST_F(TrainerTest, TheFirstStepInAModelThatDoesNotSayMayBeTold) {
  Train({.model = "late", .arguments = {"--steps=6", "--report-interval=3", "--start-step=5"}});
  const std::vector<nlohmann::json> events = ReportTail(ReportFile("late", 0)).Read();
  ASSERT_FALSE(events.empty());
  EXPECT_EQ(events.front()["step"], 5);
  EXPECT_EQ(events.back()["commit_number"], 2);
}

TEST_F(TrainerTest, AWorldOfAnotherSizeIsRefused) {
  ASSERT_NO_FATAL_FAILURE(RestartDaemon(1));
  ASSERT_OK_AND_ASSIGN(ChildProcess trainer, Start({.model = "five", .arguments = {"--world-size=5"}}, 0));
  ASSERT_OK_AND_ASSIGN(const ExitState exit, trainer.Wait(kTimeout));
  EXPECT_EQ(exit.code, 1);
  EXPECT_THAT(Output(), HasSubstr("INVALID_ARGUMENT: --world-size: want 1 (ranks of the daemon's world), got 5"));
  EXPECT_TRUE(Progress("five").empty());
}

TEST_F(TrainerTest, ALossThatIsNoNumberLeavesAStateThatCanBeRead) {
  ASSERT_NO_FATAL_FAILURE(RestartDaemon(1));
  const Training training{.model = "diverged", .arguments = {"--steps=40", "--report-interval=1"}};
  ASSERT_OK_AND_ASSIGN(ChildProcess trainer, Start(training, 0, {"--learning-rate=1e30"}));
  ASSERT_OK_AND_ASSIGN(ExitState exit, trainer.Wait(kTimeout));
  EXPECT_EQ(exit.code, 1);
  EXPECT_THAT(Output(), HasSubstr("want finite gradients"));
  // Its commit, which was skipped, has the position with the loss.
  ASSERT_OK_AND_ASSIGN(trainer, Start(training, 0, {"--learning-rate=1e30"}));
  ASSERT_OK_AND_ASSIGN(exit, trainer.Wait(kTimeout));
  EXPECT_THAT(Output(), Not(HasSubstr("training position")));
  std::ifstream report(ReportFile("diverged", 0));
  for (std::string line; std::getline(report, line);) EXPECT_TRUE(nlohmann::json::accept(line)) << line;
}

TEST_F(TrainerTest, ADaemonThatHasLostTheModelIsNotTrainedOn) {
  ASSERT_NO_FATAL_FAILURE(RestartDaemon(1));
  ASSERT_OK_AND_ASSIGN(ChildProcess trainer, Start({.model = "lost", .arguments = {"--steps=100000"}}, 0));
  ASSERT_NO_FATAL_FAILURE(AwaitEvent("lost", "committed"));
  ASSERT_NO_FATAL_FAILURE(RestartDaemon(1));
  ASSERT_OK_AND_ASSIGN(const ExitState exit, trainer.Wait(kTimeout));
  EXPECT_EQ(exit.code, 1);
  EXPECT_THAT(Output(), AllOf(HasSubstr("FAILED_PRECONDITION: train lost: want the state of commit "),
                              HasSubstr("got commit 0: import the state")));
}

TEST_F(TrainerTest, ItLearns) {
  Train({.model = "learns", .arguments = {"--steps=60", "--report-interval=20"}});
  const std::vector<nlohmann::json> progress = Progress("learns");
  ASSERT_EQ(progress.size(), 3);
  EXPECT_LT(progress[2][2], progress[0][2]);
  EXPECT_LT(progress[2][2], 1.0);  // a guess costs ln(10) = 2.30 nats
}

TEST(TrainingProgramTest, HelpNamesTheFlagsOfStorage) {
  const test::TemporaryDirectory directory;
  EXPECT_THAT(RunAndRead("help", {test::Program(PARAMSHARD_DIGITS), "--help"}, directory.path() + "/help", kTimeout),
              IsOkAndHolds(AllOf(HasSubstr("--format"), HasSubstr("--element"), HasSubstr("--moments"),
                                 HasSubstr("--exp-avg "), HasSubstr("--exp-avg-sq"))));
}

TEST(TrainingProgramTest, WrongFlagsAreSaidBeforeADaemonIsLookedFor) {
  const test::TemporaryDirectory directory;
  EXPECT_THAT(
      RunAndRead("digits", {test::Program(PARAMSHARD_DIGITS), "--format=FP7"}, directory.path() + "/output", kTimeout),
      StatusIs(absl::StatusCode::kInternal,
               AllOf(HasSubstr("exit code 1"), HasSubstr("paramshard-digits: INVALID_ARGUMENT"), HasSubstr("FP7"))));
}

}  // namespace
}  // namespace paramshard::demo
