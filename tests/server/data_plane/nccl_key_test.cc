#include "server/data_plane/nccl_key.h"

#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temporary_directory.h"

namespace paramshard::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class NcclKeyTest : public testing::Test {
 protected:
  absl::StatusOr<std::string> Read(const std::string& text, mode_t mode = 0600) const {
    std::ofstream(path_, std::ios::binary | std::ios::trunc) << text;
    EXPECT_EQ(chmod(path_.c_str(), mode), 0);
    return ReadNcclKey(path_);
  }

  const test::TemporaryDirectory folder_;
  const std::string path_ = folder_.path() + "/psk";
  const std::string key_ = std::string(32, 'k');
};

TEST_F(NcclKeyTest, IsTheTextOfTheFileWithoutItsEndOfLine) {
  EXPECT_THAT(Read(key_), IsOkAndHolds(key_));
  EXPECT_THAT(Read(key_ + " x\r\n"), IsOkAndHolds(key_ + " x"));
  EXPECT_THAT(Read(key_, 0400), IsOkAndHolds(key_));
}

TEST_F(NcclKeyTest, AFileThatOthersCanReadIsRefused) {
  for (const mode_t mode : {0640, 0604, 0660, 0620}) {
    EXPECT_THAT(Read(key_, mode), StatusIs(absl::StatusCode::kFailedPrecondition,
                                           AllOf(HasSubstr("--nccl-psk-file " + path_), HasSubstr("its owner alone"))));
  }
}

TEST_F(NcclKeyTest, AFileOfAnotherUserIsRefused) {
  if (geteuid() != 0) GTEST_SKIP() << "root alone gives files away";
  ASSERT_THAT(Read(key_), IsOkAndHolds(key_));
  ASSERT_EQ(chown(path_.c_str(), 65534, -1), 0);
  EXPECT_THAT(ReadNcclKey(path_), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("of user 65534")));
}

TEST_F(NcclKeyTest, WhatIsNoKeyIsRefused) {
  EXPECT_THAT(Read(std::string(31, 'k') + "\n"),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("at least 32 bytes, got 31")));
  EXPECT_THAT(Read(key_ + std::string(1, '\0') + key_),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("zero byte")));
  EXPECT_THAT(ReadNcclKey(folder_.path() + "/none"),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("/none")));
  EXPECT_THAT(ReadNcclKey(folder_.path()), StatusIs(absl::StatusCode::kFailedPrecondition));
}

}  // namespace
}  // namespace paramshard::server
