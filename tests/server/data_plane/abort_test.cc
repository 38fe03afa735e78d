// Tests that an abort, and the deadline by any wall clock, end calls of engines that wait for another daemon. On cpu
// devices.
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/base/thread.h"
#include "server/data_plane/memcpy_collectives.h"
#include "server/data_plane/mesh_addresses.h"
#include "server/data_plane/mesh_collectives.h"
#include "server/data_plane/mesh_connector.h"
#include "server/data_plane/replicated_collectives.h"
#include "server/data_plane/tcp_mesh.h"
#include "tests/server/data_plane/engine_world.h"
#include "tests/server/data_plane/held_mesh.h"
#include "tests/support/status_matchers.h"
#include "tests/support/wall_clock.h"

namespace paramshard::server {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr int kMixed = 0;
constexpr int kPlain = 3;

void Ignore(int, int) {}

// --- Abort ---

// Rank 0's engine, which waits in one exchange of one mesh.
class HeldEngine {
 public:
  enum Queue { kGathers, kReductions };

  HeldEngine(bool replicas, Queue queue, int held_exchange, int nodes)
      : world_({replicas ? "Replicas" : "Across", std::vector<int>(nodes, 1), replicas ? 1 : nodes, "cpu"}) {
    EXPECT_OK(world_.Allocate());
    std::vector<MeshMember> members;
    for (int node = 0; node < nodes; ++node) members.push_back({node, node});
    const auto mesh = [&](Queue of) {
      return std::make_unique<HeldMesh>(members, of == queue ? held_exchange : 0, &entered_);
    };
    auto engine = replicas ? MakeReplicated(mesh(kReductions))
                           : MeshCollectives::Create({&world_.model(), &world_.layout(), world_.memory(0), kTimeout},
                                                     mesh(kGathers), mesh(kReductions));
    EXPECT_OK(engine.status());
    world_.SetEngine(0, *std::move(engine));
  }

  EngineWorld& world() { return world_; }

  // Returns the status of `call` when the engine is aborted in the held exchange.
  absl::Status AbortDuring(const std::function<absl::Status()>& call) {
    auto waiting = std::async(std::launch::async, call);
    entered_.WaitForNotification();
    world_.engine(0).Abort(kWhy);
    return waiting.get();
  }

  inline static const absl::Status kWhy = absl::AbortedError("the epoch ended");

 private:
  static constexpr absl::Duration kTimeout = absl::Minutes(1);

  absl::StatusOr<std::unique_ptr<Collectives>> MakeReplicated(std::unique_ptr<Mesh> replicas) {
    const RankMemory memory = world_.memory(0);
    auto local = MemcpyCollectives::Create({&world_.model(), &world_.layout(), {memory}}, 0, /*sums_at_commit=*/false);
    if (!local.ok()) return local.status();
    return ReplicatedCollectives::Create({&world_.model(), &world_.layout(), 0, memory.device, kTimeout},
                                         *std::move(local), std::move(replicas));
  }

  absl::Notification entered_;  // before the engine, which uses it
  EngineWorld world_;
};

// Point at which a call waits. The first exchange of a gather or a reduction compares commands, the second one moves
// bytes, and a third one the sums of more than two replicas.
struct Wait {
  const char* name;
  bool replicas;
  HeldEngine::Queue queue;
  int held_exchange;
  absl::Status (*call)(EngineWorld& world);
  int nodes = 2;
};

absl::Status Gather(EngineWorld& world) {
  return world.engine(0).Gather({1, kMixed, Phase::kForward, world.model().gather_slots - 1}, Ignore);
}

absl::Status Reduce(EngineWorld& world) {
  Accumulators accumulators = world.MakeAccumulators(kPlain, 0, 3);
  return world.Reduce(1, kPlain, 0, 0, true, {}, accumulators);
}

absl::Status Maximum(EngineWorld& world) {
  std::vector<float> values = {1};
  return world.engine(0).MaxOverDaemons(1, absl::MakeSpan(values));
}

class AbortTest : public testing::TestWithParam<Wait> {};

TEST_P(AbortTest, EndsACallThatWaits) {
  HeldEngine held(GetParam().replicas, GetParam().queue, GetParam().held_exchange, GetParam().nodes);
  EXPECT_EQ(held.AbortDuring([&] { return GetParam().call(held.world()); }), HeldEngine::kWhy);
}

INSTANTIATE_TEST_SUITE_P(EnginesBetweenDaemons, AbortTest,
                         testing::Values(Wait{"AcrossGatherAgrees", false, HeldEngine::kGathers, 1, Gather},
                                         Wait{"AcrossGatherMoves", false, HeldEngine::kGathers, 2, Gather},
                                         Wait{"AcrossReduceAgrees", false, HeldEngine::kReductions, 1, Reduce},
                                         Wait{"AcrossReduceMoves", false, HeldEngine::kReductions, 2, Reduce},
                                         Wait{"AcrossMaximum", false, HeldEngine::kReductions, 1, Maximum},
                                         Wait{"ReplicasReduceAgrees", true, HeldEngine::kReductions, 1, Reduce},
                                         Wait{"ReplicasReduceMoves", true, HeldEngine::kReductions, 2, Reduce},
                                         Wait{"ManyReplicasReduceAgrees", true, HeldEngine::kReductions, 1, Reduce, 3},
                                         Wait{"ManyReplicasReduceScatters", true, HeldEngine::kReductions, 2, Reduce,
                                              3},
                                         Wait{"ManyReplicasReduceGathers", true, HeldEngine::kReductions, 3, Reduce, 3},
                                         Wait{"ReplicasMaximum", true, HeldEngine::kReductions, 1, Maximum}),
                         [](const auto& info) { return std::string(info.param.name); });

// Meshes of members that all connect at once.
class TcpMeshTest : public testing::Test {
 protected:
  void Listen(int count) {
    std::vector<MeshMember> members;
    for (int member = 0; member < count; ++member) members.push_back({member, member});
    const auto device = MakeTcpDevice("127.0.0.1");
    ASSERT_OK(device.status());
    for (int self = 0; self < count; ++self) {
      auto mesh = TcpMesh::Create(*device, members, self, absl::Minutes(1));
      ASSERT_OK(mesh.status());
      meshes_.push_back(*std::move(mesh));
    }
  }
  void Connect() {
    std::vector<std::future<absl::Status>> connecting;
    for (const auto& mesh : meshes_) {
      for (int peer = 0; peer < mesh->size(); ++peer) {
        if (peer == mesh->self()) continue;
        connecting.push_back(std::async(std::launch::async, [this, &mesh, peer] {
          return mesh->Connect(peer, meshes_[peer]->AddressFor(mesh->self()));
        }));
      }
    }
    for (auto& connected : connecting) ASSERT_OK(connected.get());
  }

  std::vector<std::unique_ptr<TcpMesh>> meshes_;
};

// One of two members makes the connection, perhaps before the other one asks for the address.
TEST_F(TcpMeshTest, AddressesStayWhatTheyWereBeforeTheConnection) {
  ASSERT_NO_FATAL_FAILURE(Listen(2));
  const std::string first = meshes_[0]->AddressFor(1), second = meshes_[1]->AddressFor(0);
  ASSERT_NO_FATAL_FAILURE(Connect());
  EXPECT_EQ(meshes_[0]->AddressFor(1), first);
  EXPECT_EQ(meshes_[1]->AddressFor(0), second);
}

// The first of three waits for the last, after it has heard of the second.
TEST_F(TcpMeshTest, AbortEndsAnExchangeThatWaits) {
  ASSERT_NO_FATAL_FAILURE(Listen(3));
  ASSERT_NO_FATAL_FAILURE(Connect());
  const absl::Status why = absl::AbortedError("the epoch ended");
  int sent = 7, of_second = 0, of_last = 0;
  absl::Notification heard_of_second;
  auto waiting = std::async(std::launch::async, [&] {
    const PeerTransfer transfers[] = {{1, {}, {{&of_second, sizeof(int)}}}, {2, {}, {{&of_last, sizeof(int)}}}};
    return meshes_[0]->Exchange(transfers, SteadyDeadline(absl::Minutes(1)), [&](int peer) {
      if (peer == 1) heard_of_second.Notify();
    });
  });
  const PeerTransfer to_first[] = {{0, {{&sent, sizeof(int)}}, {}}};
  EXPECT_OK(meshes_[1]->Exchange(to_first, SteadyDeadline(absl::Minutes(1)), [](int) {}));
  heard_of_second.WaitForNotification();
  meshes_[0]->Abort(why);
  EXPECT_EQ(waiting.get(), why);
  EXPECT_EQ(of_second, 7);
}

// --- Connecting ---

// Node 1 has published its address, and does not connect.
class SilentPeerTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto device = MakeTcpDevice("127.0.0.1");
    ASSERT_OK(device.status());
    auto peer = TcpMesh::Create(*device, {{0, 0}, {1, 1}}, 1, absl::Minutes(1));
    ASSERT_OK(peer.status());
    peer_ = *std::move(peer);
    ASSERT_OK(rendezvous_.PutParts(1, "meshes", {EncodeAddresses({{{0, 0}, peer_->AddressFor(0)}}), ""}));
  }

  MeshConnection Connection(ConnectAbort* abort = nullptr) {
    return {.node = 0,
            .nodes = 2,
            .plans = {MeshPlan{{{{0, 0}, 0}, {{1, 1}, 0}}, 0}},
            .rendezvous = rendezvous_of_zero_.get(),
            .timeout = absl::Minutes(1),
            .listen_address = "127.0.0.1",
            .abort = abort};
  }

  SharedRendezvous rendezvous_{2};
  const std::unique_ptr<Rendezvous> rendezvous_of_zero_ = rendezvous_.Of(0);
  std::unique_ptr<TcpMesh> peer_;
};

TEST_F(SilentPeerTest, AnAbortEndsAWaitForItsConnection) {
  ConnectAbort abort;
  const MeshConnection connection = Connection(&abort);
  auto connecting = std::async(std::launch::async, [&] { return ConnectMeshes(connection).status(); });
  // Both have met at the rendezvous.
  EXPECT_OK(rendezvous_.AwaitParts(0, "meshes", absl::Minutes(1)));
  abort.Abort(absl::AbortedError("enough"));
  EXPECT_THAT(connecting.get(), StatusIs(absl::StatusCode::kAborted, HasSubstr("enough")));
}

TEST_F(SilentPeerTest, AThreadThatDoesNotStartEndsTheConnecting) {
  const ThreadShortage shortage(0);
  EXPECT_THAT(ConnectMeshes(Connection()).status(),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("a connection between daemons")));
}

// --- The wall clock ---

// One shard group over all daemons, of which rank 2 alone is node 1's.
class WallClockTest : public testing::Test {
 protected:
  void Connect(absl::Duration timeout) {
    world_ = std::make_unique<EngineWorld>(WorldShape{"Across", {2, 1}, 3, "cpu"}, timeout);
    ASSERT_OK(world_->Connect());
  }

  // A gather of a rank, which calls `when_agreed` between the comparison of the commands and the bytes.
  std::future<absl::Status> Gather(int rank, std::function<void()> when_agreed) {
    return std::async(std::launch::async, [this, rank, when_agreed = std::move(when_agreed)] {
      const GatherCall call{1, kMixed, Phase::kForward, world_->model().gather_slots - 1};
      return world_->Gather(rank, call, [&](int, int source) {
        if (source == rank) when_agreed();
      });
    });
  }

  test::WallClock clock_;
  std::unique_ptr<EngineWorld> world_;
};

TEST_F(WallClockTest, SetForwardItBlamesNobody) {
  Connect(absl::Minutes(10));
  absl::Notification stepped;
  auto first = Gather(0, [&] {
    clock_.Step(absl::Hours(1));
    stepped.Notify();
  });
  auto second = Gather(1, [&] { stepped.WaitForNotification(); });
  // This one breaks off: its connections close, long before the deadline.
  auto third = Gather(2, [&] {
    stepped.WaitForNotification();
    world_->engine(2).Abort(absl::AbortedError("broken off"));
  });
  EXPECT_FALSE(third.get().ok());
  EXPECT_THAT(first.get(), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("lost")));
  EXPECT_THAT(second.get(), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("lost")));
}

TEST_F(WallClockTest, SetBackItHidesNoHang) {
  Connect(kShortTimeout);
  absl::Notification others_returned;
  auto first = Gather(0, [&] { clock_.Step(-absl::Hours(1)); });
  auto second = Gather(1, [] {});
  auto third = Gather(2, [&] { others_returned.WaitForNotification(); });
  EXPECT_THAT(first.get(), StatusIs(AnyOf(absl::StatusCode::kDeadlineExceeded, absl::StatusCode::kUnavailable)));
  EXPECT_THAT(second.get(), StatusIs(AnyOf(absl::StatusCode::kDeadlineExceeded, absl::StatusCode::kUnavailable)));
  others_returned.Notify();
  EXPECT_FALSE(third.get().ok());
}

TEST_F(WallClockTest, SetBackItHidesNoNodeThatDoesNotCome) {
  EngineWorld world({"Missing", {1, 1}, 2, "cpu"}, absl::Milliseconds(300));
  auto connecting = std::async(std::launch::async, [&] { return world.ConnectNode(0).status(); });
  EXPECT_OK(world.rendezvous().AwaitParts(0, "meshes", absl::Minutes(1)));
  clock_.Step(-absl::Hours(1));
  EXPECT_THAT(connecting.get(),
              StatusIs(absl::StatusCode::kUnavailable, AllOf(HasSubstr("timed out after 300ms"), HasSubstr("node 1"))));
}

TEST(WallClockItselfTest, StepsAbslNow) {
  const absl::Time before = absl::Now();
  {
    test::WallClock clock;
    clock.Step(absl::Hours(1));
    EXPECT_GT(absl::Now(), before + absl::Minutes(59));
    clock.Step(-absl::Hours(3));
    EXPECT_LT(absl::Now(), before - absl::Minutes(100));
  }
  EXPECT_LT(absl::Now(), before + absl::Minutes(59));
}

}  // namespace
}  // namespace paramshard::server
