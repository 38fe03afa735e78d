// Tests without a GPU: NCCL is missing, or has the wrong version.
#include "server/data_plane/nccl_connector.h"

#include <cstdlib>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/gpu/nccl.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

absl::Status ConnectWith(const std::string& library) { return ConnectNcclMeshes({{}, {}, library}).status(); }

TEST(ConnectNcclMeshesTest, ALibraryThatIsNotThereIsNamedWithWhatToDo) {
  EXPECT_THAT(ConnectWith("/nowhere/libnccl.so.2"),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("NCCL: want 2.24.0 or newer"), HasSubstr("/nowhere/libnccl.so.2"),
                             HasSubstr("--nccl-library"), HasSubstr("PARAMSHARD_NCCL_LIBRARY"))));
}

TEST(LoadNcclTest, SaysAtTheStartWhatConnectingWouldSay) {
  for (const char* library : {"/nowhere/libnccl.so.2", "libm.so.6", PARAMSHARD_OLD_NCCL}) {
    const absl::Status loaded = LoadNccl(library).status();
    EXPECT_THAT(loaded, StatusIs(absl::StatusCode::kFailedPrecondition)) << library;
    EXPECT_EQ(loaded, ConnectWith(library)) << library;
  }
}

TEST(NcclKeyTest, IsGivenToAnNcclThatTakesOneWhichThenUsesTcpAlone) {
  setenv("NCCL_IB_DISABLE", "0", 1);
  unsetenv("NCCL_NET");
  const std::string key(40, 'k');
  EXPECT_THAT(LoadNccl(PARAMSHARD_KEYED_NCCL, key), IsOkAndHolds("2.32.3"));
  EXPECT_STREQ(std::getenv("PARAMSHARD_TEST_NCCL_KEY"), key.c_str());
  EXPECT_STREQ(std::getenv("NCCL_IB_DISABLE"), "1");
  EXPECT_STREQ(std::getenv("NCCL_NET"), "Socket");
}

TEST(NcclKeyTest, AnNcclThatTakesNoneIsRefusedWithOneAndServesWithout) {
  EXPECT_THAT(LoadNccl(PARAMSHARD_UNKEYED_NCCL, std::string(40, 'k')).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("want 2.32.0 or newer for a key")));
  EXPECT_THAT(LoadNccl(PARAMSHARD_UNKEYED_NCCL), IsOkAndHolds("2.28.9"));
  EXPECT_THAT(LoadNccl(PARAMSHARD_KEYED_NCCL, "short").status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("key rejected: the reason")));
}

TEST(ConnectNcclMeshesTest, AnotherLibraryIsRefused) {
  EXPECT_THAT(ConnectWith("libm.so.6"),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("libm.so.6 has no function ncclGetVersion")));
}

TEST(ConnectNcclMeshesTest, AnOldVersionIsRefusedNamingIt) {
  EXPECT_THAT(ConnectWith(PARAMSHARD_OLD_NCCL),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("want 2.24.0 or newer"), HasSubstr("is 2.18.5"))));
}

TEST(SetNcclEnvironmentTest, LeavesAloneWhatIsSet) {
  setenv("NCCL_SOCKET_IFNAME", "eth7", 1);
  unsetenv("NCCL_NVLS_ENABLE");
  gpu::SetNcclEnvironment();
  EXPECT_STREQ(std::getenv("NCCL_SOCKET_IFNAME"), "eth7");
  EXPECT_STREQ(std::getenv("NCCL_NVLS_ENABLE"), "0");
  EXPECT_STREQ(std::getenv("NCCL_RAS_ENABLE"), "0");
}

}  // namespace
}  // namespace paramshard::server
