#include "server/process/library_logs.h"

#include <google/protobuf/stubs/logging.h>
#include <grpc/support/log.h>

#include <algorithm>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace paramshard::server {
namespace {

using ::testing::HasSubstr;

// Callers can trigger such lines with compressed calls, and with text that is not UTF-8.
TEST(LibraryLogsTest, APlaceInALibraryWritesOneLineForManyEvents) {
  LogWhatLibrariesSay();
  testing::internal::CaptureStderr();
  for (int i = 0; i < 1000; ++i) {
    gpr_log(GPR_ERROR, "grpc is sorry");
    GOOGLE_LOG(ERROR) << "protobuf is sorry";
  }
  gpr_log(GPR_ERROR, "another place");
  const std::string lines = testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 3) << lines;
  EXPECT_THAT(lines, HasSubstr("grpc is sorry"));
  EXPECT_THAT(lines, HasSubstr("protobuf is sorry"));
  EXPECT_THAT(lines, HasSubstr("another place"));
}

TEST(LibraryLogsTest, ATextIsCutWhereverItComesFrom) {
  LogWhatLibrariesSay();
  testing::internal::CaptureStderr();
  GOOGLE_LOG(ERROR) << std::string(100000, 'x');
  EXPECT_LT(testing::internal::GetCapturedStderr().size(), 2000u);
}

}  // namespace
}  // namespace paramshard::server
