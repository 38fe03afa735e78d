// Mirrors that change over to a version together, as an operator orders, of which one is not ready.

#include <csignal>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "tests/faults/mirrored_training.h"
#include "tests/support/status_matchers.h"

namespace paramshard::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Two mirrors, which a tool reaches over the network.
class MirrorActivationTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_OK(training_.AwaitReady()); }

  std::string Address(int mirror) const { return absl::StrCat("127.0.0.1:", ports_[mirror]); }
  std::vector<std::string> Flags(int mirror) const {
    std::vector<std::string> flags = certificates_.Flags("reader");
    flags.insert(flags.end(), {"--mirror-activate=manual", absl::StrCat("--listen=", Address(mirror))});
    return flags;
  }
  // Asks both mirrors.
  Ended Activate(const std::string& words, const std::string& output = "table") const {
    std::vector<std::string> flags = certificates_.Flags("admin");
    flags.push_back(absl::StrCat("--address=", Address(0), ",", Address(1)));
    flags.push_back(absl::StrCat("--output=", output));
    return RunCtl(flags, "mirror activate " + words);
  }
  // Returns the line about a mirror.
  std::string LineOf(const Ended& ended, int mirror) const {
    for (absl::string_view line : absl::StrSplit(ended.output, '\n')) {
      if (absl::StartsWith(line, Address(mirror))) return std::string(line);
    }
    return "none: " + ended.output;
  }
  void ExpectAllActive(int64_t commit, const std::string& words = "") const {
    const Ended ended = Activate(words.empty() ? absl::StrCat("m ", commit) : words);
    EXPECT_EQ(ended.code, 0) << ended.output;
    for (int mirror = 0; mirror < 2; ++mirror) {
      EXPECT_THAT(LineOf(ended, mirror), HasSubstr(absl::StrCat("active at commit ", commit)));
    }
  }

  const Certificates certificates_{};
  MirroredTraining training_{{.certificates = &certificates_}};
  const int ports_[2] = {FreePort(), FreePort()};
};

TEST_F(MirrorActivationTest, AMirrorWithAnEarlierVersionIsLeftBehindAndCatchesUp) {
  ReadMirror late(training_, Flags(0));
  training_.TrainTo(1);
  ASSERT_OK_AND_ASSIGN(const int64_t earlier, late.AwaitStaged(0));
  training_.TrainTo(20);
  ReadMirror ready(training_, Flags(1));
  EXPECT_THAT(ready.AwaitStaged(0), IsOkAndHolds(20));

  // Without a commit all change over, or none.
  const Ended none = Activate("m");
  EXPECT_EQ(none.code, 1);
  EXPECT_THAT(none.output, AllOf(HasSubstr("no version is staged at all mirrors"),
                                 HasSubstr(absl::StrCat(Address(0), " has commit ", earlier, " staged")),
                                 HasSubstr(Address(1) + " has commit 20 staged"), HasSubstr("mirror activate m 20")));
  EXPECT_THAT(Activate("absent").output, HasSubstr(Address(1) + " mirrors no model absent"));
  const Ended ended = Activate("m 20");
  EXPECT_EQ(ended.code, 1) << ended.output;
  EXPECT_THAT(LineOf(ended, 0),
              AllOf(HasSubstr("left behind"),
                    HasSubstr(absl::StrCat("want commit 20 staged, got commit ", earlier, " staged"))));
  EXPECT_THAT(LineOf(ended, 1), HasSubstr("active at commit 20"));
  EXPECT_THAT(ready.Read(0), IsOkAndHolds(20));

  EXPECT_THAT(late.AwaitStaged(20), IsOkAndHolds(20));
  ASSERT_OK_AND_ASSIGN(const nlohmann::json listed, late.Listed());
  EXPECT_FALSE(listed.contains("active")) << listed;
  ExpectAllActive(20, "m");
  EXPECT_THAT(late.Read(0), IsOkAndHolds(20));
}

TEST_F(MirrorActivationTest, AMirrorThatDoesNotAnswerIsLeftBehindAndCatchesUp) {
  ReadMirror gone(training_, Flags(0)), ready(training_, Flags(1));
  training_.TrainTo(1);
  int64_t commit = 1;
  for (ReadMirror* const mirror : {&gone, &ready}) {
    ASSERT_OK_AND_ASSIGN(const int64_t staged, mirror->AwaitStaged(0));
    // It may have staged the creation. The other one would activate what it has staged.
    if (staged < commit) EXPECT_EQ(RunCtl({"--socket-dir=" + mirror->sockets()}, "mirror activate m 1").code, 1);
    EXPECT_THAT(mirror->AwaitStaged(1), IsOkAndHolds(1));
  }
  ExpectAllActive(commit);
  for (const int signal : {SIGSTOP, SIGKILL}) {
    SCOPED_TRACE(absl::StrCat("signal ", signal));
    signal == SIGSTOP ? gone.daemon().Pause() : gone.daemon().Signal(SIGKILL);
    training_.TrainTo(++commit);
    EXPECT_THAT(ready.AwaitStaged(commit), IsOkAndHolds(commit));
    const Ended ended = Activate(absl::StrCat("m ", commit), "json");
    EXPECT_EQ(ended.code, 1) << ended.output;
    const nlohmann::json answers = nlohmann::json::parse(ended.output);
    EXPECT_EQ(answers[0]["active"], false);
    EXPECT_THAT(answers[0]["error"].get<std::string>(), HasSubstr(Address(0)));
    EXPECT_EQ(answers[1]["active"], true);
    EXPECT_EQ(answers[1]["error"], "");
    EXPECT_THAT(ready.Read(0), IsOkAndHolds(commit));

    signal == SIGSTOP ? gone.daemon().Signal(SIGCONT) : gone.Start();
    EXPECT_THAT(gone.AwaitStaged(commit), IsOkAndHolds(commit));
    // Its readers have what they had: nothing, if it was started again.
    if (signal == SIGSTOP) EXPECT_THAT(gone.Read(0), IsOkAndHolds(commit - 1));
    ExpectAllActive(commit);
    EXPECT_THAT(gone.Read(0), IsOkAndHolds(commit));
  }
}

}  // namespace
}  // namespace paramshard::test
