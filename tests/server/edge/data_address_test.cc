#include "server/edge/data_address.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

using ::testing::HasSubstr;

TEST(InterfaceOfTest, NamesTheInterfaceOfAnAddress) { EXPECT_THAT(InterfaceOf("127.0.0.1"), IsOkAndHolds("lo")); }

// An address from the documentation range, which no machine has.
TEST(InterfaceOfTest, AnAddressOfAnotherMachineIsRefusedWithThoseThatThereAre) {
  for (const char* address : {"192.0.2.1", "2001:db8:0::1"}) {
    EXPECT_THAT(InterfaceOf(address).status(),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         testing::AllOf(HasSubstr(address), HasSubstr("127.0.0.1 (lo)"))));
  }
}

}  // namespace
}  // namespace paramshard::server
