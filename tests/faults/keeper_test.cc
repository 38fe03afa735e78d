// Real daemons with a keeper: servers that are killed, restarted, and replaced.

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/client.h"
#include "common/checkpoint/step_folder.h"
#include "common/shared_memory/file_descriptor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/base/polling.h"
#include "kernels/base/status_macros.h"
#include "server/journal/journal_layout.h"
#include "tests/faults/training.h"
#include "tests/server/journal/journal_version.h"
#include "tests/support/child_process.h"
#include "tests/support/daemon_process.h"
#include "tests/support/environment.h"
#include "tests/support/status_matchers.h"

namespace paramshard::test {
namespace {

using testing::HasSubstr;

constexpr absl::Duration kTimeout = absl::Seconds(60);

class KeptDaemonTest : public testing::Test {
 protected:
  KeptDaemonTest() { Start({"--keeper=on"}); }

  // In the place of the present one.
  void Start(std::vector<std::string> flags, const Surroundings& surroundings = {}) {
    // The server would end a moment after a killed keeper: ends both in order.
    if (daemon_.has_value()) {
      daemon_->Signal(SIGTERM);
      EXPECT_OK(daemon_->AwaitExit(kTimeout).status());
    }
    for (const std::string& device : DeviceFlags(1)) flags.push_back(device);
    auto daemon = DaemonProcess::Start(Program(PARAMSHARDD), directory_.path(), flags, kTimeout, surroundings);
    EXPECT_OK(daemon.status());
    daemon_.emplace(*std::move(daemon));
  }

  // Returns the output of paramshardctl with these words.
  absl::StatusOr<std::string> Ctl(const std::string& words) const {
    return OutputOf(absl::StrCat(Program(PARAMSHARDCTL), " --socket-dir=", directory_.path(), " ", words, " 2>&1"));
  }
  // Returns the error of a restart with these words, which has to fail.
  std::string RestartRefusal(const std::string& words) const {
    const absl::StatusOr<std::string> said = OutputOf(absl::StrCat(
        Program(PARAMSHARDCTL), " --socket-dir=", directory_.path(), " restart ", words, " 2>&1; test $? = 1"));
    EXPECT_OK(said.status());
    return said.ok() ? *said : "";
  }
  // Returns the server that answers; nullopt while there is none.
  std::optional<pid_t> ServerPid() const {
    const absl::StatusOr<std::string> version = Ctl("-o json version");
    if (!version.ok()) return std::nullopt;
    return static_cast<pid_t>(std::stol(nlohmann::json::parse(*version)["pid"].get<std::string>()));
  }
  // Waits for a server other than `before`.
  std::optional<pid_t> AwaitServer(pid_t before) const {
    for (const absl::Time deadline = absl::Now() + kTimeout; absl::Now() < deadline;) {
      const std::optional<pid_t> pid = ServerPid();
      if (pid.has_value() && pid != before) return pid;
    }
    return std::nullopt;
  }
  absl::Status TrainOnce() {
    return ChildProcess::Run([this](Board&) {
             return Train({.socket_dir = directory_.path(), .model = "kept", .rank = 0, .commits = 2});
           })
        .Await();
  }

  // Gives the journals that the keeper holds another version; how many there are.
  int SetJournalVersions(uint32_t version) const {
    std::vector<std::string> files;
    for (const auto& entry : std::filesystem::directory_iterator(absl::StrCat("/proc/", daemon_->pid(), "/fd"))) {
      if (absl::StartsWith(std::filesystem::read_symlink(entry.path()).string(), "/memfd:")) {
        files.push_back(entry.path());
      }
    }
    return static_cast<int>(std::count_if(files.begin(), files.end(), [version](const std::string& file) {
      const wire::FileDescriptor fd(open(file.c_str(), O_RDWR | O_CLOEXEC));
      return fd.valid() && server::SetJournalVersion(fd.get(), version);
    }));
  }

  // Returns the hash of the model of TrainOnce.
  std::string StateHash() const {
    const absl::StatusOr<std::string> verified = Ctl("-o json verify kept");
    EXPECT_OK(verified.status());
    return verified.ok() ? nlohmann::json::parse(*verified)["summary"]["stateHash"] : "";
  }

  // Folders of checkpoints of the model of TrainOnce.
  static std::vector<std::string> SavedSteps(const TemporaryDirectory& saves) {
    const auto steps = checkpoint::ListStepFolders(saves.path() + "/kept");
    EXPECT_OK(steps.status());
    return steps.ok() ? *steps : std::vector<std::string>();
  }

  const TemporaryDirectory directory_;
  std::optional<DaemonProcess> daemon_;
};

absl::StatusOr<bool> Contains(const std::string& path, const std::string& text) {
  std::ifstream file(path);
  const std::string all((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  return absl::StrContains(all, text);
}

// Comes again once when the server ends under it.
absl::Status TrainOn(Training training) {
  training.restart_timeout = kTimeout;
  const absl::Status first = Train(training);
  return absl::IsUnavailable(first) ? Train(training) : first;
}

// One client, through the death of its server. The commit that it finds then.
absl::StatusOr<int64_t> OpenKillOpen(const std::string& socket_dir, pid_t server) {
  ASSIGN_OR_RETURN(Client client, Client::Connect({.socket_dir = socket_dir, .restart_timeout = kTimeout}));
  {
    ASSIGN_OR_RETURN(Model model, client.OpenModel(SmallModel("kept")));
    ASSIGN_OR_RETURN(PendingCommit first, model.Commit({}));
    RETURN_IF_ERROR(first.Wait().status());
    kill(server, SIGKILL);
    // The server may live long enough to answer some more.
    absl::Status status;
    while (status.ok()) {
      absl::StatusOr<PendingCommit> commit = model.Commit({});
      status = commit.ok() ? commit->Wait().status() : commit.status();
    }
    if (!absl::IsUnavailable(status)) return status;
  }
  ASSIGN_OR_RETURN(const Model model, client.OpenModel(SmallModel("kept")));
  return model.commit_number();
}

TEST_F(KeptDaemonTest, AServerThatIsKilledIsFollowedByAnother) {
  const std::optional<pid_t> first = ServerPid();
  ASSERT_TRUE(first.has_value());
  EXPECT_NE(*first, daemon_->pid());
  kill(*first, SIGKILL);
  const std::optional<pid_t> second = AwaitServer(*first);
  ASSERT_TRUE(second.has_value());
  EXPECT_OK(TrainOnce());
  kill(*second, SIGSEGV);
  EXPECT_TRUE(AwaitServer(*second).has_value());
}

TEST_F(KeptDaemonTest, AClientWaitsForTheNextServerAndFindsTheModelWhereItWas) {
  const std::optional<pid_t> server = ServerPid();
  ASSERT_TRUE(server.has_value());
  ChildProcess trainer = ChildProcess::Run([&](Board&) -> absl::Status {
    ASSIGN_OR_RETURN(const int64_t commit, OpenKillOpen(directory_.path(), *server));
    return commit == 1 ? absl::OkStatus() : absl::InternalError(absl::StrCat("want commit 1, got ", commit));
  });
  EXPECT_OK(trainer.Await());
}

// The journal looks like one of an older or a newer program.
TEST_F(KeptDaemonTest, AServerThatCannotReadAJournalEndsAndTheModelWaitsForOneThatCan) {
  const std::string log = directory_.path() + "/log";
  const wire::FileDescriptor log_fd(open(log.c_str(), O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0600));
  Start({"--keeper=on"}, {.standard_error = log_fd.get()});
  ASSERT_OK(TrainOnce());
  const std::string expected = StateHash();
  const std::optional<pid_t> server = ServerPid();
  ASSERT_TRUE(server.has_value());
  ASSERT_EQ(SetJournalVersions(server::kJournalVersion - 1), 1);
  kill(*server, SIGKILL);
  ASSERT_THAT(Poll({.timeout = kTimeout}, [&] { return Contains(log, "failed to start; memory is kept"); }),
              IsOkAndHolds(true));
  EXPECT_THAT(Contains(log, absl::StrCat("want format version ", server::kJournalVersion, ", got ",
                                         server::kJournalVersion - 1, ", of an older program")),
              IsOkAndHolds(true));
  ASSERT_EQ(SetJournalVersions(server::kJournalVersion), 1);
  daemon_->Signal(SIGUSR1);
  ASSERT_TRUE(AwaitServer(*server).has_value());
  EXPECT_EQ(StateHash(), expected);
}

TEST_F(KeptDaemonTest, ATrainingGoesOnFromTheLastSaveOfAServerThatWasKilled) {
  Training training{.socket_dir = directory_.path(), .model = "kept", .rank = 0, .commits = 6};
  Start({});
  ASSERT_OK(ChildProcess::Run([&](Board&) { return Train(training); }).Await());
  const std::string expected = StateHash();

  const TemporaryDirectory saves;
  Start({"--keeper=on", "--save-dir=" + saves.path(), "--save-every=1", "--restore=latest"});
  const std::optional<pid_t> server = ServerPid();
  ASSERT_TRUE(server.has_value());
  ASSERT_NE(*server, daemon_->pid());
  ChildProcess trainer = ChildProcess::Run([&](Board& board) {
    training.at = [&](Point point, int64_t commit) {
      if (commit == 4 && point == Point::kAllPushed && board.numbers[0].exchange(1) == 0) kill(*server, SIGKILL);
    };
    return TrainOn(training);
  });
  EXPECT_OK(trainer.Await());
  EXPECT_NE(ServerPid(), server);
  EXPECT_EQ(StateHash(), expected);
}

TEST_F(KeptDaemonTest, ARestartStartsTheNextServer) {
  const std::optional<pid_t> first = ServerPid();
  ASSERT_TRUE(first.has_value());
  EXPECT_THAT(Ctl("restart"), IsOkAndHolds(HasSubstr("serves as process")));
  EXPECT_NE(ServerPid(), first);
  daemon_->Signal(SIGUSR1);
  EXPECT_TRUE(AwaitServer(*first).has_value());
  EXPECT_OK(TrainOnce());
}

TEST_F(KeptDaemonTest, ARestartLosesModelsWhereThatIsAskedForAlone) {
  ASSERT_OK(TrainOnce());
  const std::string expected = StateHash();
  EXPECT_OK(Ctl("restart").status());
  EXPECT_EQ(StateHash(), expected);
  EXPECT_OK(Ctl("restart --lose-models").status());
  EXPECT_FALSE(Ctl("verify kept").ok());
  EXPECT_OK(TrainOnce());
}

TEST_F(KeptDaemonTest, AServerWithOtherDevicesGivesWayToOneThatCanGoOn) {
  ASSERT_OK(TrainOnce());
  const std::string expected = StateHash();
  EXPECT_THAT(RestartRefusal(absl::StrCat("-- --device=cpu:0,cpu:1 --socket-dir=", directory_.path())),
              HasSubstr("failed to start: exit code 3"));
  EXPECT_EQ(StateHash(), expected);
}

TEST_F(KeptDaemonTest, ARestartOfADaemonThatSavesAndRestoresLosesNothing) {
  const TemporaryDirectory saves;
  Start({"--keeper=on", "--save-dir=" + saves.path(), "--restore=latest"});
  ASSERT_OK(TrainOnce());
  const std::string expected = StateHash();
  ASSERT_OK(Ctl("restart").status());
  // Two commits are made already: the trainer only creates the model.
  ASSERT_OK(TrainOnce());
  EXPECT_EQ(StateHash(), expected);
}

TEST_F(KeptDaemonTest, ARestartSavesNothingOfModelsThatStay) {
  const TemporaryDirectory saves;
  Start({"--keeper=on", "--save-dir=" + saves.path()});
  ASSERT_OK(TrainOnce());
  const std::string expected = StateHash();
  ASSERT_OK(Ctl("restart").status());
  const std::optional<pid_t> second = ServerPid();
  ASSERT_TRUE(second.has_value());
  daemon_->Signal(SIGUSR1);
  ASSERT_TRUE(AwaitServer(*second).has_value());
  EXPECT_EQ(StateHash(), expected);
  EXPECT_THAT(SavedSteps(saves), testing::IsEmpty());
}

TEST_F(KeptDaemonTest, ARestartBehindOneThatWasRefusedSavesNothingOfModelsThatStay) {
  const TemporaryDirectory saves;
  Start({"--keeper=on", "--save-dir=" + saves.path()});
  ASSERT_OK(TrainOnce());
  const std::string expected = StateHash();
  const std::optional<pid_t> server = ServerPid();
  ASSERT_TRUE(server.has_value());
  for (const char* const words : {"--binary=/nowhere/paramshardd", "--lose-models -- --help"}) {
    EXPECT_FALSE(RestartRefusal(words).empty());
  }
  daemon_->Signal(SIGUSR1);
  ASSERT_TRUE(AwaitServer(*server).has_value());
  EXPECT_EQ(StateHash(), expected);
  EXPECT_THAT(SavedSteps(saves), testing::IsEmpty());
}

TEST_F(KeptDaemonTest, ARestartAsAnotherServerSavesBefore) {
  const std::string flags = absl::StrCat("-- --socket-dir=", directory_.path(), " ", DeviceFlags(1).front());
  for (const std::string& words : {"--binary=" + Program(PARAMSHARDD), flags, std::string("--lose-models")}) {
    const TemporaryDirectory saves;
    Start({"--keeper=on", "--save-dir=" + saves.path()});
    ASSERT_OK(TrainOnce());
    ASSERT_OK(Ctl("restart " + words).status());
    EXPECT_THAT(SavedSteps(saves), testing::ElementsAre(HasSubstr("step-000000000002-"))) << words;
  }
}

TEST_F(KeptDaemonTest, ARestartDoesNotLoseWhatItCouldNotSave) {
  const TemporaryDirectory saves;
  Start({"--keeper=on", "--save-dir=" + saves.path()});
  ASSERT_OK(TrainOnce());
  const std::string expected = StateHash();
  const std::string folder = saves.path() + "/kept";
  std::filesystem::remove_all(folder);
  ASSERT_TRUE(std::ofstream(folder) << "in the way");
  ASSERT_OK(Ctl("restart --lose-models").status());
  EXPECT_EQ(StateHash(), expected);
  std::filesystem::remove(folder);
  ASSERT_OK(Ctl("restart --lose-models").status());
  EXPECT_FALSE(Ctl("verify kept").ok());
  EXPECT_THAT(SavedSteps(saves), testing::SizeIs(1));
}

TEST_F(KeptDaemonTest, AStopInTheMiddleOfARestartSaves) {
  const TemporaryDirectory saves;
  Start({"--keeper=on", "--save-dir=" + saves.path()});
  ASSERT_OK(TrainOnce());
  daemon_->Signal(SIGUSR1);
  daemon_->Signal(SIGTERM);
  EXPECT_THAT(daemon_->AwaitExit(kTimeout), IsOkAndHolds(0));
  EXPECT_THAT(SavedSteps(saves), testing::SizeIs(1));
}

TEST_F(KeptDaemonTest, AServerThatDiesWhileItDrainsIsFollowedByOneThatSaves) {
  const TemporaryDirectory saves;
  Start({"--keeper=on", "--save-dir=" + saves.path()});
  ASSERT_OK(TrainOnce());
  const std::optional<pid_t> server = ServerPid();
  ASSERT_TRUE(server.has_value());
  kill(*server, SIGSTOP);
  daemon_->Signal(SIGTERM);
  kill(*server, SIGKILL);
  EXPECT_THAT(daemon_->AwaitExit(kTimeout), IsOkAndHolds(0));
  EXPECT_THAT(SavedSteps(saves), testing::SizeIs(1));
}

TEST_F(KeptDaemonTest, AProgramThatDoesNotServeGivesWayToTheOneBefore) {
  const std::optional<pid_t> first = ServerPid();
  ASSERT_TRUE(first.has_value());
  EXPECT_THAT(RestartRefusal("--binary=/bin/false"), HasSubstr("/bin/false failed to start: exit code 1"));
  EXPECT_OK(TrainOnce());
  EXPECT_FALSE(Ctl("restart --binary=/nowhere/paramshardd --lose-models").ok());
  EXPECT_OK(TrainOnce()) << "the server has not ended";
}

// The program is replaced like in an upgrade of a package.
TEST_F(KeptDaemonTest, AProgramThatIsReplacedIsStartedWhenItIsNamed) {
  const std::string path = directory_.path() + "/paramshardd";
  const auto put = [&path](const std::string& program) {
    std::filesystem::copy_file(program, path + ".new");
    std::filesystem::rename(path + ".new", path);
  };
  put(Program(PARAMSHARDD));
  // The check that the next daemon serves must not reach the server of this one.
  daemon_->Signal(SIGTERM);
  ASSERT_THAT(daemon_->AwaitExit(kTimeout), IsOkAndHolds(0));
  ASSERT_OK_AND_ASSIGN(
      auto daemon, DaemonProcess::Start(path, directory_.path(), {"--keeper=on", DeviceFlags(1).front()}, kTimeout));
  daemon_.emplace(std::move(daemon));
  ASSERT_OK(TrainOnce());
  const std::string expected = StateHash();
  put("/bin/false");
  std::optional<pid_t> server = ServerPid();
  ASSERT_TRUE(server.has_value());
  kill(*server, SIGKILL);
  ASSERT_TRUE(AwaitServer(*server).has_value());
  EXPECT_OK(Ctl("restart").status());
  EXPECT_OK(Ctl(absl::StrCat("restart -- --socket-dir=", directory_.path(), " ", DeviceFlags(1).front())).status());
  EXPECT_THAT(RestartRefusal("--binary=" + path), HasSubstr("failed to start: exit code 1"));
  EXPECT_EQ(StateHash(), expected);
  server = ServerPid();
  ASSERT_TRUE(server.has_value());
  EXPECT_THAT(Contains(absl::StrCat("/proc/", *server, "/comm"), "paramshardd\n"), IsOkAndHolds(true));
  put(Program(PARAMSHARDD));
  EXPECT_OK(Ctl("restart --binary=" + path).status());
  EXPECT_EQ(StateHash(), expected);
}

TEST_F(KeptDaemonTest, AProgramThatEndsWithZeroLosesNoModel) {
  ASSERT_OK(TrainOnce());
  const std::string expected = StateHash();
  EXPECT_THAT(RestartRefusal("--binary=/bin/true"), HasSubstr("/bin/true failed to start: exit code 0"));
  EXPECT_EQ(StateHash(), expected);
}

TEST_F(KeptDaemonTest, FlagsThatDoNotServeAreRefusedAndTheServerRunsOn) {
  const std::optional<pid_t> server = ServerPid();
  for (const std::string flag : {"--help", "--version", "--print-config"}) {
    EXPECT_THAT(RestartRefusal("-- " + flag), HasSubstr("--help, --version and --print-config are not allowed"))
        << flag;
  }
  EXPECT_EQ(ServerPid(), server);
}

TEST_F(KeptDaemonTest, ARestartInAnotherSocketDirectoryIsRefusedAndTheServerRunsOn) {
  const std::optional<pid_t> server = ServerPid();
  const TemporaryDirectory other;
  EXPECT_THAT(RestartRefusal("-- --socket-dir=" + other.path()), HasSubstr("which the keeper holds"));
  EXPECT_EQ(ServerPid(), server);
  // Another name of the same one is no other.
  EXPECT_OK(Ctl(absl::StrCat("restart -- --socket-dir=", directory_.path(), "/. ", DeviceFlags(1).front())).status());
}

// Trainers that found another daemon there would begin the model anew. From the death of the server on, through all
// pauses between starts that fail, and when the keeper has given up.
TEST_F(KeptDaemonTest, AnotherDaemonIsKeptOutOfTheSocketDirectoryForAsLongAsTheKeeperLives) {
  const std::string log = directory_.path() + "/log";
  const wire::FileDescriptor log_fd(open(log.c_str(), O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0600));
  Start({"--keeper=on"}, {.standard_error = log_fd.get()});
  ASSERT_OK(TrainOnce());
  const std::optional<pid_t> server = ServerPid();
  ASSERT_TRUE(server.has_value());
  ASSERT_EQ(SetJournalVersions(server::kJournalVersion - 1), 1);
  const std::string refusals = directory_.path() + "/refusals";
  const wire::FileDescriptor refusals_fd(open(refusals.c_str(), O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0600));
  const auto start_another = [&](const std::string& keeper) {
    return DaemonProcess::Spawn(Program(PARAMSHARDD), directory_.path(), {keeper, DeviceFlags(1).front()},
                                {.standard_error = refusals_fd.get()});
  };
  const auto has_given_up = [&] { return *Contains(log, "failed to start; memory is kept"); };
  kill(*server, SIGKILL);
  const absl::Time deadline = absl::Now() + kTimeout;
  for (int after = 0; after < 2 && absl::Now() < deadline; after += has_given_up() ? 1 : 0) {
    for (const char* const keeper : {"--keeper=on", "--keeper=off"}) {
      EXPECT_THAT(start_another(keeper).AwaitExit(kTimeout), IsOkAndHolds(3)) << keeper;
    }
  }
  EXPECT_TRUE(has_given_up());
  EXPECT_THAT(Contains(refusals, absl::StrCat("another daemon (process ", daemon_->pid(), ") holds it")),
              IsOkAndHolds(true));
  daemon_.reset();
  Start({"--keeper=on"});
  EXPECT_THAT(Ctl("models"), IsOkAndHolds(testing::Not(HasSubstr("kept"))));
}

// Servers do not start while the folder of checkpoints is away. The kept state is saved, no matter whether the stop
// comes before, between or after their starts.
TEST_F(KeptDaemonTest, AStopWithoutAServerSavesWhatIsKept) {
  const TemporaryDirectory saves;
  const std::string root = saves.path() + "/root";
  ASSERT_EQ(mkdir(root.c_str(), 0700), 0);
  Start({"--keeper=on", "--save-dir=" + root});
  ASSERT_OK(TrainOnce());
  const std::optional<pid_t> server = ServerPid();
  ASSERT_TRUE(server.has_value());
  ASSERT_EQ(rename(root.c_str(), (root + "-away").c_str()), 0);
  kill(*server, SIGKILL);
  const absl::Time deadline = absl::Now() + kTimeout;
  while (ServerPid() == server && absl::Now() < deadline) {
  }
  ASSERT_EQ(rename((root + "-away").c_str(), root.c_str()), 0);
  daemon_->Signal(SIGTERM);
  EXPECT_THAT(daemon_->AwaitExit(kTimeout), IsOkAndHolds(0));
  const auto steps = checkpoint::ListStepFolders(root + "/kept");
  ASSERT_OK(steps.status());
  EXPECT_THAT(*steps, testing::SizeIs(1));
}

TEST_F(KeptDaemonTest, ATermSignalDrainsTheServerAndEndsBoth) {
  daemon_->Signal(SIGTERM);
  EXPECT_THAT(daemon_->AwaitExit(kTimeout), IsOkAndHolds(0));
  EXPECT_FALSE(ServerPid().has_value());
}

TEST_F(KeptDaemonTest, AServerEndsWithItsKeeper) {
  const std::optional<pid_t> server = ServerPid();
  ASSERT_TRUE(server.has_value());
  const wire::FileDescriptor pidfd(static_cast<int>(syscall(SYS_pidfd_open, *server, 0)));
  ASSERT_TRUE(pidfd.valid());
  daemon_->Signal(SIGKILL);
  pollfd ended{.fd = pidfd.get(), .events = POLLIN, .revents = 0};
  EXPECT_EQ(poll(&ended, 1, static_cast<int>(absl::ToInt64Milliseconds(kTimeout))), 1);
}

TEST(KeeperTest, AStartThatFailsIsNotTriedAgain) {
  const TemporaryDirectory directory;
  DaemonProcess daemon = DaemonProcess::Spawn(Program(PARAMSHARDD), directory.path(), {"--keeper=on", "--listen=:"});
  EXPECT_THAT(daemon.AwaitExit(kTimeout), IsOkAndHolds(2));
}

}  // namespace
}  // namespace paramshard::test
