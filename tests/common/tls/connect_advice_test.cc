#include "common/tls/connect_advice.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace paramshard::tls {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

const Files kFiles = {.cert = "own.pem", .key = "own.key", .ca = "authority.pem"};

TEST(ConnectAdviceTest, NamesTheFileThatDecides) {
  EXPECT_THAT(ConnectAdvice("Ssl handshake failed: SSL_ERROR_SSL: error:0A000086::certificate verify failed", kFiles),
              HasSubstr("not signed by an authority in authority.pem"));
  EXPECT_THAT(ConnectAdvice("error:10000086:OPENSSL_internal:CERTIFICATE_VERIFY_FAILED", kFiles),
              HasSubstr("not signed by an authority in authority.pem"));
  EXPECT_THAT(ConnectAdvice("last error: UNAVAILABLE: Socket closed", kFiles), HasSubstr("certificate in own.pem"));
  EXPECT_THAT(ConnectAdvice("recvmsg:Connection reset by peer", kFiles), HasSubstr("certificate in own.pem"));
}

TEST(ConnectAdviceTest, SaysThatOneEndSpeaksInTheClear) {
  EXPECT_THAT(ConnectAdvice("SSL routines::wrong version number", kFiles), HasSubstr("does not use TLS"));
  EXPECT_THAT(ConnectAdvice("UNAVAILABLE: Socket closed", Files()), HasSubstr("may use TLS"));
}

TEST(ConnectAdviceTest, OtherFailuresSayItAll) {
  EXPECT_THAT(ConnectAdvice("connect: Connection refused (111)", kFiles), IsEmpty());
  EXPECT_THAT(ConnectAdvice("Domain name not found", Files()), IsEmpty());
}

}  // namespace
}  // namespace paramshard::tls
