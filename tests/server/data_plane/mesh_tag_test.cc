#include "server/data_plane/mesh_tag.h"

#include <future>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/data_plane/mesh_connector.h"
#include "server/data_plane/tcp_mesh.h"
#include "tests/server/data_plane/engine_world.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr absl::Duration kTimeout = absl::Minutes(1);

TEST(MeshTagTest, IsThatOfOneMeshOfOneEpoch) {
  const MeshTag tag = MakeMeshTag("m/h/1", "0:0:0,1:1:0");
  EXPECT_EQ(tag, MakeMeshTag("m/h/1", "0:0:0,1:1:0"));
  EXPECT_NE(tag, MakeMeshTag("m/h/2", "0:0:0,1:1:0"));
  EXPECT_NE(tag, MakeMeshTag("m/h/1", "0:0:1,1:1:1"));
  EXPECT_NE(MakeMeshTag("m/1", "2"), MakeMeshTag("m", "1/2"));
}

// Two members that are connected; each calls itself the member that a test says.
class MeshTagExchangeTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(const auto device, MakeTcpDevice("127.0.0.1"));
    for (int self = 0; self < 2; ++self) {
      ASSERT_OK_AND_ASSIGN(meshes_[self],
                           TcpMesh::Create(device, {{.node = 0, .rank = 0}, {.node = 1, .rank = 1}}, self, kTimeout));
    }
    auto other = std::async(std::launch::async, [&] { return meshes_[1]->Connect(0, meshes_[0]->AddressFor(1)); });
    ASSERT_OK(meshes_[0]->Connect(1, meshes_[1]->AddressFor(0)));
    ASSERT_OK(other.get());
  }
  std::vector<absl::Status> Exchange(MeshTag tag_of_0, MeshTag tag_of_1) {
    auto other =
        std::async(std::launch::async, [&] { return ExchangeTags(*meshes_[1], tag_of_1, SteadyDeadline(kTimeout)); });
    const absl::Status mine = ExchangeTags(*meshes_[0], tag_of_0, SteadyDeadline(kTimeout));
    return {mine, other.get()};
  }

  std::unique_ptr<TcpMesh> meshes_[2];
};

TEST_F(MeshTagExchangeTest, MembersOfOneEpochFindEachOther) {
  const MeshTag tag = MakeMeshTag("m/h/1", "gathers");
  for (const absl::Status& status : Exchange(tag, tag)) EXPECT_OK(status);
}

TEST_F(MeshTagExchangeTest, MembersOfTwoEpochsNameEachOther) {
  const std::vector<absl::Status> found = Exchange(MakeMeshTag("m/h/1", "gathers"), MakeMeshTag("m/h/2", "gathers"));
  EXPECT_THAT(found[0], StatusIs(absl::StatusCode::kUnavailable,
                                 AllOf(HasSubstr("rank 1 (node 1): want its connection of this epoch"),
                                       HasSubstr("from member 1 to member 0"))));
  EXPECT_THAT(found[1], StatusIs(absl::StatusCode::kUnavailable, HasSubstr("rank 0 (node 0)")));
}

// Two daemons with one rendezvous connect, with tags of one epoch or of two.
TEST(MeshConnectorTagTest, MeshesOfTwoEpochsDoNotConnect) {
  for (const bool of_one : {true, false}) {
    SharedRendezvous all(2);
    const auto connect = [&](int node) {
      const auto rendezvous = all.Of(node);
      MeshPlan plan{.members = {{.member = {.node = 0, .rank = 0}}, {.member = {.node = 1, .rank = 1}}}, .self = node};
      return ConnectMeshes({.node = node,
                            .nodes = 2,
                            .plans = {plan},
                            .rendezvous = rendezvous.get(),
                            .timeout = kTimeout,
                            .listen_address = "127.0.0.1",
                            .epoch = of_one || node == 0 ? "m/h/1" : "m/h/2"})
          .status();
    };
    auto other = std::async(std::launch::async, connect, 1);
    const absl::Status mine = connect(0);
    const absl::Status theirs = other.get();
    EXPECT_EQ(mine.ok(), of_one) << mine;
    EXPECT_EQ(theirs.ok(), of_one) << theirs;
    // The first one to find it closes the connection.
    if (!of_one) {
      EXPECT_THAT(absl::StrCat(mine.message(), theirs.message()), HasSubstr("want its connection of this epoch"));
    }
  }
}

}  // namespace
}  // namespace paramshard::server
