#include "server/data_plane/link_check.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <future>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/shared_memory/file_descriptor.h"
#include "server/data_plane/mesh_addresses.h"
#include "server/data_plane/mesh_connector.h"
#include "tests/server/data_plane/engine_world.h"
#include "tests/support/descriptor_limit.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// Long enough to reach a live peer on a busy machine.
constexpr absl::Duration kTimeout = absl::Seconds(2);

sockaddr_in Loopback(int port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  return address;
}

// A port of this machine that refuses connections until it listens.
class Port {
 public:
  Port() : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = Loopback(0);
    socklen_t size = sizeof(address);
    EXPECT_EQ(bind(fd_.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(getsockname(fd_.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
    number_ = ntohs(address.sin_port);
  }
  void Listen() const { EXPECT_EQ(listen(fd_.get(), SOMAXCONN), 0); }
  void Close() { fd_.Reset(); }
  std::string address() const { return absl::StrCat("127.0.0.1:", number_); }

 protected:
  wire::FileDescriptor fd_;
  int number_ = 0;
};

// Port that does not answer, as if the network dropped all packets: unaccepted connections fill its queue.
class SilentPort : public Port {
 public:
  SilentPort() {
    EXPECT_EQ(listen(fd_.get(), 0), 0);
    const sockaddr_in address = Loopback(number_);
    for (int i = 0; i < 4; ++i) {
      waiting_.emplace_back(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
      (void)!connect(waiting_.back().get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address));
    }
  }

 private:
  std::vector<wire::FileDescriptor> waiting_;
};

std::shared_ptr<const LinkListener> Listen() {
  auto listener = LinkListener::Start("127.0.0.1");
  EXPECT_OK(listener.status());
  return *std::move(listener);
}

std::vector<int> NodesOf(const absl::StatusOr<std::vector<UnreachedPeer>>& unreached) {
  EXPECT_OK(unreached.status());
  std::vector<int> nodes;
  for (const UnreachedPeer& one : *unreached) nodes.push_back(one.peer.node);
  return nodes;
}

TEST(LinkListenerTest, RefusesWhatIsNoAddressOfThisHost) {
  EXPECT_THAT(LinkListener::Start("node1").status(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("node1")));
  EXPECT_THAT(LinkListener::Start("192.0.2.1").status(),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("192.0.2.1")));
}

TEST(LinkListenerTest, SaysWhenSomebodyWaitsForADescriptor) {
  const auto listener = Listen();
  EXPECT_TRUE(listener->Drain());
  const wire::FileDescriptor peer(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const std::string& address = listener->address();
  const sockaddr_in to = Loopback(std::stoi(address.substr(address.rfind(':') + 1)));
  ASSERT_EQ(connect(peer.get(), reinterpret_cast<const sockaddr*>(&to), sizeof(to)), 0);
  {
    const DescriptorLimit none(0);
    EXPECT_FALSE(listener->Drain());
  }
  EXPECT_TRUE(listener->Drain());
}

TEST(CheckLinksTest, ReachesAllThatListen) {
  const auto self = Listen(), one = Listen(), two = Listen();
  EXPECT_THAT(NodesOf(CheckLinks(*self, {{1, one->address()}, {2, two->address()}}, absl::Minutes(1), nullptr)),
              IsEmpty());
  EXPECT_THAT(NodesOf(CheckLinks(*self, {}, absl::Minutes(1), nullptr)), IsEmpty());
}

TEST(CheckLinksTest, NamesAllThatDoNotAnswerAndNobodyElse) {
  const auto self = Listen(), last = Listen();
  const SilentPort silent;
  const Port refuses;
  const auto unreached = CheckLinks(
      *self, {{1, silent.address()}, {2, refuses.address()}, {3, "nowhere"}, {4, last->address()}}, kTimeout, nullptr);
  ASSERT_THAT(NodesOf(unreached), ElementsAre(1, 2, 3));
  EXPECT_EQ((*unreached)[0].why, "no answer");
  EXPECT_EQ((*unreached)[1].why, "Connection refused");
  EXPECT_EQ((*unreached)[2].why, "invalid address: nowhere");
}

TEST(CheckLinksTest, TriesAgainUntilAPeerComes) {
  const auto self = Listen();
  const Port port;
  auto checked = std::async(std::launch::async, [&] {
    return CheckLinks(*self, {{1, port.address()}}, absl::Minutes(1), nullptr);
  });
  EXPECT_EQ(checked.wait_for(std::chrono::milliseconds(300)), std::future_status::timeout);
  port.Listen();
  EXPECT_THAT(NodesOf(checked.get()), IsEmpty());
}

TEST(CheckLinksTest, AnAbortEndsIt) {
  const auto self = Listen();
  const SilentPort silent;
  ConnectAbort abort;
  auto checked = std::async(std::launch::async, [&] {
    return CheckLinks(*self, {{1, silent.address()}}, absl::Minutes(10), &abort).status();
  });
  abort.Abort(absl::AbortedError("enough"));
  EXPECT_THAT(checked.get(), StatusIs(absl::StatusCode::kAborted, HasSubstr("enough")));
}

// Node 0 connects a mesh with two others, of which node 2 does not answer.
class BadLinksOfAMeshTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto device = MakeTcpDevice("127.0.0.1");
    ASSERT_OK(device.status());
    for (const int node : {1, 2}) {
      auto peer = TcpMesh::Create(*device, {{0, 0}, {1, 1}, {2, 2}}, node, absl::Minutes(1));
      ASSERT_OK(peer.status());
      peers_.push_back(*std::move(peer));
    }
  }
  void Put(int node, const std::string& link) {
    MeshAddresses book = {{{0, 0}, peers_[node - 1]->AddressFor(0)}};
    book[kLinkPlace] = link;
    ASSERT_OK(rendezvous_.PutParts(node, "meshes", {EncodeAddresses(book), "", ""}));
  }
  absl::Status Connect() {
    return ConnectMeshes({.node = 0,
                          .nodes = 3,
                          .plans = {MeshPlan{{{{0, 0}, 0}, {{1, 1}, 0}, {{2, 2}, 0}}, 0}},
                          .rendezvous = rendezvous_of_zero_.get(),
                          .timeout = kTimeout,
                          .listen_address = "127.0.0.1",
                          .links = &links_})
        .status();
  }

  SharedRendezvous rendezvous_{3};
  const std::unique_ptr<Rendezvous> rendezvous_of_zero_ = rendezvous_.Of(0);
  std::vector<std::unique_ptr<TcpMesh>> peers_;
  Links links_{0, Listen()};
};

TEST_F(BadLinksOfAMeshTest, ThePeerThatDoesNotAnswerIsNamedAlone) {
  const SilentPort silent;
  const auto one = Listen();
  Put(1, one->address());
  Put(2, silent.address());
  EXPECT_THAT(Connect(), StatusIs(absl::StatusCode::kUnavailable,
                                  AllOf(HasSubstr("node 0 (127.0.0.1) cannot reach node 2 (127.0.0.1): no answer"),
                                        Not(HasSubstr("node 1")))));
  ASSERT_EQ(links_.bad().size(), 1u);
  EXPECT_EQ(links_.bad()[0].peer, 2);
  EXPECT_EQ(links_.bad()[0].address, "127.0.0.1");
  EXPECT_EQ(links_.bad()[0].peer_address, "127.0.0.1");
}

TEST_F(BadLinksOfAMeshTest, LinksAreTriedAgainWhereTheMeshHasBeen) {
  auto one = Port(), two = Port();
  one.Listen();
  two.Listen();
  Put(1, one.address());
  Put(2, two.address());
  Connect().IgnoreError();
  EXPECT_OK(links_.Check(kTimeout, nullptr));
  two.Close();
  EXPECT_THAT(links_.Check(kTimeout, nullptr), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("node 2")));
  ASSERT_EQ(links_.bad().size(), 1u);
  EXPECT_EQ(links_.bad()[0].peer, 2);
}

// The peer is reachable: its daemon answers, but is late.
TEST_F(BadLinksOfAMeshTest, APeerThatIsReachedAndDoesNotConnectIsBlamedForNoLink) {
  const auto one = Listen(), two = Listen();
  Put(1, one->address());
  Put(2, two->address());
  EXPECT_THAT(Connect(), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(links_.bad(), IsEmpty());
}

}  // namespace
}  // namespace paramshard::server
