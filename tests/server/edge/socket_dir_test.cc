#include "server/edge/socket_dir.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/edge/listening_path.h"
#include "server/observe/log.h"
#include "tests/support/daemon_process.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

using ::testing::HasSubstr;

class SocketDirTest : public testing::Test {
 protected:
  static mode_t ModeOf(const std::string& path) {
    struct stat info {};
    return stat(path.c_str(), &info) == 0 ? info.st_mode & 0777 : 0;
  }

  const test::TemporaryDirectory directory_;
  const std::string path_ = directory_.path() + "/a/b";
};

TEST_F(SocketDirTest, IsMadeForItsOwnerAndHeldOnce) {
  {
    ASSERT_OK_AND_ASSIGN(const SocketDir held, SocketDir::Acquire(path_, false));
    EXPECT_EQ(ModeOf(path_), 0700u);
    EXPECT_THAT(SocketDir::Acquire(path_, false),
                StatusIs(absl::StatusCode::kAlreadyExists,
                         HasSubstr(absl::StrCat("another daemon (process ", getpid(), ") holds it"))));
  }
  ASSERT_OK(SocketDir::Acquire(path_, true));
  EXPECT_EQ(ModeOf(path_), 0755u);
}

TEST_F(SocketDirTest, ALockThatIsReleasedMeanwhileIsWaitedFor) {
  absl::StatusOr<SocketDir> killed = SocketDir::Acquire(path_, false);
  ASSERT_OK(killed.status());
  const int64_t before = LoggedEvents(LogLevel::kWarning);
  std::future<absl::Status> next = std::async(
      std::launch::async, [&] { return SocketDir::Acquire(path_, false, /*lent=*/-1, absl::Minutes(1)).status(); });
  while (LoggedEvents(LogLevel::kWarning) == before) std::this_thread::yield();
  killed = absl::UnavailableError("it has ended");
  EXPECT_OK(next.get());
}

TEST_F(SocketDirTest, ALockThatStaysHeldIsWaitedForWithinBounds) {
  ASSERT_OK_AND_ASSIGN(const SocketDir held, SocketDir::Acquire(path_, false));
  EXPECT_THAT(SocketDir::Acquire(path_, false, /*lent=*/-1, absl::Milliseconds(1)),
              StatusIs(absl::StatusCode::kAlreadyExists));
}

TEST_F(SocketDirTest, ALockThatIsLentIsNotTakenAgainAndStaysWithItsOwner) {
  ASSERT_OK_AND_ASSIGN(const SocketDir keepers, SocketDir::Acquire(path_, false));
  EXPECT_OK(SocketDir::Acquire(path_, true, keepers.lock()));
  EXPECT_EQ(ModeOf(path_), 0755u);
  EXPECT_THAT(SocketDir::Acquire(path_, false), StatusIs(absl::StatusCode::kAlreadyExists));
}

// The keeper's end alone does not release the lock: its server may still serve.
TEST_F(SocketDirTest, ALockThatIsLentIsHeldForAsLongAsAnybodyHasIt) {
  absl::StatusOr<SocketDir> keepers = SocketDir::Acquire(path_, false);
  ASSERT_OK(keepers.status());
  absl::StatusOr<SocketDir> servers = SocketDir::Acquire(path_, false, keepers->lock());
  ASSERT_OK(servers.status());
  keepers = absl::UnavailableError("it has ended");
  EXPECT_THAT(SocketDir::Acquire(path_, false), StatusIs(absl::StatusCode::kAlreadyExists));
  servers = absl::UnavailableError("it has ended");
  EXPECT_OK(SocketDir::Acquire(path_, false));
}

TEST_F(SocketDirTest, ALockOfAnotherDirectoryIsOfNoUse) {
  ASSERT_OK_AND_ASSIGN(const SocketDir other, SocketDir::Acquire(directory_.path(), false));
  ASSERT_OK_AND_ASSIGN(const SocketDir held, SocketDir::Acquire(path_, false));
  EXPECT_THAT(SocketDir::Acquire(path_, false, other.lock()), StatusIs(absl::StatusCode::kAlreadyExists));
}

TEST_F(SocketDirTest, ALentLockComesByTheEnvironmentOnce) {
  EXPECT_FALSE(SocketDir::TakeLentLock().valid());
  ASSERT_OK_AND_ASSIGN(const SocketDir keepers, SocketDir::Acquire(path_, false));
  // A server inherits the lock from the keeper like this.
  const int inherited = fcntl(keepers.lock(), F_DUPFD, 0);
  setenv(SocketDir::kLockVariable, absl::StrCat(inherited).c_str(), 1);
  const wire::FileDescriptor lent = SocketDir::TakeLentLock();
  EXPECT_EQ(lent.get(), inherited);
  EXPECT_NE(fcntl(inherited, F_GETFD) & FD_CLOEXEC, 0) << "no child of the server has it";
  EXPECT_OK(SocketDir::Acquire(path_, false, lent.get()));
  for (const char* const nonsense : {"", "-1", "lock", "1000000"}) {
    setenv(SocketDir::kLockVariable, nonsense, 1);
    EXPECT_FALSE(SocketDir::TakeLentLock().valid()) << nonsense;
    EXPECT_EQ(getenv(SocketDir::kLockVariable), nullptr);
  }
}

// The creator of a link there must not choose which directory's mode is changed.
TEST_F(SocketDirTest, ADaemonWhoseLockWasDeletedKeepsItsSockets) {
  ASSERT_OK_AND_ASSIGN(const SocketDir held, SocketDir::Acquire(path_, false));
  for (const auto& [path, type] : {std::pair(held.grpc_path(), SOCK_STREAM), {held.companion_path(), SOCK_SEQPACKET}}) {
    ASSERT_OK_AND_ASSIGN(const auto served, ListeningPath::Create({.path = path, .type = type}));
    ASSERT_EQ(unlink((path_ + "/lock").c_str()), 0);
    EXPECT_THAT(SocketDir::Acquire(path_, false), StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr(path)));
    EXPECT_OK(CheckNobodyListens(path_ + "/other.sock"));
    EXPECT_THAT(CheckNobodyListens(path), StatusIs(absl::StatusCode::kAlreadyExists));
  }
}

TEST_F(SocketDirTest, IsRestoredWithItsLock) {
  ASSERT_OK_AND_ASSIGN(SocketDir held, SocketDir::Acquire(path_, true));
  EXPECT_OK(held.Restore());
  for (const std::string& gone : {path_ + "/lock", path_}) {
    std::filesystem::remove_all(gone);
    EXPECT_OK(held.Restore());
    EXPECT_EQ(ModeOf(path_), 0755u);
    EXPECT_THAT(SocketDir::Acquire(path_, true), StatusIs(absl::StatusCode::kAlreadyExists));
  }
}

TEST_F(SocketDirTest, IsNotRestoredOverAnotherDaemon) {
  ASSERT_OK_AND_ASSIGN(SocketDir held, SocketDir::Acquire(path_, false));
  std::filesystem::remove_all(path_);
  {
    ASSERT_OK_AND_ASSIGN(const SocketDir other, SocketDir::Acquire(path_, false));
    EXPECT_THAT(held.Restore(), StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr(path_)));
  }
  EXPECT_OK(held.Restore());
  std::filesystem::remove_all(path_);
  std::filesystem::create_directory_symlink("/tmp", path_);
  EXPECT_THAT(held.Restore(), StatusIs(absl::StatusCode::kFailedPrecondition));
}

TEST_F(SocketDirTest, ALinkIsRefusedAndItsTargetStaysAsItIs) {
  const std::string target = directory_.path() + "/target";
  const std::string link = directory_.path() + "/link";
  ASSERT_EQ(mkdir(target.c_str(), 0711), 0);
  ASSERT_EQ(chmod(target.c_str(), 0711), 0);
  ASSERT_EQ(symlink(target.c_str(), link.c_str()), 0);
  for (const std::string& path : {link, link + "/", link + "//"}) {
    EXPECT_THAT(SocketDir::Acquire(path, true),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("want a directory, got a link")));
  }
  EXPECT_EQ(ModeOf(target), 0711u);
}

TEST_F(SocketDirTest, WhatIsNoDirectoryIsRefused) {
  const std::string file = directory_.path() + "/file";
  std::ofstream(file) << "x";
  EXPECT_THAT(SocketDir::Acquire(file, false), StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(SocketDir::Acquire(file + "/below", false), StatusIs(absl::StatusCode::kFailedPrecondition));
}

TEST_F(SocketDirTest, ALockThatIsALinkIsNotFollowed) {
  const std::string victim = directory_.path() + "/victim";
  ASSERT_EQ(symlink(victim.c_str(), (directory_.path() + "/lock").c_str()), 0);
  EXPECT_THAT(SocketDir::Acquire(directory_.path(), false), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_NE(access(victim.c_str(), F_OK), 0) << "nothing was made where the link points";
}

TEST_F(SocketDirTest, SomebodyElsesDirectoryIsRefused) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a directory away";
  ASSERT_EQ(chown(directory_.path().c_str(), 65534, 65534), 0);
  EXPECT_THAT(SocketDir::Acquire(directory_.path(), false),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("got one of user 65534")));
}

}  // namespace
}  // namespace paramshard::server
