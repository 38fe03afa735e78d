// Restores of a world of several daemons: node 0 leads, and the state is the checkpoint's at every daemon, or none that
// anybody would train on.
#include "server/checkpoints/restores.h"
#include "server/observe/log.h"

#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "common/checkpoint/reader.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/base/status_macros.h"
#include "server/checkpoints/checkpoint_choice.h"
#include "server/checkpoints/model_creation.h"
#include "server/checkpoints/restore_task.h"
#include "server/checkpoints/saver.h"
#include "tests/common/checkpoint/saved_model.h"
#include "tests/server/base/manual_clock.h"
#include "tests/server/checkpoints/restored_world.h"
#include "tests/server/models/daemons.h"
#include "tests/server/state/test_spec.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temporary_directory.h"

namespace paramshard::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// --- What is restored ---

class WorldRestoresTest : public WorldRestoresTestBase, public testing::TestWithParam<WorldCase> {
 protected:
  std::unique_ptr<RestoredWorld> MakeWorld() const { return MakeWorld(GetParam()); }
  std::unique_ptr<RestoredWorld> MakeWorld(const WorldCase& world) const {
    return std::make_unique<RestoredWorld>(root(), world, SpecOf(world.shard_size));
  }
};

TEST_P(WorldRestoresTest, GoesOnAsIfNothingHadBeen) {
  auto world = MakeWorld();
  SavedBy(*world);
  world->Step(10);
  const std::vector<std::string> expected = world->daemons().Hashes();
  world.reset();

  world = MakeWorld();
  ASSERT_OK_AND_ASSIGN(const History history, world->Restore());
  for (int node = 0; node < world->daemons().nodes(); ++node) {
    const History other = world->model(node).state().history();
    EXPECT_EQ(other.id, history.id);
    EXPECT_EQ(other.lineage, history.lineage);
    EXPECT_EQ(other.parent, history.parent);
    EXPECT_EQ(world->model(node).state().snapshot().numbers.commit_number, 3);
  }
  world->Step(10);
  EXPECT_EQ(world->daemons().Hashes(), expected);
}

TEST_P(WorldRestoresTest, TakesOverWhatOneDaemonHasSaved) {
  auto one = MakeWorld({.name = "", .device_counts = {3}, .shard_size = 3});
  const checkpoint::ContentHashes saved = ContentOf(SavedBy(*one));
  one.reset();
  auto world = MakeWorld();
  ASSERT_OK(world->Restore());
  // A step, for another history's checkpoint of the same one lies there.
  EXPECT_EQ(ContentOf(world->Save()), saved);
}

TEST_P(WorldRestoresTest, NodeZeroShowsHowFarAllAre) {
  auto world = MakeWorld();
  SavedBy(*world);
  // Before anybody has said what it has to do node 0 knows of its own part alone.
  int64_t all_bytes = 0;
  absl::Mutex mu;
  const auto add = [&](int node) {
    const auto progress = world->model(node).trainers().activity().restore;
    ASSERT_TRUE(progress.has_value());
    absl::MutexLock lock(&mu);
    all_bytes += progress->all_bytes;
  };
  for (int node = 1; node < world->daemons().nodes(); ++node) {
    world->At(node, [&, node](Restores::Point point) {
      if (point == Restores::Point::kWritten) add(node);
    });
  }
  world->At(0, [&](Restores::Point point) {
    if (point == Restores::Point::kGo) return add(0);
    if (point != Restores::Point::kEnd) return;
    const auto progress = world->model(0).trainers().activity().restore;
    ASSERT_TRUE(progress.has_value());
    absl::MutexLock lock(&mu);
    EXPECT_EQ(progress->all_bytes, all_bytes);
    EXPECT_EQ(progress->done_bytes, all_bytes);
  });
  ASSERT_OK(world->Restore());
}

TEST_P(WorldRestoresTest, OneDaemonTakesOverWhatTheWorldHasSaved) {
  auto world = MakeWorld();
  const checkpoint::ContentHashes saved = ContentOf(SavedBy(*world));
  world.reset();
  auto one = MakeWorld({.name = "", .device_counts = {2}, .shard_size = 2});
  ASSERT_OK(one->Restore());
  EXPECT_EQ(ContentOf(one->Save()), saved);
}

INSTANTIATE_TEST_SUITE_P(Worlds, WorldRestoresTest,
                         testing::Values(WorldCase{"TwoShared", {1, 1}, 2}, WorldCase{"TwoReplicas", {1, 1}, 1},
                                         WorldCase{"ThreeShared", {1, 2, 1}, 4},
                                         WorldCase{"TwoReplicasOfTwo", {2, 2}, 2}),
                         [](const auto& info) { return info.param.name; });

// --- What goes wrong ---

using Point = Restores::Point;

// Two daemons that have trained further than their checkpoint.
class WorldRestoresFaultsTest : public WorldRestoresTestBase, public testing::Test {
 protected:
  explicit WorldRestoresFaultsTest(absl::Duration timeout = kTimeout) : world_(root(), Two(), SpecOf(2), timeout) {}
  void SetUp() override { path_ = SavedBy(world_); }

  const std::string& path() const { return path_; }
  // Nobody's state has changed, and all may go on.
  void ExpectUnchanged() {
    for (int node = 0; node < 2; ++node) {
      EXPECT_OK(world_.model(node).state().usable());
      EXPECT_FALSE(world_.model(node).state().history().parent.has_value()) << "node " << node;
      EXPECT_OK(world_.model(node).state().Look("look"));
    }
    EXPECT_EQ(world_.daemons().Hashes(), before_);
  }
  // Says that there is nothing to train on.
  void ExpectUnusable(int node) {
    AwaitChanged(node);
    EXPECT_THAT(world_.model(node).state().usable(),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr("a restore broke off in the middle")));
  }
  void ExpectUnusable() {
    for (int node = 0; node < 2; ++node) ExpectUnusable(node);
  }
  // Until that node is through with a restore, in whatever way.
  void AwaitChanged(int node) {
    const SteadyTime end = SteadyDeadline(kLong);
    while (absl::IsUnavailable(world_.model(node).state().Look("look").status()) && SteadyNow() < end)
      std::this_thread::yield();
  }
  // The first byte of the data of a rank.
  void Damage(int rank) const {
    const std::string file = absl::StrCat(path_, "/rank-0000", rank, "-of-00002.safetensors");
    std::string bytes = checkpoint::ReadText(file);
    const auto header = static_cast<uint8_t>(bytes[0]) + 256 * static_cast<uint8_t>(bytes[1]);
    bytes[8 + header] ^= 1;
    checkpoint::WriteText(file, bytes);
  }
  void Remember() { before_ = world_.daemons().Hashes(); }

  RestoredWorld world_;

 private:
  std::string path_;
  std::vector<std::string> before_;
};

TEST_F(WorldRestoresFaultsTest, ACallToAnotherNodeIsRefusedAndNamesNodeZero) {
  EXPECT_THAT(world_.restores(1).CheckLeads("m"),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("only node 0 starts restores")));
  EXPECT_OK(world_.restores(0).CheckLeads("m"));
}

TEST_F(WorldRestoresFaultsTest, ATrainerOfAnotherDaemonKeepsTheStateOfAll) {
  Remember();
  FakeTrainer trainer(&world_.model(1), 1);
  ASSERT_OK(trainer.Attach());
  EXPECT_THAT(world_.Restore().status(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("node 1: "), HasSubstr("rank 1 is attached (process "))));
  trainer.Leave();
  ExpectUnchanged();
  EXPECT_OK(world_.Restore());
}

TEST_F(WorldRestoresFaultsTest, OneRestoreMayFollowAnotherAtOnce) {
  for (int i = 0; i < 10; ++i) ASSERT_OK(world_.Restore());
}

TEST_F(WorldRestoresFaultsTest, AnOrderWaitsForTheEndOfTheOneBefore) {
  absl::Notification reached, over;
  world_.At(1, [&](Point point) {
    if (point != Point::kReady || reached.HasBeenNotified()) return;
    reached.Notify();
    over.WaitForNotification();
  });
  // Node 0 gives the first one up.
  Cluster& zero = *world_.daemons().store(0).world().cluster;
  ASSERT_OK_AND_ASSIGN(const CheckpointChoice choice, ChooseCheckpoint(root(), "m", {}));
  const RestoreOrder order{.id = 1,
                           .folder = choice.id.folder,
                           .save_id = choice.id.save_id,
                           .spec_fingerprint = world_.model(0).fingerprint(),
                           .timeout = kTimeout};
  ASSERT_OK(zero.Send(RestoreMessage{.model = "m", .what = order}));
  reached.WaitForNotification();
  ASSERT_OK(
      zero.Send(RestoreMessage{.model = "m", .what = RestoreEnd{.id = 1, .status = absl::AbortedError("given up")}}));
  std::thread next([&] { EXPECT_OK(world_.Restore()); });
  over.Notify();
  next.join();
}

TEST_F(WorldRestoresFaultsTest, OneOfAModelThatWasDeletedLeavesTheOneOfItsSuccessorAlone) {
  const std::shared_ptr<Model> deleted = *world_.daemons().store(0).Find("m");
  ASSERT_OK_AND_ASSIGN(std::unique_ptr<RestoreTask> stale, world_.restores(0).Prepare(deleted, {}));
  ASSERT_OK(world_.daemons().store(0).Delete("m", ""));
  ASSERT_OK_AND_ASSIGN(const ModelStore::Created created, world_.daemons().store(0).CreateOrJoin(Parse(SpecOf(2))));
  absl::Status refused;
  world_.At(0, [&](Point point) {
    if (point != Point::kGo) return;
    refused = world_.restores(0).Run(std::move(stale)).status();
    // The one that goes on waits no longer than this where it hears nothing any more.
    if (!absl::IsUnavailable(refused)) world_.clock(0).Advance(kTimeout);
  });
  EXPECT_OK(world_.Restore());
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kUnavailable, HasSubstr("another restore of this name")));
  EXPECT_OK(created.model->state().usable());
}

TEST_F(WorldRestoresFaultsTest, ADaemonWithoutTheModelIsNamed) {
  ASSERT_OK(world_.daemons().store(1).Delete("m", ""));
  EXPECT_THAT(world_.Restore().status(), StatusIs(absl::StatusCode::kNotFound, HasSubstr("node 1: ")));
  EXPECT_OK(world_.model(0).state().usable());
  EXPECT_FALSE(world_.model(0).state().history().parent.has_value());
}

TEST_F(WorldRestoresFaultsTest, ADaemonWithAnotherSpecIsNamed) {
  ASSERT_OK(world_.daemons().store(1).Delete("m", ""));
  ASSERT_OK(world_.daemons().store(1).CreateOrJoin(Parse(SpecOf(2, kRows + 2))));
  EXPECT_THAT(world_.Restore().status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("node 1: restore m: the spec differs")));
  EXPECT_FALSE(world_.model(0).state().history().parent.has_value());
}

TEST_F(WorldRestoresFaultsTest, ADaemonThatSeesAnotherSaveRefuses) {
  const auto model = *world_.daemons().store(1).Find("m");
  ASSERT_OK_AND_ASSIGN(const CheckpointChoice choice, ChooseCheckpoint(root(), "m", {}));
  RestoreOrder order{
      .folder = choice.id.folder, .save_id = choice.id.save_id, .spec_fingerprint = model->fingerprint()};
  EXPECT_OK(RestoreTask::PrepareOrdered(model, order).status());
  order.save_id += 1;
  const auto is_refused = StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("all daemons must see the same"));
  EXPECT_THAT(RestoreTask::PrepareOrdered(model, order).status(), is_refused);
  order.folder = choice.path;
  EXPECT_THAT(RestoreTask::PrepareOrdered(model, order).status(), is_refused);
  for (const char* const text : {"latest", "3", "", "../m/step-000000000003-00000000"}) {
    order.folder = text;
    EXPECT_THAT(RestoreTask::PrepareOrdered(model, order).status(), StatusIs(absl::StatusCode::kInvalidArgument))
        << text;
  }
}

TEST_F(WorldRestoresFaultsTest, AFolderAnywhereIsNamedByItsPath) {
  const test::TemporaryDirectory copies;
  const std::string copy = copies.path() + "/copy";
  std::filesystem::copy(path(), copy);
  ASSERT_OK(world_.Restore(copy));
  EXPECT_TRUE(world_.model(1).state().history().parent.has_value());
}

TEST_F(WorldRestoresFaultsTest, ADaemonThatIsLostBeforeAllAreReadyLeavesTheStateOfAll) {
  Remember();
  world_.At(1, [&](Point point) {
    if (point == Point::kReady) world_.daemons().Stop(1);
  });
  EXPECT_THAT(world_.Restore().status(),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("node 1: its daemon was lost")));
  AwaitChanged(1);
  ExpectUnchanged();
  EXPECT_THAT(world_.Restore().status(), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("is not here")));
  ExpectUnchanged();
}

TEST_F(WorldRestoresFaultsTest, ANodeZeroThatIsLostBeforeTheGoLeavesTheStateOfAll) {
  Remember();
  world_.At(0, [&](Point point) {
    if (point == Point::kGo) world_.daemons().Stop(0);
  });
  EXPECT_THAT(world_.Restore().status(), StatusIs(absl::StatusCode::kUnavailable));
  AwaitChanged(1);
  ExpectUnchanged();
}

class HurriedWorldRestoresTest : public WorldRestoresFaultsTest {
 protected:
  HurriedWorldRestoresTest() : WorldRestoresFaultsTest(absl::ZeroDuration()) {}
};

TEST_F(HurriedWorldRestoresTest, ADaemonThatIsNotReadyInTimeLeavesTheStateOfAll) {
  Remember();
  // The order may come to node 1 when all else is over.
  const auto over = std::make_shared<absl::Notification>();
  world_.At(1, [over](Point point) {
    if (point == Point::kReady) over->WaitForNotification();
  });
  const absl::Status late = world_.Restore().status();
  over->Notify();
  EXPECT_THAT(late, StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("node 1 is not ready to begin")));
  AwaitChanged(1);
  ExpectUnchanged();
}

TEST_F(WorldRestoresFaultsTest, ADaemonThatIsLostAfterTheGoLeavesNoStateToTrainOn) {
  world_.At(1, [&](Point point) {
    if (point == Point::kWritten) world_.daemons().Stop(1);
  });
  EXPECT_THAT(world_.Restore().status(),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("node 1: its daemon was lost")));
  ExpectUnusable();
}

TEST_F(WorldRestoresFaultsTest, ANodeZeroThatIsLostBeforeItsVerdictLeavesNoStateToTrainOn) {
  world_.At(0, [&](Point point) {
    if (point == Point::kEnd) world_.daemons().Stop(0);
  });
  EXPECT_THAT(world_.Restore().status(), StatusIs(absl::StatusCode::kDataLoss));
  ExpectUnusable();
}

TEST_F(WorldRestoresFaultsTest, ADaemonThatHasNotWrittenInTimeLeavesNoStateToTrainOn) {
  absl::Notification written, over;
  world_.At(0, [&](Point point) {
    if (point == Point::kWritten) written.Notify();
  });
  world_.At(1, [&](Point point) {
    if (point != Point::kWritten) return;
    // Its own rows are not what is late.
    written.WaitForNotification();
    world_.clock(0).Advance(kTimeout);
    // Some word of it makes node 0 look at its clock.
    const RestoreSums none{.id = kDrawn};
    EXPECT_OK(world_.daemons().store(1).world().cluster->Send(RestoreMessage{.model = "m", .what = none}));
    over.WaitForNotification();
  });
  const absl::Status late = world_.Restore().status();
  over.Notify();
  EXPECT_THAT(late, StatusIs(absl::StatusCode::kDataLoss, HasSubstr("node 1 is not done with its rows")));
  ExpectUnusable();
}

TEST_F(WorldRestoresFaultsTest, ARestoreThatIsGivenUpIsNotWrittenToItsEnd) {
  std::atomic<bool> written = false;
  world_.At(1, [&](Point point) {
    if (point == Point::kWritten) written = true;
    if (point != Point::kRows) return;
    const RestoreEnd end{.id = kDrawn, .status = absl::AbortedError("no more")};
    world_.restores(1).OnRestoreMessage({.model = "m", .what = end});
  });
  EXPECT_THAT(world_.Restore().status(),
              StatusIs(absl::StatusCode::kDataLoss, AllOf(HasSubstr("node 1: "), HasSubstr("node 0: no more"))));
  EXPECT_FALSE(written);
  ExpectUnusable();
}

// Planes are what is left when all rows are compared.
TEST_F(WorldRestoresFaultsTest, PlanesAreNotEncodedBehindTheDeadline) {
  world_.daemons().cluster(1).LoseRestoreMessages([&](const RestoreMessage& message) {
    const auto* const progress = std::get_if<RestorePartProgress>(&message.what);
    if (progress != nullptr && progress->done_bytes == progress->all_bytes) world_.clock(1).Advance(kTimeout);
    return false;
  });
  std::atomic<bool> written = false;
  world_.At(1, [&](Point point) {
    if (point == Point::kWritten) written = true;
  });
  EXPECT_THAT(world_.Restore().status(), StatusIs(absl::StatusCode::kDataLoss,
                                                  AllOf(HasSubstr("node 1: "), HasSubstr("has not written all rows"))));
  world_.daemons().cluster(1).LoseRestoreMessages(nullptr);
  EXPECT_FALSE(written);
  ExpectUnusable();
}

TEST_F(WorldRestoresFaultsTest, ADeadlineThatPassesWhenTheEndIsToldLeavesAWholeStateEverywhere) {
  world_.At(0, [&](Point point) {
    if (point == Point::kEnd) world_.clock(0).Advance(kTimeout);
  });
  EXPECT_OK(world_.Restore());
  for (int node = 0; node < 2; ++node) EXPECT_OK(world_.model(node).state().usable());
}

// In one shard group only the daemon of that rank reads them.
TEST_F(WorldRestoresFaultsTest, RowsThatAreDamagedAtAnotherDaemonLeaveNoStateToTrainOn) {
  Damage(1);
  EXPECT_THAT(world_.Restore().status(),
              StatusIs(absl::StatusCode::kDataLoss, AllOf(HasSubstr("node 1: "), HasSubstr("rank-00001-of-00002"))));
  ExpectUnusable();
  // The same again, without the damage.
  Damage(1);
  ASSERT_OK(world_.Restore());
  for (int node = 0; node < 2; ++node) EXPECT_OK(world_.model(node).state().usable());
  world_.Step(1);
}

TEST_F(WorldRestoresFaultsTest, RowsThatAreDamagedAtNodeZeroLeaveNoStateToTrainOn) {
  Damage(0);
  EXPECT_THAT(world_.Restore().status(), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("rank-00000-of-00002")));
  ExpectUnusable(0);
  // The other one may have heard of the go, or only that it is over.
  AwaitChanged(1);
  if (world_.model(1).state().usable().ok()) {
    EXPECT_FALSE(world_.model(1).state().history().parent.has_value());
  } else {
    ExpectUnusable(1);
  }
}

TEST_F(WorldRestoresFaultsTest, ADrainOfAnotherDaemonGivesTheRestoreUp) {
  Remember();
  world_.At(1, [&](Point point) {
    if (point == Point::kReady) world_.restores(1).BeginDrain();
  });
  EXPECT_THAT(world_.Restore().status(),
              StatusIs(absl::StatusCode::kCancelled, HasSubstr("node 1: the daemon drains")));
  AwaitChanged(1);
  ExpectUnchanged();
  EXPECT_THAT(world_.Restore().status(), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("node 1: restore: ")));
  ExpectUnchanged();
}

// --- Creations that wait for node 0 ---

class RestoreRequestsTest : public WorldRestoresTestBase, public testing::Test {
 protected:
  // More than node 0 remembers.
  static constexpr int kMany = 1100;

  static bool IsGone() { return true; }
  static bool IsHere() { return false; }
  // A model that both are to have, which node 0 has made with its initial values.
  absl::Status CreateElsewhere(ModelStore::IsGone is_gone = IsHere) {
    v1::ModelSpec spec = SpecOf(2);
    spec.set_name("fresh");
    EXPECT_OK(world_.daemons().store(0).CreateOrJoin(Parse(spec)));
    return world_.restores(1).AwaitOrder("fresh", is_gone).status();
  }

  RestoredWorld world_{root(), Two(), kTimeout};
};

TEST_F(RestoreRequestsTest, ACallerWhoIsGoneEndsTheWait) {
  EXPECT_THAT(world_.restores(1).AwaitOrder("m", IsGone).status(),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("the caller disconnected")));
}

TEST_F(RestoreRequestsTest, OneThatGetsLostIsToldAgain) {
  std::atomic<int> told = 0;
  world_.daemons().cluster(1).LoseRestoreMessages([&](const RestoreMessage& message) {
    const auto* const request = std::get_if<RestoreRequest>(&message.what);
    return request != nullptr && !request->withdrawn && ++told == 1;
  });
  // So that whoever tells it only once gives up.
  const auto is_gone = [&] {
    world_.clock(1).Advance(absl::Seconds(5));
    return false;
  };
  EXPECT_OK(CreateElsewhere(is_gone));
  EXPECT_GE(told, 2);
}

TEST_F(RestoreRequestsTest, NodeZeroForgetsThoseThatWereGivenUp) {
  for (int i = 0; i < kMany; ++i) {
    EXPECT_THAT(world_.restores(1).AwaitOrder(absl::StrCat("m", i), IsGone).status(),
                StatusIs(absl::StatusCode::kAborted));
  }
  EXPECT_OK(CreateElsewhere());
}

TEST_F(RestoreRequestsTest, NodeZeroForgetsThoseOfADaemonThatIsLost) {
  for (int i = 0; i < kMany; ++i) {
    world_.restores(0).OnRestoreMessage({.model = absl::StrCat("m", i), .what = RestoreRequest{.id = 1, .node = 1}});
  }
  EXPECT_THAT(CreateElsewhere(), StatusIs(absl::StatusCode::kResourceExhausted));
  world_.restores(0).OnRestoreMessage({.model = "", .what = RestoreFollowerLost{.node = 1}});
  EXPECT_OK(CreateElsewhere());
}

// Two checkpoints, and no model any more.
class CreationsTest : public WorldRestoresTestBase, public testing::Test {
 protected:
  void SetUp() override {
    world_.DrawOthers();
    SavedBy(world_);
    world_.Step(1);
    world_.Save();
    for (int node = 0; node < 2; ++node) ASSERT_OK(world_.daemons().store(node).Delete("m", ""));
  }

  static bool IsHere() { return false; }
  absl::StatusOr<CreatedModel> CreateAt(int node, ModelStore::IsGone is_gone) {
    return CreateOrRestore(world_.daemons().store(node), world_.restores(node), Parse(SpecOf(2)), RestoreSource(),
                           is_gone);
  }
  // At node 1, where an order of node 0 is there already.
  absl::StatusOr<CreatedModel> Create() { return CreateAt(1, IsHere); }
  void ExpectNoModels() {
    for (int node = 0; node < 2; ++node) EXPECT_THAT(world_.daemons().store(node).List(), IsEmpty());
  }
  // Sends a message of node 0.
  template <typename Message>
  void Tell(const Message& message) {
    world_.restores(1).OnRestoreMessage({.model = "m", .what = message});
  }
  void Order(absl::uint128 id, const std::string& step) {
    ASSERT_OK_AND_ASSIGN(const CheckpointRequest request, ParseCheckpointRequest(step));
    ASSERT_OK_AND_ASSIGN(const CheckpointChoice choice, ChooseCheckpoint(root(), "m", request));
    Tell(RestoreOrder{.id = id,
                      .folder = choice.id.folder,
                      .save_id = choice.id.save_id,
                      .spec_fingerprint = world_.model(0).fingerprint(),
                      .creates = true,
                      .timeout = kTimeout});
  }

  RestoredWorld world_{root(), Two(), SpecOf(2)};
};

TEST_F(CreationsTest, OneThatBeginsAnewBesideItsCheckpointsIsWarnedOf) {
  const int64_t before = LoggedEvents(LogLevel::kWarning);
  ASSERT_OK(
      CreateOrRestore(world_.daemons().store(0), world_.restores(0), Parse(SpecOf(2)), std::nullopt, IsHere).status());
  EXPECT_EQ(LoggedEvents(LogLevel::kWarning), before + 1);
}

TEST_F(CreationsTest, TrainersThatWaitElsewhereComeAgainWhenNodeZeroCreatesTheModelFromACheckpoint) {
  ASSERT_OK_AND_ASSIGN(const ModelStore::Created early, world_.daemons().store(1).CreateOrJoin(Parse(SpecOf(2))));
  FakeTrainer trainer(early.model.get(), 1);
  ASSERT_OK(trainer.Attach());
  ASSERT_OK_AND_ASSIGN(const CreatedModel created, CreateAt(0, IsHere));
  const EpochEndInfo* const end = trainer.AwaitEnded();
  ASSERT_NE(end, nullptr);
  EXPECT_THAT(end->why, StatusIs(absl::StatusCode::kUnavailable,
                                 HasSubstr("model m: node 0 creates it from a checkpoint; attach again")));
  EXPECT_EQ(early.model->state().history().id, created.model.model->state().history().id);
}

TEST_F(CreationsTest, AnOrderThatComesWhileAModelFillsIsNotCarriedOutOnThatOne) {
  absl::Notification reached, over;
  world_.At(1, [&](Point point) {
    if (point != Point::kReady) return;
    reached.Notify();
    over.WaitForNotification();
  });
  Order(1, "3");
  std::thread first([&] { EXPECT_THAT(Create().status(), StatusIs(absl::StatusCode::kAborted)); });
  reached.WaitForNotification();
  Tell(RestoreEnd{.id = 1, .status = absl::AbortedError("given up")});
  Order(2, "4");
  world_.At(1, [&](Point point) {
    if (point == Point::kReady) Tell(RestoreGo{.id = 2});
    if (point == Point::kWritten) Tell(RestoreEnd{.id = 2});
  });
  over.Notify();
  first.join();
  // The next creation follows it.
  ASSERT_TRUE(world_.restores(1).FindOrder("m").has_value());
  ASSERT_OK_AND_ASSIGN(const CreatedModel created, Create());
  EXPECT_TRUE(created.model.created);
  EXPECT_EQ(created.model.model->state().snapshot().numbers.commit_number, 4);
  EXPECT_EQ(created.model.model->state().history().id, HistoryId{2});
  EXPECT_EQ(*world_.daemons().store(1).Find("m"), created.model.model);
}

const auto kIsAbandoned =
    StatusIs(absl::StatusCode::kUnavailable, HasSubstr("create model m: every caller disconnected"));

TEST_F(CreationsTest, OneAtNodeZeroEndsWhenItsCallerIsGone) {
  bool begun = false;
  EXPECT_THAT(CreateAt(0, [&] { return std::exchange(begun, true); }).status(), kIsAbandoned);
  ExpectNoModels();
  std::thread other([&] {
    // It may meet what is left of the creation that was given up, and is to come again then, as OpenModel does.
    absl::Status created = CreateAt(1, IsHere).status();
    while (absl::IsUnavailable(created)) created = CreateAt(1, IsHere).status();
    EXPECT_OK(created);
  });
  EXPECT_OK(CreateAt(0, IsHere).status());
  other.join();
}

TEST_F(CreationsTest, OneAtNodeZeroGoesOnForAnotherCallerWhoWaitsForTheSameModel) {
  absl::Notification waits, gone, failed;
  std::thread second;
  const auto second_is_gone = [&] {
    if (!waits.HasBeenNotified()) waits.Notify();
    return failed.HasBeenNotified();
  };
  const auto create_second = [&] {
    const absl::StatusOr<CreatedModel> joined = CreateAt(0, second_is_gone);
    ASSERT_OK(joined.status());
    EXPECT_FALSE(joined->model.created);
  };
  int looks = 0;
  const auto first_is_gone = [&] {
    // By then it has begun.
    if (++looks == 2) second = std::thread(create_second);
    if (waits.HasBeenNotified() && !gone.HasBeenNotified()) gone.Notify();
    return gone.HasBeenNotified();
  };
  std::thread first([&] {
    const absl::StatusOr<CreatedModel> created = CreateAt(0, first_is_gone);
    EXPECT_OK(created.status());
    if (!created.ok()) return failed.Notify();
    EXPECT_TRUE(created->model.created);
  });
  gone.WaitForNotification();
  EXPECT_OK(CreateAt(1, [&] { return failed.HasBeenNotified(); }).status());
  first.join();
  second.join();
}

TEST_F(CreationsTest, OneThatAllDaemonsAreReadyForIsMadeForWhoeverComesNext) {
  std::atomic<bool> gone = false;
  world_.At(0, [&](Point point) {
    if (point == Point::kGo) gone = true;
  });
  std::thread other([&] { EXPECT_OK(CreateAt(1, IsHere).status()); });
  EXPECT_OK(CreateAt(0, [&] { return gone.load(); }).status());
  other.join();
  EXPECT_TRUE(gone);
}

TEST_F(CreationsTest, OthersAreToldThatNobodyWaitsAtNodeZero) {
  std::atomic<bool> gone = false;
  absl::Notification over;
  world_.At(1, [&](Point point) {
    if (point != Point::kReady) return;
    gone = true;
    over.WaitForNotification();
  });
  std::thread other([&] {
    const absl::Status status = CreateAt(1, IsHere).status();
    EXPECT_THAT(status, kIsAbandoned);
    EXPECT_THAT(status.message(), HasSubstr("node 0: "));
  });
  EXPECT_THAT(CreateAt(0, [&] { return gone.load(); }).status(), kIsAbandoned);
  over.Notify();
  other.join();
  ExpectNoModels();
}

TEST_F(CreationsTest, ACallerWhoIsGoneLeavesTheOrderToTheNextOne) {
  Order(1, "4");
  std::atomic<int> refused = 0;
  world_.daemons().cluster(1).LoseRestoreMessages([&](const RestoreMessage& message) {
    if (std::holds_alternative<RestoreReport>(message.what)) ++refused;
    return false;
  });
  v1::ModelSpec other = SpecOf(2);
  other.set_name("other");
  const auto is_gone = [] { return true; };
  const auto fill = [&](const std::shared_ptr<Model>&, ModelStore::Show) {
    EXPECT_THAT(CreateAt(1, is_gone).status(),
                StatusIs(absl::StatusCode::kAborted, HasSubstr("the caller disconnected")));
    return absl::OkStatus();
  };
  ASSERT_OK(world_.daemons().store(1).CreateOrJoin(Parse(other), fill));
  world_.daemons().cluster(1).LoseRestoreMessages(nullptr);
  EXPECT_EQ(refused, 0);
  EXPECT_TRUE(world_.restores(1).FindOrder("m").has_value());
}

// --- A daemon that says what it should not ---

struct HostileCase {
  std::string name;
  Point at;
  std::function<RestoreMessage()> say;
  std::string answer;
};

RestoreMessage Sums(const std::string& key, int64_t rows) {
  return {.model = "m", .what = RestoreSums{.id = kDrawn, .tensors = {{.key = key, .sum = 1, .rows = rows}}}};
}
RestoreMessage Progress(int64_t done, int64_t all) {
  return {.model = "m", .what = RestorePartProgress{.id = kDrawn, .done_bytes = done, .all_bytes = all}};
}
RestoreMessage Report(RestorePhase phase) {
  return {.model = "m", .what = RestoreReport{.id = kDrawn, .phase = phase}};
}

class HostileFollowerTest : public WorldRestoresFaultsTest, public testing::WithParamInterface<HostileCase> {};

TEST_P(HostileFollowerTest, IsNamedAndLeavesNoWrongState) {
  const HostileCase& param = GetParam();
  Remember();
  world_.At(1, [&](Point point) {
    if (point != param.at) return;
    EXPECT_OK(world_.daemons().store(1).world().cluster->Send(param.say()));
  });
  const absl::Status status = world_.Restore().status();
  EXPECT_THAT(status.message(), HasSubstr(param.answer));
  AwaitChanged(1);
  if (param.at == Point::kReady) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument));
    ExpectUnchanged();
  } else {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kDataLoss));
    ExpectUnusable();
  }
}

INSTANTIATE_TEST_SUITE_P(
    Message, HostileFollowerTest,
    testing::Values(HostileCase{"SumsBeforeTheGo", Point::kReady, [] { return Sums("master/a.w", 0); },
                                "node 1: sums out of order"},
                    HostileCase{"WrittenBeforeTheGo", Point::kReady, [] { return Report(RestorePhase::kWritten); },
                                "node 1: report out of order"},
                    HostileCase{"DoneBeforeTheEnd", Point::kWritten, [] { return Report(RestorePhase::kDone); },
                                "node 1: report out of order"},
                    HostileCase{"SumsOfWhatIsNotThere", Point::kWritten, [] { return Sums("master/x", 1); },
                                "node 1: tensor master/x: not found"},
                    HostileCase{"MoreRowsThanThereAre", Point::kWritten, [] { return Sums("master/a.w", kRows + 1); },
                                "node 1: want at most 24 rows of master/a.w"},
                    HostileCase{"LessThanNoRows", Point::kWritten, [] { return Sums("master/a.w", -1); },
                                "node 1: want at most 24 rows of master/a.w"},
                    HostileCase{"MoreBytesDoneThanThereAre", Point::kReady, [] { return Progress(2, 1); },
                                "node 1: want progress of at most"},
                    HostileCase{"LessThanNoBytes", Point::kReady, [] { return Progress(-1, 1); },
                                "node 1: want progress of at most"},
                    HostileCase{"BytesBeyondAllNumbers", Point::kReady,
                                [] { return Progress(0, std::numeric_limits<int64_t>::max()); },
                                "node 1: want progress of at most"},
                    HostileCase{"OtherSums", Point::kWritten, [] { return Sums("master/a.w", 0); },
                                "tensor master/a.w: want content hash"}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace paramshard::server
