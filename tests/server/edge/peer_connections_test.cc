#include "server/edge/peer_connections.h"

#include <fstream>
#include <string>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/base/manual_clock.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/test_authority.h"

namespace paramshard::server {
namespace {

using ::testing::HasSubstr;

constexpr char kAddress[] = "ipv4:10.0.0.1:4711";
constexpr char kOther[] = "ipv4:10.0.0.2:1";

class PeerConnectionsTest : public testing::Test {
 protected:
  PeerConnections::Options Options() {
    return {.clock = clock_, .now = [this] { return wall_; }};
  }
  void SetUp() override {
    connections_.Begin(kAddress);
    connections_.Begin(kOther);
  }
  // Valid for an hour.
  std::string Issue(const std::string& role) const {
    return authority_.Issue({std::string(test::kWorldUri) + "/" + role}, {.to = wall_ + absl::Hours(1)}).cert;
  }

  const test::TestAuthority authority_;
  ManualClock clock_;
  absl::Time wall_ = absl::FromUnixSeconds(absl::ToUnixSeconds(absl::Now()));
  PeerConnections connections_{Options()};
};

TEST_F(PeerConnectionsTest, AConnectionIsOverWhenItsCertificateEnds) {
  const std::string certificate = Issue("viewer");
  EXPECT_OK(connections_.OnCall(kAddress, certificate));
  clock_.Advance(absl::Minutes(59));
  EXPECT_OK(connections_.Check(kAddress));
  clock_.Advance(absl::Minutes(1));
  EXPECT_THAT(connections_.Check(kAddress),
              StatusIs(absl::StatusCode::kUnauthenticated, HasSubstr("/viewer has expired")));
  EXPECT_FALSE(connections_.OnCall(kAddress, certificate).ok());
}

TEST_F(PeerConnectionsTest, AClockThatJumpsEndsNothingAndKeepsNothing) {
  const std::string certificate = Issue("viewer");
  EXPECT_OK(connections_.OnCall(kAddress, certificate));
  wall_ += absl::Hours(24 * 365);
  EXPECT_OK(connections_.OnCall(kAddress, certificate));
  wall_ -= absl::Hours(2 * 24 * 365);
  clock_.Advance(absl::Hours(1));
  EXPECT_FALSE(connections_.Check(kAddress).ok());
}

TEST_F(PeerConnectionsTest, AnotherConnectionFromTheSameAddressIsJudgedAnew) {
  EXPECT_OK(connections_.OnCall(kAddress, Issue("viewer")));
  clock_.Advance(absl::Hours(1));
  wall_ += absl::Hours(1);
  connections_.Begin(kAddress);
  EXPECT_OK(connections_.Check(kAddress));
  EXPECT_OK(connections_.OnCall(kAddress, Issue("viewer")));
  EXPECT_OK(connections_.Check(kAddress));
}

TEST_F(PeerConnectionsTest, ClosedConnectionsAreForgotten) {
  const std::string certificate = Issue("viewer");
  EXPECT_OK(connections_.OnCall(kAddress, certificate));
  EXPECT_OK(connections_.OnCall(kOther, certificate));
  connections_.KeepOnly({kAddress});
  EXPECT_OK(connections_.Check(kAddress));
  EXPECT_FALSE(connections_.Check(kOther).ok());
}

// The daemon could not close it.
TEST_F(PeerConnectionsTest, NoCallIsServedOnAConnectionThatNobodyHasAccepted) {
  constexpr char kUnknown[] = "ipv6:%5Bfe80::1%251%5D:4711";
  const auto refused = StatusIs(absl::StatusCode::kUnauthenticated, HasSubstr(kUnknown));
  EXPECT_THAT(connections_.OnCall(kUnknown, Issue("viewer")), refused);
  EXPECT_THAT(connections_.Check(kUnknown), refused);
}

TEST_F(PeerConnectionsTest, WhoIsDeniedIsOver) {
  const test::TemporaryDirectory folder;
  const std::string path = folder.path() + "/deny";
  std::ofstream(path) << "";
  ASSERT_OK_AND_ASSIGN(const auto denied, DenyList::Load(path, {.interval = absl::Milliseconds(1)}));
  PeerConnections connections({.denied = denied, .clock = clock_, .now = [this] { return wall_; }});
  connections.Begin(kAddress);
  connections.Begin(kOther);
  EXPECT_OK(connections.OnCall(kAddress, Issue("node/1")));
  EXPECT_OK(connections.OnCall(kOther, Issue("node/2")));
  std::ofstream(path) << test::kWorldUri << "/node/1\n";
  while (connections.Check(kAddress).ok()) {
  }
  EXPECT_THAT(connections.Check(kAddress),
              StatusIs(absl::StatusCode::kUnauthenticated, HasSubstr("/node/1 is rejected by --tls-deny-file")));
  EXPECT_OK(connections.Check(kOther));
}

TEST_F(PeerConnectionsTest, WhatIsNoCertificateIsRefused) { EXPECT_FALSE(connections_.OnCall(kAddress, "").ok()); }

}  // namespace
}  // namespace paramshard::server
