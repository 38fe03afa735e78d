// Tests of real keepers with servers that end in every way.

#include "server/keeper/keeper.h"

#include <csignal>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/base/exit_codes.h"
#include "server/keeper/keeper_link.h"
#include "server/keeper/keeper_packet.h"
#include "tests/server/keeper/keeper_process.h"
#include "tests/server/keeper/memory_file.h"
#include "tests/support/environment.h"
#include "tests/support/process_counts.h"
#include "tests/support/random_seed.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temporary_directory.h"

namespace paramshard::server {
namespace {

using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;

class KeeperTest : public testing::Test {
 protected:
  // The first server has begun, is ready, and has given away memory.
  void StartWithMemory(KeeperProcess& keeper) {
    ASSERT_EQ(keeper.AwaitBegin(), "");
    ASSERT_EQ(keeper.Ask("ready"), "OK");
    ASSERT_EQ(keeper.Ask("keep a first"), "OK");
  }
};

TEST_F(KeeperTest, MemoryComesBackInTheNextLifeHoweverTheServerHasEnded) {
  KeeperProcess keeper;
  StartWithMemory(keeper);
  for (const std::string end : {"raise 9", "raise 11", "raise 6", "exit 1", "exit 3", "exit 127"}) {
    const pid_t before = keeper.server_pid();
    keeper.Tell(end);
    EXPECT_TRUE(keeper.AwaitServerEnd());
    ASSERT_EQ(keeper.AwaitBegin(), "a") << end;
    EXPECT_NE(keeper.server_pid(), before);
    EXPECT_EQ(keeper.Ask("read a"), "first");
    ASSERT_EQ(keeper.Ask("ready"), "OK");
  }
}

TEST_F(KeeperTest, HowAServerEndedIsLoggedInWords) {
  KeeperProcess keeper;
  StartWithMemory(keeper);
  keeper.Tell("raise 9");
  EXPECT_THAT(keeper.AwaitLog("server ended"), HasSubstr("end=signal 9 (Killed)"));
  ASSERT_EQ(keeper.AwaitBegin(), "a");
  keeper.Tell("exit 3");
  EXPECT_THAT(keeper.AwaitLog("server ended"), AllOf(HasSubstr("end=exit code 3"), HasSubstr("kept_memory_files=1")));
}

TEST_F(KeeperTest, WhatALifeChangesTheNextOneFinds) {
  KeeperProcess keeper;
  StartWithMemory(keeper);
  ASSERT_EQ(keeper.Ask("keep b second"), "OK");
  keeper.Tell("raise 9");
  ASSERT_EQ(keeper.AwaitBegin(), "a,b");
  ASSERT_EQ(keeper.Ask("drop a"), "OK");
  ASSERT_EQ(keeper.Ask("keep b third"), "OK");
  keeper.Tell("raise 9");
  ASSERT_EQ(keeper.AwaitBegin(), "b");
  EXPECT_EQ(keeper.Ask("read b"), "third");
}

TEST_F(KeeperTest, ThousandsOfDescriptorsComeBack) {
  KeeperProcess keeper;
  StartWithMemory(keeper);
  ASSERT_EQ(keeper.Ask("keep-many 5000"), "OK");
  keeper.Tell("raise 9");
  ASSERT_EQ(keeper.AwaitBegin(), "5001 names");
  EXPECT_EQ(keeper.Ask("read many/0"), "many/0");
  EXPECT_EQ(keeper.Ask("read many/4999"), "many/4999");
}

TEST_F(KeeperTest, FiftyRestartsLeaveNoDescriptorBehind) {
  KeeperProcess keeper;
  StartWithMemory(keeper);
  const std::string keepers = absl::StrCat("/proc/", keeper.pid(), "/fd");
  const int64_t before = CountEntries(keepers);
  const int64_t servers = CountEntries(absl::StrCat("/proc/", keeper.server_pid(), "/fd"));
  for (int i = 0; i < 50; ++i) {
    keeper.Tell(i % 2 == 0 ? "raise 9" : "exit 6");
    ASSERT_EQ(keeper.AwaitBegin(), "a");
    ASSERT_EQ(keeper.Ask("ready"), "OK");
    ASSERT_EQ(CountEntries(keepers), before) << i;
  }
  // The last server has taken the memory that the first one had made.
  EXPECT_EQ(CountEntries(absl::StrCat("/proc/", keeper.server_pid(), "/fd")), servers);
}

// More requests than one turn handles; meanwhile the keeper notices the server's end.
TEST_F(KeeperTest, WhatAServerGaveAwayWithItsLastBreathIsKept) {
  KeeperProcess keeper;
  StartWithMemory(keeper);
  keeper.Tell("keep-and-die 110");
  ASSERT_EQ(keeper.AwaitBegin(), "111 names");
  EXPECT_EQ(keeper.Ask("read last/109"), "last/109");
}

TEST_F(KeeperTest, AFloodOfNonsenseKeepsAKeeperFromNothing) {
  KeeperProcess keeper({.flags = {"--lend"}});
  ASSERT_EQ(keeper.AwaitBegin(), "");
  ASSERT_EQ(keeper.Ask("link"), "link");
  KeeperLink link(keeper.TakeDescriptor());
  ASSERT_OK(link.Keep("a", test::MemoryFile("first").get()));
  ASSERT_OK(link.ReportReady("test"));
  std::mt19937_64 random(FirstSeed(1));
  // Until the keeper stops reading, because its answers are not read.
  absl::Status sent;
  for (int i = 0; sent.ok() && i < 1'000'000; ++i) {
    std::string nonsense(1 + random() % 200, '\0');
    for (char& byte : nonsense) byte = static_cast<char>(random());
    sent = SendKeeperPacket(link.fd(), nonsense, std::vector<int>(random() % 3, link.fd()));
  }
  ASSERT_THAT(sent, StatusIs(absl::StatusCode::kDeadlineExceeded));
  keeper.Signal(SIGUSR1);
  ASSERT_EQ(keeper.Hear(), absl::StrCat("signal ", SIGUSR1));
  // Unexpected answers are skipped.
  ASSERT_OK_AND_ASSIGN(const KeptStore::Descriptors taken, link.TakeAll());
  ASSERT_EQ(taken.size(), 1U);
  EXPECT_EQ(test::BytesOf(taken.at("a").get()), "first");
  keeper.Tell("raise 9");
  EXPECT_EQ(keeper.AwaitBegin(), "");
  EXPECT_EQ(keeper.Ask("link"), "link");
  KeeperLink next(keeper.TakeDescriptor());
  EXPECT_THAT(next.TakeAll(), IsOkAndHolds(testing::SizeIs(1)));
}

// --- Starts that fail ---

TEST_F(KeeperTest, AFirstServerThatFailsIsTheLastAndTheKeeperEndsWithItsCode) {
  KeeperProcess keeper({.flags = {"--exit=2"}});
  EXPECT_THAT(keeper.AwaitLog("server started"), HasSubstr("kept_memory_files=0"));
  EXPECT_THAT(keeper.AwaitExit(), IsOkAndHolds(2));
  EXPECT_THAT(keeper.AwaitLog("server started"), HasSubstr("logs nothing"));
}

TEST_F(KeeperTest, StartsThatFailAreHeldAfterSoManyAndMemoryStays) {
  KeeperProcess keeper({.most_failed_starts = 3});
  ASSERT_EQ(keeper.AwaitBegin(), "");
  ASSERT_EQ(keeper.Ask("keep a first"), "OK");
  // A server that is not ready counts, too.
  ASSERT_EQ(keeper.Ask(absl::StrCat("ready")), "OK");
  keeper.Tell("raise 9");
  for (int start = 0; start < 3; ++start) {
    ASSERT_EQ(keeper.AwaitBegin(), "a") << start;
    keeper.Tell("exit 3");
  }
  EXPECT_THAT(keeper.AwaitLog("failed to start; memory is kept"), HasSubstr("kept_memory_files=1"));
  keeper.Signal(SIGUSR1);
  ASSERT_EQ(keeper.AwaitBegin(), "a");
  EXPECT_EQ(keeper.Ask("read a"), "first");
  EXPECT_EQ(keeper.Ask("ready"), "OK");
}

TEST_F(KeeperTest, AKeeperThatHoldsNothingEndsInsteadOfWaiting) {
  KeeperProcess keeper({.most_failed_starts = 2});
  ASSERT_EQ(keeper.AwaitBegin(), "");
  ASSERT_EQ(keeper.Ask("ready"), "OK");
  for (int start = 0; start < 3; ++start) {
    keeper.Tell("exit 3");
    if (start < 2) {
      ASSERT_EQ(keeper.AwaitBegin(), "");
    }
  }
  EXPECT_THAT(keeper.AwaitExit(), IsOkAndHolds(3));
}

TEST_F(KeeperTest, AServerThatEndsBeforeItIsReadyHasFailedWhateverItsCode) {
  for (const int code : {kExitOk, kExitInterrupted, kExitStuck}) {
    KeeperProcess keeper({.most_failed_starts = 1});
    StartWithMemory(keeper);
    keeper.Tell("raise 9");
    ASSERT_EQ(keeper.AwaitBegin(), "a");
    keeper.Tell(absl::StrCat("exit ", code));
    EXPECT_THAT(keeper.AwaitLog("failed to start; memory is kept"),
                HasSubstr(absl::StrCat("end=exit code ", code, " before it")));
    keeper.Signal(SIGUSR1);
    ASSERT_EQ(keeper.AwaitBegin(), "a");
    EXPECT_EQ(keeper.Ask("read a"), "first");
  }
}

TEST_F(KeeperTest, AFirstServerThatEndsWithZeroBeforeItIsReadyIsNoSuccess) {
  KeeperProcess keeper({.flags = {"--exit=0"}});
  EXPECT_THAT(keeper.AwaitExit(), IsOkAndHolds(kExitStartFailed));
}

// --- Stops without a server ---

TEST_F(KeeperTest, AKeeperThatHoldsMemoryStartsAServerToDrainItAtASignal) {
  KeeperProcess keeper({.most_failed_starts = 1});
  StartWithMemory(keeper);
  keeper.Tell("raise 9");
  ASSERT_EQ(keeper.AwaitBegin(), "a");
  keeper.Tell("exit 3");
  keeper.AwaitLog("failed to start; memory is kept");
  keeper.Signal(SIGTERM);
  ASSERT_EQ(keeper.AwaitBegin(), "a");
  ASSERT_EQ(keeper.Hear(), absl::StrCat("signal ", SIGTERM));
  ASSERT_EQ(keeper.Ask("ready"), "OK");
  keeper.Tell("exit 0");
  EXPECT_THAT(keeper.AwaitExit(), IsOkAndHolds(kExitOk));
}

TEST_F(KeeperTest, AStopBetweenTwoStartsStartsTheNextServerAtOnceToDrain) {
  KeeperProcess keeper({.pause = absl::Hours(1)});
  StartWithMemory(keeper);
  keeper.Tell("raise 9");
  ASSERT_EQ(keeper.AwaitBegin(), "a");
  keeper.AwaitLog("server ended");
  keeper.Tell("exit 3");
  EXPECT_THAT(keeper.AwaitLog("server ended"), HasSubstr("exit code 3"));
  keeper.Signal(SIGTERM);
  ASSERT_EQ(keeper.AwaitBegin(), "a");
  ASSERT_EQ(keeper.Hear(), absl::StrCat("signal ", SIGTERM));
  ASSERT_EQ(keeper.Ask("ready"), "OK");
  keeper.Tell("exit 0");
  EXPECT_THAT(keeper.AwaitExit(), IsOkAndHolds(kExitOk));
}

TEST_F(KeeperTest, AStopBetweenTwoStartsEndsAKeeperThatHoldsNothing) {
  KeeperProcess keeper({.pause = absl::Hours(1)});
  ASSERT_EQ(keeper.AwaitBegin(), "");
  ASSERT_EQ(keeper.Ask("ready"), "OK");
  keeper.Tell("raise 9");
  ASSERT_EQ(keeper.AwaitBegin(), "");
  keeper.AwaitLog("server ended");
  keeper.Tell("exit 3");
  EXPECT_THAT(keeper.AwaitLog("server ended"), HasSubstr("exit code 3"));
  keeper.Signal(SIGTERM);
  EXPECT_THAT(keeper.AwaitExit(), IsOkAndHolds(kExitOk));
}

TEST_F(KeeperTest, AStopInTheMiddleOfARestartDrainsWithTheProgramThatServed) {
  KeeperProcess keeper;
  StartWithMemory(keeper);
  const ServerCommand other = keeper.CommandWith({"--other"});
  ASSERT_EQ(keeper.Ask(absl::StrCat("restart ", other.program, " ", other.arguments[0], " --other")), "OK");
  keeper.Tell(absl::StrCat("exit ", kExitRestart));
  ASSERT_EQ(keeper.AwaitBegin(), "a");
  ASSERT_EQ(keeper.Ask("flags"), absl::StrCat(other.arguments[0], " --other"));
  keeper.Signal(SIGTERM);
  ASSERT_EQ(keeper.Hear(), absl::StrCat("signal ", SIGTERM));
  keeper.Tell("exit 0");
  ASSERT_EQ(keeper.AwaitBegin(), "a");
  ASSERT_EQ(keeper.Hear(), absl::StrCat("signal ", SIGTERM));
  EXPECT_EQ(keeper.Ask("flags"), other.arguments[0]);
  ASSERT_EQ(keeper.Ask("ready"), "OK");
  keeper.Tell("exit 0");
  EXPECT_THAT(keeper.AwaitExit(), IsOkAndHolds(kExitOk));
}

TEST_F(KeeperTest, WhatNoServerHasDrainedIsNamed) {
  KeeperProcess keeper;
  StartWithMemory(keeper);
  ASSERT_EQ(keeper.Ask("keep b second"), "OK");
  keeper.Signal(SIGTERM);
  ASSERT_EQ(keeper.Hear(), absl::StrCat("signal ", SIGTERM));
  keeper.Tell("raise 9");
  ASSERT_EQ(keeper.AwaitBegin(), "a,b");
  ASSERT_EQ(keeper.Hear(), absl::StrCat("signal ", SIGTERM));
  keeper.Tell("exit 0");
  EXPECT_THAT(keeper.AwaitLog("models are lost"),
              AllOf(HasSubstr("models=a,b"), HasSubstr("end=exit code 0 before it served")));
  EXPECT_THAT(keeper.AwaitExit(), IsOkAndHolds(kExitStartFailed));
}

TEST_F(KeeperTest, AServerThatIsTooSlowToDrainIsNotStartedOnceMore) {
  KeeperProcess keeper;
  StartWithMemory(keeper);
  keeper.Tell("raise 9");
  ASSERT_EQ(keeper.AwaitBegin(), "a");
  keeper.Signal(SIGTERM);
  ASSERT_EQ(keeper.Hear(), absl::StrCat("signal ", SIGTERM));
  keeper.Tell(absl::StrCat("exit ", kExitStuck));
  EXPECT_THAT(keeper.AwaitLog("models are lost"), HasSubstr("models=a"));
  EXPECT_THAT(keeper.AwaitExit(), IsOkAndHolds(kExitStuck));
}

TEST_F(KeeperTest, ARestartIsNothingToAKeeperThatStops) {
  KeeperProcess keeper;
  StartWithMemory(keeper);
  keeper.Signal(SIGTERM);
  ASSERT_EQ(keeper.Hear(), absl::StrCat("signal ", SIGTERM));
  keeper.Signal(SIGUSR1);
  keeper.Signal(SIGTERM);
  // Pending signals are taken in the order of their numbers, so the second stop comes last.
  EXPECT_THAT(keeper.AwaitExit(), IsOkAndHolds(kExitInterrupted));
  EXPECT_THAT(keeper.AwaitLog("restart requested"), HasSubstr("logs nothing"));
}

// --- Signals ---

TEST_F(KeeperTest, TheFirstSignalDrainsAndTheKeeperEndsWithTheServersCode) {
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) {
    KeeperProcess keeper;
    StartWithMemory(keeper);
    keeper.Signal(signal);
    ASSERT_EQ(keeper.Hear(), absl::StrCat("signal ", signal));
    keeper.Tell("exit 0");
    EXPECT_THAT(keeper.AwaitExit(), IsOkAndHolds(kExitOk));
  }
}

// The server itself blocks no signals: the keeper has blocked them until the server waits for them.
TEST_F(KeeperTest, ASignalThatComesBeforeTheServerWaitsIsNotLost) {
  KeeperProcess keeper;
  keeper.AwaitLog("server started");
  keeper.Signal(SIGTERM);
  ASSERT_EQ(keeper.AwaitBegin(), "");
  ASSERT_EQ(keeper.Hear(), absl::StrCat("signal ", SIGTERM));
  keeper.Tell("exit 0");
  EXPECT_THAT(keeper.AwaitExit(), IsOkAndHolds(kExitOk));
}

TEST_F(KeeperTest, TheSecondSignalKills) {
  KeeperProcess keeper;
  StartWithMemory(keeper);
  keeper.Signal(SIGTERM);
  ASSERT_EQ(keeper.Hear(), absl::StrCat("signal ", SIGTERM));
  keeper.Signal(SIGINT);
  EXPECT_THAT(keeper.AwaitExit(), IsOkAndHolds(kExitInterrupted));
  EXPECT_TRUE(keeper.AwaitServerEnd());
}

TEST_F(KeeperTest, AHangUpIsNoSecondSignal) {
  KeeperProcess keeper;
  StartWithMemory(keeper);
  keeper.Signal(SIGTERM);
  ASSERT_EQ(keeper.Hear(), absl::StrCat("signal ", SIGTERM));
  keeper.Signal(SIGHUP);
  keeper.Tell("exit 0");
  EXPECT_THAT(keeper.AwaitExit(), IsOkAndHolds(kExitOk));
}

TEST_F(KeeperTest, AHangUpIsNothingToAKeeperThatNohupHasStarted) {
  KeeperProcess keeper({.ignored_signals = {SIGHUP}});
  StartWithMemory(keeper);
  keeper.Signal(SIGHUP);
  keeper.Signal(SIGTERM);
  ASSERT_EQ(keeper.Hear(), absl::StrCat("signal ", SIGTERM));
  keeper.Tell("exit 0");
  EXPECT_THAT(keeper.AwaitExit(), IsOkAndHolds(kExitOk));
}

TEST_F(KeeperTest, AServerThatCrashesWhileDrainingIsStartedOnceMoreToDrain) {
  KeeperProcess keeper;
  StartWithMemory(keeper);
  keeper.Signal(SIGTERM);
  ASSERT_EQ(keeper.Hear(), absl::StrCat("signal ", SIGTERM));
  keeper.Tell("raise 9");
  ASSERT_EQ(keeper.AwaitBegin(), "a");
  ASSERT_EQ(keeper.Hear(), absl::StrCat("signal ", SIGTERM));
  keeper.Tell("raise 9");
  EXPECT_THAT(keeper.AwaitExit(), IsOkAndHolds(128 + SIGKILL));
}

TEST_F(KeeperTest, AServerThatEndsAsItWasToldEndsTheKeeper) {
  for (const int code : {kExitOk, kExitInterrupted, kExitStuck}) {
    KeeperProcess keeper;
    StartWithMemory(keeper);
    keeper.Tell(absl::StrCat("exit ", code));
    EXPECT_THAT(keeper.AwaitExit(), IsOkAndHolds(code));
  }
}

TEST_F(KeeperTest, TheServerHasAProcessGroupOfItsOwn) {
  KeeperProcess keeper;
  ASSERT_EQ(keeper.AwaitBegin(), "");
  EXPECT_EQ(keeper.Ask("group"), "own");
}

int OomScoreOf(pid_t pid) {
  int score = -10'000;
  std::ifstream(absl::StrCat("/proc/", pid, "/oom_score_adj")) >> score;
  return score;
}

TEST_F(KeeperTest, TheServerIsKilledBeforeTheKeeperWhereMemoryRunsOut) {
  KeeperProcess keeper;
  ASSERT_EQ(keeper.AwaitBegin(), "");
  EXPECT_GT(OomScoreOf(keeper.server_pid()), OomScoreOf(keeper.pid()));
}

TEST_F(KeeperTest, AKeeperThatIsKilledTakesTheServerAlong) {
  KeeperProcess keeper;
  StartWithMemory(keeper);
  keeper.Signal(SIGKILL);
  EXPECT_TRUE(keeper.AwaitServerEnd());
  EXPECT_THAT(keeper.AwaitExit(), IsOkAndHolds(128 + SIGKILL));
}

TEST_F(KeeperTest, AServerThatHasClosedItsSocketIsStillWaitedFor) {
  KeeperProcess keeper;
  StartWithMemory(keeper);
  ASSERT_EQ(keeper.Ask("close"), "closed");
  keeper.Signal(SIGUSR1);
  ASSERT_EQ(keeper.Hear(), absl::StrCat("signal ", SIGUSR1));
  keeper.Tell("raise 9");
  EXPECT_EQ(keeper.AwaitBegin(), "a");
}

// --- Restarts that are asked for ---

TEST_F(KeeperTest, ARestartWithAnotherCommandKeepsTheMemory) {
  KeeperProcess keeper;
  StartWithMemory(keeper);
  const ServerCommand other = keeper.CommandWith({"--other"});
  ASSERT_EQ(keeper.Ask(absl::StrCat("restart ", other.program, " ", other.arguments[0], " --other")), "OK");
  keeper.Tell(absl::StrCat("exit ", kExitRestart));
  ASSERT_EQ(keeper.AwaitBegin(), "a");
  EXPECT_EQ(keeper.Ask("read a"), "first");
}

TEST_F(KeeperTest, ACommandThatDoesNotBecomeReadyGivesWayToTheLastThatDid) {
  KeeperProcess keeper({.most_failed_starts = 2});
  StartWithMemory(keeper);
  const ServerCommand other = keeper.CommandWith({"--exit=3"});
  ASSERT_EQ(keeper.Ask(absl::StrCat("restart ", other.program, " ", other.arguments[0], " --exit=3")), "OK");
  keeper.Tell(absl::StrCat("exit ", kExitRestart));
  ASSERT_EQ(keeper.AwaitBegin(), "a");
  ASSERT_EQ(keeper.AwaitBegin(), "a");
  EXPECT_THAT(keeper.AwaitLog("rolled back to the previous server"), EndsWith(other.program));
  ASSERT_EQ(keeper.AwaitBegin(), "a");
  EXPECT_EQ(keeper.Ask("ready"), "OK");
}

TEST_F(KeeperTest, AProgramThatEndsWithZeroGivesWayToTheLastThatServed) {
  KeeperProcess keeper;
  StartWithMemory(keeper);
  ASSERT_EQ(keeper.Ask("restart /bin/true"), "OK");
  keeper.Tell(absl::StrCat("exit ", kExitRestart));
  ASSERT_EQ(keeper.AwaitBegin(), "a");
  EXPECT_EQ(keeper.Ask("read a"), "first");
}

TEST_F(KeeperTest, TheServerIsToldWhyARestartWasGivenUpUntilAnotherIsAskedFor) {
  KeeperProcess keeper({.most_failed_starts = 2});
  StartWithMemory(keeper);
  EXPECT_EQ(keeper.Ask("last-restart"), "given up: ");
  ASSERT_EQ(keeper.Ask("restart /bin/false"), "OK");
  keeper.Tell(absl::StrCat("exit ", kExitRestart));
  ASSERT_EQ(keeper.AwaitBegin(), "a");
  EXPECT_EQ(keeper.Ask("last-restart"), "given up: /bin/false failed to start: exit code 1 before it served");
  ASSERT_EQ(keeper.Ask("ready"), "OK");
  ASSERT_EQ(keeper.Ask("restart"), "OK");
  EXPECT_EQ(keeper.Ask("last-restart"), "given up: ");
  keeper.Tell(absl::StrCat("exit ", kExitRestart));
  ASSERT_EQ(keeper.AwaitBegin(), "a");
  EXPECT_EQ(keeper.Ask("last-restart"), "given up: ");
}

TEST_F(KeeperTest, TheServerIsToldHowOftenOneWasStartedAgain) {
  KeeperProcess keeper({.most_failed_starts = 2});
  StartWithMemory(keeper);
  EXPECT_EQ(keeper.Ask("restarts"), "0");
  keeper.Tell("exit 1");
  ASSERT_EQ(keeper.AwaitBegin(), "a");
  EXPECT_EQ(keeper.Ask("restarts"), "1");
  ASSERT_EQ(keeper.Ask("ready"), "OK");
  // The new program fails to start twice; then this one is started again.
  ASSERT_EQ(keeper.Ask("restart /bin/false"), "OK");
  keeper.Tell(absl::StrCat("exit ", kExitRestart));
  ASSERT_EQ(keeper.AwaitBegin(), "a");
  EXPECT_EQ(keeper.Ask("restarts"), "4");
}

// A package upgrade replaces the program's file.
class ReplacedProgramTest : public KeeperTest {
 protected:
  ReplacedProgramTest() { Put(test::Program(KEEPER_TEST_SERVER)); }
  // A copy of that program at the path of all servers.
  void Put(const std::string& program) const {
    std::filesystem::copy_file(program, path_ + ".new");
    std::filesystem::rename(path_ + ".new", path_);
  }
  std::string FileOfServer(const KeeperProcess& keeper) const {
    return std::filesystem::read_symlink(absl::StrCat("/proc/", keeper.server_pid(), "/exe"));
  }
  std::string Restart(KeeperProcess& keeper, const std::string& program) const {
    const ServerCommand command = keeper.CommandWith({});
    return keeper.Ask(absl::StrCat("restart ", program, " ", command.arguments[0]));
  }

  const test::TemporaryDirectory directory_;
  const std::string path_ = directory_.path() + "/server";
};

TEST_F(ReplacedProgramTest, AServerThatDiesIsFollowedByOneOfTheFileThatServed) {
  KeeperProcess keeper({.program = path_});
  StartWithMemory(keeper);
  Put("/bin/false");
  for (const std::string& end : {std::string("raise 9"), absl::StrCat("exit ", kExitRestart)}) {
    keeper.Tell(end);
    ASSERT_EQ(keeper.AwaitBegin(), "a") << end;
    EXPECT_EQ(FileOfServer(keeper), path_ + " (deleted)");
    ASSERT_EQ(keeper.Ask("ready"), "OK");
  }
}

TEST_F(ReplacedProgramTest, ARestartThatNamesNoProgramStartsTheFileThatServed) {
  KeeperProcess keeper({.program = path_});
  StartWithMemory(keeper);
  Put("/bin/false");
  for (const bool with_flags : {false, true}) {
    ASSERT_EQ(with_flags ? Restart(keeper, "") : keeper.Ask("restart"), "OK");
    keeper.Tell(absl::StrCat("exit ", kExitRestart));
    ASSERT_EQ(keeper.AwaitBegin(), "a");
    ASSERT_EQ(keeper.Ask("ready"), "OK");
    EXPECT_EQ(keeper.Ask("last-restart"), "given up: ");
  }
}

TEST_F(ReplacedProgramTest, ARestartThatNamesThePathStartsWhatLiesThereNow) {
  KeeperProcess keeper({.program = path_});
  StartWithMemory(keeper);
  Put(test::Program(KEEPER_TEST_SERVER));
  ASSERT_EQ(Restart(keeper, path_), "OK");
  keeper.Tell(absl::StrCat("exit ", kExitRestart));
  ASSERT_EQ(keeper.AwaitBegin(), "a");
  EXPECT_EQ(FileOfServer(keeper), path_);
}

TEST_F(ReplacedProgramTest, WhatLiesAtThePathNowGivesWayToTheFileThatServed) {
  KeeperProcess keeper({.program = path_, .most_failed_starts = 2});
  StartWithMemory(keeper);
  Put("/bin/false");
  ASSERT_EQ(Restart(keeper, path_), "OK");
  keeper.Tell(absl::StrCat("exit ", kExitRestart));
  ASSERT_EQ(keeper.AwaitBegin(), "a");
  ASSERT_EQ(keeper.Ask("ready"), "OK");
  EXPECT_EQ(FileOfServer(keeper), path_ + " (deleted)");
  EXPECT_THAT(keeper.Ask("last-restart"), HasSubstr("failed to start: exit code 1"));
}

TEST_F(ReplacedProgramTest, AKeeperThatHasGivenUpStartsWhatLiesAtThePathAtASignal) {
  KeeperProcess keeper({.program = path_, .most_failed_starts = 1});
  StartWithMemory(keeper);
  keeper.Tell("raise 9");
  ASSERT_EQ(keeper.AwaitBegin(), "a");
  keeper.Tell("exit 3");
  keeper.AwaitLog("failed to start; memory is kept");
  Put(test::Program(KEEPER_TEST_SERVER));
  keeper.Signal(SIGUSR1);
  ASSERT_EQ(keeper.AwaitBegin(), "a");
  EXPECT_EQ(FileOfServer(keeper), path_);
}

TEST_F(KeeperTest, AProgramThatIsNotThereIsRefusedAndTheServerRunsOn) {
  KeeperProcess keeper;
  StartWithMemory(keeper);
  EXPECT_THAT(keeper.Ask("restart /nowhere/server"), HasSubstr("NOT_FOUND"));
  keeper.Tell(absl::StrCat("exit ", kExitRestart));
  EXPECT_EQ(keeper.AwaitBegin(), "a");
}

TEST_F(KeeperTest, ARestartIsAskedForBySignalToo) {
  KeeperProcess keeper;
  StartWithMemory(keeper);
  keeper.Signal(SIGUSR1);
  ASSERT_EQ(keeper.Hear(), absl::StrCat("signal ", SIGUSR1));
  keeper.Tell(absl::StrCat("exit ", kExitRestart));
  EXPECT_EQ(keeper.AwaitBegin(), "a");
}

}  // namespace
}  // namespace paramshard::server
