#include "server/edge/listening_path.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temporary_directory.h"

namespace paramshard::server {
namespace {

using ::testing::HasSubstr;

class ListeningPathTest : public testing::TestWithParam<int> {
 protected:
  ListeningPath::Options Options() const { return {.path = path_, .type = GetParam()}; }

  // A socket at the path that is not ListeningPath's.
  wire::FileDescriptor Bind(int type) const {
    wire::FileDescriptor fd(socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
    const sockaddr_un address = Address();
    EXPECT_EQ(bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(listen(fd.get(), 1), 0);
    return fd;
  }
  bool Connects() const {
    const wire::FileDescriptor fd(socket(AF_UNIX, GetParam() | SOCK_CLOEXEC, 0));
    const sockaddr_un address = Address();
    return connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  }
  sockaddr_un Address() const {
    sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
    path_.copy(address.sun_path, sizeof(address.sun_path) - 1);
    return address;
  }
  ino_t Inode() const {
    struct stat info {};
    return lstat(path_.c_str(), &info) == 0 ? info.st_ino : 0;
  }

  const test::TemporaryDirectory directory_;
  const std::string folder_ = directory_.path() + "/d";
  const std::string path_ = folder_ + "/a.sock";

  void SetUp() override { std::filesystem::create_directory(folder_); }
};

INSTANTIATE_TEST_SUITE_P(BothTypes, ListeningPathTest, testing::Values(SOCK_STREAM, SOCK_SEQPACKET));

TEST_P(ListeningPathTest, HasItsModeAndGoesWithItsOwner) {
  for (const mode_t mode : {0600U, 0666U}) {
    ListeningPath::Options options = Options();
    options.mode = mode;
    ASSERT_OK_AND_ASSIGN(const std::unique_ptr<ListeningPath> listening, ListeningPath::Create(options));
    EXPECT_TRUE(Connects());
    struct stat info {};
    ASSERT_EQ(stat(path_.c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, mode);
  }
  EXPECT_EQ(Inode(), 0u);
}

TEST_P(ListeningPathTest, ASocketOfADeadServerIsReplaced) {
  Bind(GetParam()).Reset();
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<ListeningPath> listening, ListeningPath::Create(Options()));
  EXPECT_TRUE(Connects());
}

TEST_P(ListeningPathTest, ASocketThatSomebodyServesStays) {
  for (const int type : {SOCK_STREAM, SOCK_SEQPACKET}) {
    const wire::FileDescriptor served = Bind(type);
    const ino_t inode = Inode();
    EXPECT_THAT(ListeningPath::Create(Options()),
                StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr(absl::StrCat("process ", getpid()))));
    EXPECT_EQ(Inode(), inode);
    unlink(path_.c_str());
  }
}

// A full queue of connections shows that the server is alive.
TEST_P(ListeningPathTest, ABusyServersSocketStays) {
  const wire::FileDescriptor served = Bind(GetParam());
  std::vector<wire::FileDescriptor> waiting;
  const sockaddr_un address = Address();
  do {
    waiting.emplace_back(socket(AF_UNIX, GetParam() | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  } while (connect(waiting.back().get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0);
  EXPECT_THAT(ListeningPath::Create(Options()), StatusIs(absl::StatusCode::kAlreadyExists));
  EXPECT_NE(Inode(), 0u);
}

TEST_P(ListeningPathTest, AFileThatIsNoSocketStays) {
  const auto refused = [this] {
    const ino_t inode = Inode();
    EXPECT_THAT(ListeningPath::Create(Options()), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr(path_)));
    EXPECT_EQ(Inode(), inode);
    std::filesystem::remove(path_);
  };
  std::ofstream(path_) << "somebody's";
  refused();
  std::filesystem::create_directory(path_);
  refused();
  std::filesystem::create_symlink("/nowhere", path_);
  refused();
}

TEST_P(ListeningPathTest, AtTheEndAnothersFileStays) {
  ASSERT_OK_AND_ASSIGN(std::unique_ptr<ListeningPath> listening, ListeningPath::Create(Options()));
  unlink(path_.c_str());
  const wire::FileDescriptor others = Bind(GetParam());
  listening.reset();
  EXPECT_TRUE(Connects());
}

TEST_P(ListeningPathTest, IsRestoredWhereItIsGone) {
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<ListeningPath> listening, ListeningPath::Create(Options()));
  EXPECT_FALSE(listening->Restore().valid());
  for (int i = 0; i < 2; ++i) {
    unlink(path_.c_str());
    const int before = listening->fd();
    EXPECT_EQ(listening->Restore().get(), before);
    EXPECT_TRUE(Connects());
    EXPECT_FALSE(listening->Restore().valid());
  }
}

TEST_P(ListeningPathTest, IsRestoredWithItsDirectory) {
  ListeningPath::Options options = Options();
  options.restore_directory = [this] {
    std::filesystem::create_directories(folder_);
    return absl::OkStatus();
  };
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<ListeningPath> listening, ListeningPath::Create(options));
  std::filesystem::remove_all(folder_);
  EXPECT_TRUE(listening->Restore().valid());
  EXPECT_TRUE(Connects());
  // A socket that was moved away is gone, too.
  std::filesystem::rename(folder_, directory_.path() + "/elsewhere");
  EXPECT_TRUE(listening->Restore().valid());
  EXPECT_TRUE(Connects());
}

TEST_P(ListeningPathTest, WhatCannotBeRestoredIsTriedAgain) {
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<ListeningPath> listening, ListeningPath::Create(Options()));
  unlink(path_.c_str());
  wire::FileDescriptor others = Bind(GetParam());
  const ino_t inode = Inode();
  EXPECT_FALSE(listening->Restore().valid());
  EXPECT_EQ(Inode(), inode);
  EXPECT_GE(listening->fd(), 0);
  others.Reset();
  EXPECT_TRUE(listening->Restore().valid());
  EXPECT_TRUE(Connects());
  std::filesystem::remove_all(folder_);
  EXPECT_FALSE(listening->Restore().valid());
}

TEST_P(ListeningPathTest, WhereNobodyCanListenIsSaid) {
  ListeningPath::Options options = Options();
  options.path = "/nowhere/a.sock";
  EXPECT_THAT(ListeningPath::Create(options), StatusIs(absl::StatusCode::kUnavailable, HasSubstr(options.path)));
  options.path = "/tmp/" + std::string(200, 'x');
  EXPECT_THAT(ListeningPath::Create(options), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("too long")));
}

}  // namespace
}  // namespace paramshard::server
