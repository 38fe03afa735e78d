#include "server/base/own_folder.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/checkpoint/saved_model.h"
#include "tests/server/base/simulated_disk.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temporary_directory.h"

namespace paramshard::server {
namespace {

using ::testing::HasSubstr;

class OwnedByAnother final : public QuickCalls {
 public:
  explicit OwnedByAnother(uid_t owner) : owner_(owner) {}
  int Stat(const std::string& path, struct stat* status) override {
    const int result = DiskCalls::Stat(path, status);
    status->st_uid = owner_;
    return result;
  }

 private:
  const uid_t owner_;
};

class ReadOnly final : public QuickCalls {
 public:
  int Access(const std::string&, int) override {
    errno = EROFS;
    return -1;
  }
};

class OwnFolderTest : public testing::Test {
 protected:
  absl::Status Check(const std::string& path) { return CheckOwnFolder(Disk(&calls_), path); }

  QuickCalls calls_;
  const test::TemporaryDirectory root_;
};

TEST_F(OwnFolderTest, AFolderOfThisUserIsTaken) {
  EXPECT_OK(Check(root_.path()));
  OwnedByAnother roots(0);
  EXPECT_OK(CheckOwnFolder(Disk(&roots), root_.path()));
}

TEST_F(OwnFolderTest, APathThatIsNotAbsoluteIsRefused) {
  for (const char* path : {"", "saves", "./saves"}) {
    EXPECT_THAT(Check(path), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("absolute")));
  }
}

TEST_F(OwnFolderTest, AFolderThatIsNotThereIsAFailedPrecondition) {
  EXPECT_THAT(Check(root_.path() + "/none"), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("/none")));
}

TEST_F(OwnFolderTest, AFileIsNoFolder) {
  checkpoint::WriteText(root_.path() + "/file", "text");
  EXPECT_THAT(Check(root_.path() + "/file"), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("a folder")));
}

TEST_F(OwnFolderTest, AFolderThatOthersMayWriteToIsRefused) {
  for (const mode_t mode : {0770, 0707, 01777}) {
    ASSERT_EQ(chmod(root_.path().c_str(), mode), 0);
    EXPECT_THAT(Check(root_.path()), StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("chmod go-w")));
  }
  ASSERT_EQ(chmod(root_.path().c_str(), 0755), 0);
  EXPECT_OK(Check(root_.path()));
}

TEST_F(OwnFolderTest, AFolderOfAnotherUserIsRefused) {
  OwnedByAnother others(geteuid() + 1);
  EXPECT_THAT(CheckOwnFolder(Disk(&others), root_.path()),
              StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("chown")));
}

TEST_F(OwnFolderTest, AFolderThatCannotBeWrittenToIsRefused) {
  ReadOnly calls;
  EXPECT_THAT(CheckOwnFolder(Disk(&calls), root_.path()),
              StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr(root_.path() + ": access for writing failed")));
}

}  // namespace
}  // namespace paramshard::server
