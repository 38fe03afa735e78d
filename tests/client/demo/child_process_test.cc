#include "client/demo/child_process.h"

#include <signal.h>

#include <fstream>

#include "client/demo/report_tail.h"
#include "client/demo/training_report.h"
#include "gmock/gmock.h"
#include "tests/support/daemon_process.h"
#include "tests/support/status_matchers.h"

namespace paramshard::demo {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class ChildProcessTest : public testing::Test {
 protected:
  absl::StatusOr<ChildProcess> Shell(const std::string& script) {
    return ChildProcess::Start({.name = "child", .arguments = {"/bin/sh", "-c", script}, .output_file = Output()});
  }
  std::string Output() const { return directory_.path() + "/output"; }

  const test::TemporaryDirectory directory_;
};

TEST_F(ChildProcessTest, SuccessIsExitCodeZero) {
  ASSERT_OK_AND_ASSIGN(ChildProcess child, Shell("exit 0"));
  EXPECT_OK(child.WaitForSuccess(absl::Seconds(10)));
}

TEST_F(ChildProcessTest, AFailureQuotesTheLastWords) {
  ASSERT_OK_AND_ASSIGN(ChildProcess child, Shell("echo all is lost >&2; exit 3"));
  EXPECT_THAT(child.WaitForSuccess(absl::Seconds(10)),
              StatusIs(absl::StatusCode::kInternal,
                       AllOf(HasSubstr("child"), HasSubstr("exit code 3"), HasSubstr("all is lost"))));
}

TEST_F(ChildProcessTest, ASignalIsNamed) {
  ASSERT_OK_AND_ASSIGN(ChildProcess child, Shell("sleep 100"));
  EXPECT_OK(child.CheckRunning());
  child.Signal(SIGKILL);
  ASSERT_OK_AND_ASSIGN(const ExitState exit, child.Wait(absl::Seconds(10)));
  EXPECT_EQ(exit.signal, SIGKILL);
  EXPECT_THAT(exit.ToString(), HasSubstr("signal 9"));
}

TEST_F(ChildProcessTest, WaitingIsBounded) {
  ASSERT_OK_AND_ASSIGN(ChildProcess child, Shell("sleep 100"));
  EXPECT_THAT(child.Wait(absl::Milliseconds(20)), StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("child")));
}

TEST_F(ChildProcessTest, AMissingProgramIsSaidBeforeAnythingStarts) {
  EXPECT_THAT(
      ChildProcess::Start({.name = "child", .arguments = {directory_.path() + "/nothing"}, .output_file = Output()}),
      StatusIs(absl::StatusCode::kNotFound, HasSubstr("nothing")));
}

TEST_F(ChildProcessTest, RunAndReadReturnsTheOutputOfThisRun) {
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(RunAndRead("echo", {"/bin/echo", "hello"}, Output(), absl::Seconds(10)), IsOkAndHolds("hello\n"));
  }
}

TEST(ReportTailTest, EveryEventIsReadOnceAndWhole) {
  const test::TemporaryDirectory directory;
  const std::string file = directory.path() + "/report.jsonl";
  ReportTail tail(file);
  EXPECT_THAT(tail.Read(), IsEmpty());
  ASSERT_OK_AND_ASSIGN(TrainingReport report, TrainingReport::Open(file));
  report.Event("attached", {{"commit_number", 3}});
  report.Progress({.step = 1, .accuracy = 0.5});
  const std::vector<nlohmann::json> events = tail.Read();
  ASSERT_THAT(events, SizeIs(2));
  EXPECT_EQ(events[0]["commit_number"], 3);
  EXPECT_EQ(events[1]["event"], "progress");
  EXPECT_THAT(tail.Read(), IsEmpty());

  std::ofstream out(file, std::ios::app);
  out << R"({"event":"half","ti)" << std::flush;
  EXPECT_THAT(tail.Read(), IsEmpty());
  out << R"(me":1})" << std::endl << "not an event" << std::endl;
  EXPECT_THAT(tail.Read(), SizeIs(1));
}

TEST(TrainingReportTest, AFileThatCannotBeOpenedIsSaid) {
  EXPECT_THAT(TrainingReport::Open("/nowhere/report"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("/nowhere/report")));
  EXPECT_OK(TrainingReport::Open(""));
}

}  // namespace
}  // namespace paramshard::demo
