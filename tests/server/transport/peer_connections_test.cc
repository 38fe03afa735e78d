#include "server/transport/peer_connections.h"

#include <fstream>
#include <string>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/store/manual_clock.h"
#include "tests/status_matchers.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/test_authority.h"

namespace paramshard::server {
namespace {

using ::testing::HasSubstr;

constexpr char kAddress[] = "ipv4:10.0.0.1:4711";

class PeerConnectionsTest : public testing::Test {
 protected:
  PeerConnections::Options Options() {
    return {.clock = clock_, .now = [this] { return wall_; }};
  }
  // Valid for an hour.
  std::string Issue(const std::string& role) const {
    return authority_.Issue({std::string(test::kWorldUri) + "/" + role}, {.to = wall_ + absl::Hours(1)}).cert;
  }

  const test::TestAuthority authority_;
  ManualClock clock_;
  absl::Time wall_ = absl::FromUnixSeconds(absl::ToUnixSeconds(absl::Now()));
};

TEST_F(PeerConnectionsTest, AConnectionIsOverWhenItsCertificateEnds) {
  PeerConnections connections(Options());
  const std::string certificate = Issue("viewer");
  EXPECT_OK(connections.OnCall(kAddress, certificate));
  clock_.Advance(absl::Minutes(59));
  EXPECT_OK(connections.Check(kAddress));
  clock_.Advance(absl::Minutes(1));
  EXPECT_THAT(connections.Check(kAddress),
              StatusIs(absl::StatusCode::kUnauthenticated, HasSubstr("/viewer, with which the connection was made")));
  EXPECT_FALSE(connections.OnCall(kAddress, certificate).ok());
}

TEST_F(PeerConnectionsTest, AClockThatJumpsEndsNothingAndKeepsNothing) {
  PeerConnections connections(Options());
  const std::string certificate = Issue("viewer");
  EXPECT_OK(connections.OnCall(kAddress, certificate));
  wall_ += absl::Hours(24 * 365);
  EXPECT_OK(connections.OnCall(kAddress, certificate));
  wall_ -= absl::Hours(2 * 24 * 365);
  clock_.Advance(absl::Hours(1));
  EXPECT_FALSE(connections.Check(kAddress).ok());
}

TEST_F(PeerConnectionsTest, AnotherConnectionFromTheSameAddressIsJudgedAnew) {
  PeerConnections connections(Options());
  EXPECT_OK(connections.OnCall(kAddress, Issue("viewer")));
  clock_.Advance(absl::Hours(1));
  wall_ += absl::Hours(1);
  connections.Forget(kAddress);
  EXPECT_OK(connections.Check(kAddress));
  EXPECT_OK(connections.OnCall(kAddress, Issue("viewer")));
  EXPECT_OK(connections.Check(kAddress));
}

TEST_F(PeerConnectionsTest, ClosedConnectionsAreForgotten) {
  PeerConnections connections(Options());
  const std::string certificate = Issue("viewer");
  EXPECT_OK(connections.OnCall(kAddress, certificate));
  EXPECT_OK(connections.OnCall("ipv4:10.0.0.2:1", certificate));
  connections.KeepOnly({kAddress});
  clock_.Advance(absl::Hours(1));
  EXPECT_FALSE(connections.Check(kAddress).ok());
  EXPECT_OK(connections.Check("ipv4:10.0.0.2:1"));
}

TEST_F(PeerConnectionsTest, WhoIsDeniedIsOver) {
  const test::TemporaryDirectory folder;
  const std::string path = folder.path() + "/deny";
  std::ofstream(path) << "";
  ASSERT_OK_AND_ASSIGN(const auto denied, DenyList::Load(path, clock_));
  PeerConnections connections({.denied = denied, .clock = clock_, .now = [this] { return wall_; }});
  EXPECT_OK(connections.OnCall(kAddress, Issue("node/1")));
  EXPECT_OK(connections.OnCall("ipv4:10.0.0.2:1", Issue("node/2")));
  std::ofstream(path) << test::kWorldUri << "/node/1\n";
  clock_.Advance(absl::Seconds(2));
  EXPECT_THAT(connections.Check(kAddress),
              StatusIs(absl::StatusCode::kUnauthenticated, HasSubstr("/node/1 is named by --tls-deny-file")));
  EXPECT_OK(connections.Check("ipv4:10.0.0.2:1"));
}

TEST_F(PeerConnectionsTest, WhatIsNoCertificateIsRefused) {
  PeerConnections connections(Options());
  EXPECT_FALSE(connections.OnCall(kAddress, "").ok());
}

}  // namespace
}  // namespace paramshard::server
