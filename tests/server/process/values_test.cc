#include "server/process/values.h"

#include <limits>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

using ::testing::HasSubstr;

template <typename Message>
auto IsInvalid(Message message) {
  return StatusIs(absl::StatusCode::kInvalidArgument, message);
}

TEST(ParseTimeoutTest, TakesDurations) {
  EXPECT_THAT(ParseTimeout("500ms"), IsOkAndHolds(absl::Milliseconds(500)));
  EXPECT_THAT(ParseTimeout("10s"), IsOkAndHolds(absl::Seconds(10)));
  EXPECT_THAT(ParseTimeout("2m"), IsOkAndHolds(absl::Minutes(2)));
  EXPECT_THAT(ParseTimeout("1h30m"), IsOkAndHolds(absl::Minutes(90)));
  EXPECT_THAT(ParseTimeout("1.5s"), IsOkAndHolds(absl::Milliseconds(1500)));
}

TEST(ParseTimeoutTest, RefusesWhatIsNoPositiveDuration) {
  for (const char* text : {"", "10", "abc", "-1s", "0s", "0", "inf", "10 parsecs"}) {
    EXPECT_THAT(ParseTimeout(text), IsInvalid(HasSubstr("want a positive duration"))) << text;
  }
}

TEST(ParseByteCountTest, TakesNumbersWithAndWithoutUnits) {
  EXPECT_THAT(ParseByteCount("0"), IsOkAndHolds(0));
  EXPECT_THAT(ParseByteCount("1048576"), IsOkAndHolds(1 << 20));
  EXPECT_THAT(ParseByteCount("3KiB"), IsOkAndHolds(3072));
  EXPECT_THAT(ParseByteCount("512MiB"), IsOkAndHolds(int64_t{512} << 20));
  EXPECT_THAT(ParseByteCount("2GiB"), IsOkAndHolds(int64_t{2} << 30));
  EXPECT_THAT(ParseByteCount("1TiB"), IsOkAndHolds(int64_t{1} << 40));
  EXPECT_THAT(ParseByteCount("9223372036854775807"), IsOkAndHolds(std::numeric_limits<int64_t>::max()));
}

TEST(ParseByteCountTest, RefusesOtherTextAndOverflow) {
  for (const char* text : {"", "MiB", "-1", "+1", "1.5GiB", "2GB", "2 GiB", "9223372036854775808", "8388608TiB"}) {
    EXPECT_THAT(ParseByteCount(text), IsInvalid(HasSubstr("a number of bytes"))) << text;
  }
}

TEST(ParseIntegerTest, TakesBothBounds) {
  EXPECT_THAT(ParseInteger("0", 0, 3), IsOkAndHolds(0));
  EXPECT_THAT(ParseInteger("3", 0, 3), IsOkAndHolds(3));
}

TEST(ParseIntegerTest, RefusesOtherValuesSayingTheRange) {
  for (const char* text : {"", "x", "-1", "4", "1.0", "99999999999999999999"}) {
    EXPECT_THAT(ParseInteger(text, 0, 3), IsInvalid(HasSubstr("want an integer from 0 to 3, got"))) << text;
  }
  EXPECT_THAT(ParseInteger("0", 1, std::numeric_limits<int>::max()), IsInvalid(HasSubstr("an integer from 1 up")));
}

TEST(ParseAddressTest, TakesHostsAndPorts) {
  for (const char* text : {"127.0.0.1:50051", "[::1]:1", "localhost:65535", "localhost:0", "0.0.0.0:1", "[::]:1",
                           "192.168.1.2:80", "example.org:443"}) {
    EXPECT_THAT(ParseAddress(text, 0), IsOkAndHolds(text));
  }
}

TEST(ParseAddressTest, RefusesMissingPartsAndPortsOutOfRange) {
  for (const char* text : {"", "localhost", ":80", "::1:80", "[127.0.0.1]:80", "[::1:80"}) {
    EXPECT_THAT(ParseAddress(text, 0), IsInvalid(HasSubstr("want host:port, or [address]:port of IPv6, got"))) << text;
  }
  for (const char* text : {"localhost:", "localhost:http", "localhost:65536", "localhost:-1"}) {
    EXPECT_THAT(ParseAddress(text, 0), IsInvalid(HasSubstr("port: want an integer from 0 to 65535"))) << text;
  }
  EXPECT_THAT(ParseAddress("localhost:0", 1), IsInvalid(HasSubstr("port: want an integer from 1 to 65535")));
}

TEST(IsLoopbackAddressTest, TakesTheNamesOfLoopbackAlone) {
  for (const char* address : {"127.0.0.1:80", "[::1]:80", "localhost:80"}) {
    EXPECT_TRUE(IsLoopbackAddress(address)) << address;
  }
  for (const char* address : {"0.0.0.0:80", "[::]:80", "10.0.0.1:80", "localhost.evil:80", "127.0.0.1.evil:80"}) {
    EXPECT_FALSE(IsLoopbackAddress(address)) << address;
  }
}

TEST(ParseIpAddressTest, TakesNumbersAlone) {
  for (const char* text : {"10.0.0.3", "fd00::3", "127.0.0.1"}) EXPECT_THAT(ParseIpAddress(text), IsOkAndHolds(text));
  for (const char* text : {"", "localhost", "10.0.0", "10.0.0.3:80", "[fd00::3]", "eth0"}) {
    EXPECT_THAT(ParseIpAddress(text), IsInvalid(HasSubstr("want an IP address such as 10.0.0.3, got"))) << text;
  }
}

TEST(FindUserTest, TakesNumbersAndNames) {
  EXPECT_THAT(FindUser("0"), IsOkAndHolds(0u));
  EXPECT_THAT(FindUser("4242"), IsOkAndHolds(4242u));
  EXPECT_THAT(FindUser("root"), IsOkAndHolds(0u));
}

TEST(FindUserTest, RefusesWhatIsNoUser) {
  EXPECT_THAT(FindUser(""), IsInvalid(HasSubstr("want a user's number or name, got")));
  EXPECT_THAT(FindUser("4294967295"), IsInvalid(HasSubstr("want a user's number or name, got")));
  EXPECT_THAT(FindUser("no-such-user-here"), StatusIs(absl::StatusCode::kNotFound, HasSubstr("no such user")));
}

}  // namespace
}  // namespace paramshard::server
