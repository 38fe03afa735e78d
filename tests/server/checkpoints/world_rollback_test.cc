// One daemon of a world has lost its part of a model: a replica heals it, or all roll back to the step that was saved
// last, and nobody trains on a state that is not whole.
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/checkpoints/model_creation.h"
#include "tests/server/checkpoints/restored_world.h"
#include "tests/server/models/fake_trainer.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct RollbackCase {
  std::string name;
  int shard_size = 0;
  int loser = 0;  // the node that loses its part
};

constexpr int64_t kSaved = 3;

class WorldRollbackTest : public WorldRestoresTestBase, public testing::TestWithParam<RollbackCase> {
 protected:
  static int loser() { return GetParam().loser; }
  static int other() { return 1 - GetParam().loser; }

  // Empties a node, like a daemon that was started in place of another daemon.
  void Empty(int node) { ASSERT_OK(world_.daemons().store(node).Delete("m", "")); }
  // Loses the model, like a server that cannot go on with the state of the previous server.
  void Lose(int node) {
    ModelStore& store = world_.daemons().store(node);
    store.FinishChange(*store.Find("m"), absl::DataLossError("its journal is damaged"));
    ASSERT_THAT(store.Find("m").status(), StatusIs(absl::StatusCode::kDataLoss));
  }
  // Creates the model, like a call of a trainer or the daemon's --restore.
  absl::StatusOr<CreatedModel> Create(int node, const std::optional<RestoreSource>& wanted = std::nullopt) {
    return CreateOrRestore(world_.daemons().store(node), world_.restores(node), Parse(SpecOf(GetParam().shard_size)),
                           wanted, [] { return false; });
  }
  // Attaches a trainer to an existing model.
  std::unique_ptr<FakeTrainer> Attach(int node) {
    auto trainer = std::make_unique<FakeTrainer>(world_.daemons().store(node).Find("m")->get(), node);
    EXPECT_OK(trainer->Attach());
    return trainer;
  }
  static absl::Status EndOf(FakeTrainer& trainer) {
    const EpochEndInfo* const ended = trainer.AwaitEnded();
    return ended == nullptr ? absl::InternalError("no end in time") : ended->why;
  }
  // Matches the error of a trainer that should attach again.
  static auto IsToComeAgain() {
    return StatusIs(absl::StatusCode::kUnavailable, HasSubstr("all daemons roll back to a checkpoint"));
  }

  // Until both daemons are in a history that a restore has begun.
  void AwaitBack() {
    world_.daemons().FindAgain("m");
    const auto is_back = [&](int node) {
      const Model& model = world_.model(node);
      return model.state().Look("look").ok() && model.state().history().parent.has_value();
    };
    const SteadyTime end = SteadyDeadline(kLong);
    while (!(is_back(0) && is_back(1)) && SteadyNow() < end) std::this_thread::yield();
  }
  // Both have what was saved, and go on from it as the run did that was not interrupted.
  void ExpectBack() {
    AwaitBack();
    for (int node = 0; node < 2; ++node) {
      const Model& model = world_.model(node);
      ASSERT_TRUE(model.state().history().parent.has_value()) << "node " << node;
      EXPECT_EQ(model.state().history().id, world_.model(0).state().history().id);
      EXPECT_EQ(model.state().history().parent->commit_number, kSaved);
      EXPECT_EQ(model.state().snapshot().numbers.commit_number, kSaved);
    }
    world_.Step(kMore);
    EXPECT_EQ(world_.daemons().Hashes(), expected_);
  }

  static constexpr int kMore = 2;  // commits that are given up, and made again
  RestoredWorld world_{root(), Two(GetParam().shard_size), SpecOf(GetParam().shard_size)};
  std::vector<std::string> expected_;
};

class SavedWorldTest : public WorldRollbackTest {
 protected:
  void SetUp() override {
    SavedBy(world_);
    world_.Step(kMore);
    expected_ = world_.daemons().Hashes();
  }
};

TEST_P(SavedWorldTest, ADaemonThatCameBackEmptyTakesAllBackWhenTheirTrainersHaveAttached) {
  Empty(loser());
  const auto waits = Attach(other());
  ASSERT_OK(Create(loser()));
  const auto comes = Attach(loser());
  EXPECT_THAT(EndOf(*waits), IsToComeAgain());
  EXPECT_THAT(EndOf(*comes), IsToComeAgain());
  ExpectBack();
  for (int node = 0; node < 2; ++node) {
    const std::optional<Rollback> rollback = world_.model(node).trainers().activity().rollback;
    ASSERT_TRUE(rollback.has_value());
    EXPECT_EQ(rollback->from_commit_number, node == loser() ? 0 : kSaved + kMore);
    EXPECT_EQ(rollback->commit_number, kSaved);
    EXPECT_THAT(rollback->why, HasSubstr("want one state on all nodes"));
  }
}

TEST_P(SavedWorldTest, NothingIsGivenUpBeforeATrainerOfEveryDaemonIsThere) {
  Empty(loser());
  ASSERT_OK(Create(loser()));
  world_.daemons().FindAgain("m");
  const std::vector<std::string> before = world_.daemons().Hashes();
  {
    const auto waits = Attach(other());
    EXPECT_EQ(world_.model(other()).trainers().activity().trainers.size(), 1);
  }
  EXPECT_EQ(world_.daemons().Hashes(), before);
  EXPECT_EQ(world_.model(other()).state().snapshot().numbers.commit_number, kSaved + kMore);
}

TEST_P(SavedWorldTest, ADaemonThatHasLostItTakesAllBackWhenItsTrainersCreateTheModel) {
  Lose(loser());
  const auto waits = Attach(other());
  ASSERT_OK_AND_ASSIGN(const CreatedModel created, Create(loser()));
  EXPECT_TRUE(created.model.created);
  ASSERT_TRUE(created.restored.has_value());
  EXPECT_EQ(created.restored->step, kSaved);
  EXPECT_THAT(EndOf(*waits), IsToComeAgain());
  ExpectBack();
}

TEST_P(SavedWorldTest, ADaemonThatCameBackEmptyMayAskForTheCheckpointItself) {
  Empty(loser());
  const auto waits = Attach(other());
  ASSERT_OK_AND_ASSIGN(const CreatedModel created, Create(loser(), RestoreSource()));
  ASSERT_TRUE(created.restored.has_value());
  EXPECT_EQ(created.restored->step, kSaved);
  EXPECT_THAT(EndOf(*waits), IsToComeAgain());
  ExpectBack();
}

TEST_P(SavedWorldTest, AllRollBackToTheSameStepAgain) {
  for (int i = 0; i < 3; ++i) {
    Empty(loser());
    ASSERT_OK(Create(loser()));
    const auto waits = Attach(other());
    const auto comes = Attach(loser());
    EXPECT_THAT(EndOf(*waits), IsToComeAgain());
    EXPECT_THAT(EndOf(*comes), IsToComeAgain());
    ExpectBack();
  }
}

TEST_P(SavedWorldTest, NobodyRollsBackToACheckpointOfAnotherHistory) {
  // Somebody has imported into all, and nothing was saved since.
  for (int node = 0; node < 2; ++node) {
    ASSERT_OK(world_.model(node).changes().Import({.commit_number = 100, .version = 100, .history = HistoryId{77}},
                                                  [] { return absl::OkStatus(); }));
  }
  const std::vector<std::string> before = world_.daemons().Hashes();
  Empty(loser());
  ASSERT_OK(Create(loser()));
  const auto waits = Attach(other());
  const auto comes = Attach(loser());
  const auto is_refused =
      StatusIs(absl::StatusCode::kFailedPrecondition,
               AllOf(HasSubstr("want one state on all nodes"), HasSubstr("no daemon rolled back to a checkpoint"),
                     HasSubstr("got step 3 of history")));
  EXPECT_THAT(EndOf(*waits), is_refused);
  // A node 0 that came back empty does not know what the other one goes on from, and has its trainers come again.
  EXPECT_THAT(EndOf(*comes), testing::AnyOf(is_refused, IsToComeAgain()));
  EXPECT_EQ(world_.model(other()).state().snapshot().numbers.commit_number, 100);
  EXPECT_OK(world_.model(other()).state().Look("look"));
}

class UnsavedWorldTest : public WorldRollbackTest {
 protected:
  void SetUp() override { world_.Step(kMore); }
};

TEST_P(UnsavedWorldTest, TrainersAreToldWhyNoEpochStarts) {
  Empty(loser());
  ASSERT_OK(Create(loser()));
  const auto waits = Attach(other());
  const auto comes = Attach(loser());
  const auto is_refused =
      StatusIs(absl::StatusCode::kFailedPrecondition,
               AllOf(HasSubstr("want one state on all nodes"), HasSubstr("no daemon rolled back to a checkpoint")));
  EXPECT_THAT(EndOf(*waits), is_refused);
  EXPECT_THAT(EndOf(*comes), is_refused);
  EXPECT_EQ(world_.model(other()).state().snapshot().numbers.commit_number, kMore);
}

TEST_P(UnsavedWorldTest, ADaemonThatHasLostItSaysSo) {
  Lose(loser());
  EXPECT_THAT(Create(loser()).status(),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("its state was lost with the server before this one")));
  const auto waits = Attach(other());
  EXPECT_THAT(EndOf(*waits),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr(absl::StrCat("got none on node ", loser()))));
}

// Restores of all daemons that broke off when they had begun to write.
class BrokenRestoreTest : public SavedWorldTest {
 protected:
  void SetUp() override {
    SavedWorldTest::SetUp();
    // That one is newer than the one that is restored.
    world_.Save();
  }
  void Break() {
    world_.At(1, [&](Restores::Point point) {
      if (point != Restores::Point::kWritten) return;
      const RestoreReport wrong{.id = kDrawn, .status = absl::InternalError("the test breaks it off")};
      EXPECT_OK(world_.daemons().cluster(1).Send(RestoreMessage{.model = "m", .what = wrong}));
      world_.DrawOthers();
    });
    EXPECT_THAT(world_.Restore(absl::StrCat(kSaved)).status(), StatusIs(absl::StatusCode::kDataLoss));
    world_.At(1, nullptr);
    const SteadyTime end = SteadyDeadline(kLong);
    while (world_.model(1).state().usable().ok() && SteadyNow() < end) std::this_thread::yield();
    for (int node = 0; node < 2; ++node) {
      ASSERT_THAT(world_.model(node).state().usable(), StatusIs(absl::StatusCode::kDataLoss));
    }
  }
};

TEST_P(BrokenRestoreTest, IsMadeAgainWhenTrainersCome) {
  ASSERT_NO_FATAL_FAILURE(Break());
  const auto comes = Attach(other());
  EXPECT_THAT(EndOf(*comes), IsToComeAgain());
  ExpectBack();
}

TEST_P(BrokenRestoreTest, IsMadeAgainOfADaemonThatWasKilledMeanwhileToo) {
  // Contents of a keeper whose daemon is killed before it knows of the end.
  FakeKeptStore left[2];
  world_.At(loser(), [&](Restores::Point point) {
    if (point == Restores::Point::kWritten) CopyKept(world_.kept(loser()), left[loser()]);
  });
  world_.At(other(), [&](Restores::Point point) {
    if (point == Restores::Point::kWritten) CopyKept(world_.kept(other()), left[other()]);
  });
  ASSERT_OK(world_.Restore(absl::StrCat(kSaved)));

  // They hold the folder of checkpoints.
  for (int node = 0; node < 2; ++node) Empty(node);
  RestoredWorld next(root(), Two(GetParam().shard_size), kTimeout, {&left[0], &left[1]});
  absl::StatusOr<CreatedModel> created[2];
  const auto create = [&](int node) {
    created[node] = CreateOrRestore(next.daemons().store(node), next.restores(node),
                                    Parse(SpecOf(GetParam().shard_size)), std::nullopt, [] { return false; });
  };
  for (int node = 0; node < 2; ++node) {
    EXPECT_THAT(next.daemons().store(node).lost().Check("m"),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr("a restore of several daemons was interrupted")));
  }
  std::thread zero([&] { create(0); });
  create(1);
  zero.join();
  for (int node = 0; node < 2; ++node) {
    ASSERT_OK(created[node].status());
    ASSERT_TRUE(created[node]->restored.has_value());
    EXPECT_EQ(created[node]->restored->step, kSaved);
  }
  next.daemons().FindAgain("m");
  next.Step(kMore);
  EXPECT_EQ(next.daemons().Hashes(), expected_);
}

TEST_P(BrokenRestoreTest, AStateThatIsNotWholeIsToldWhereNothingCanBeRestored) {
  ASSERT_NO_FATAL_FAILURE(Break());
  std::filesystem::remove_all(world_.model(0).save_dir());
  const auto comes = Attach(other());
  EXPECT_THAT(EndOf(*comes),
              StatusIs(absl::StatusCode::kDataLoss, AllOf(HasSubstr("a restore broke off in the middle"),
                                                          HasSubstr("no daemon rolled back to a checkpoint"))));
}

// Worlds where the other daemon has all that is lost: nobody goes back.
class ReplicasTest : public SavedWorldTest {
 protected:
  void SetUp() override {
    SavedBy(world_);
    world_.Step(2 * kMore);
    expected_ = world_.daemons().Hashes();
    ASSERT_OK(world_.Restore(absl::StrCat(kSaved)));
    world_.Step(kMore);
  }
  void ExpectHealed() {
    world_.daemons().FindAgain("m");
    world_.Step(kMore);
    for (int node = 0; node < 2; ++node) {
      EXPECT_EQ(world_.model(node).state().history().id, world_.model(0).state().history().id);
      EXPECT_FALSE(world_.model(node).trainers().activity().rollback.has_value());
      EXPECT_OK(world_.model(node).state().usable());
    }
    EXPECT_EQ(world_.daemons().Hashes(), expected_);
  }
};

TEST_P(ReplicasTest, HealADaemonThatCameBackEmpty) {
  Empty(loser());
  ASSERT_OK(Create(loser()));
  ExpectHealed();
}

TEST_P(ReplicasTest, HealADaemonThatHasLostIt) {
  Lose(loser());
  ASSERT_OK_AND_ASSIGN(const CreatedModel created, Create(loser()));
  EXPECT_TRUE(created.model.created);
  EXPECT_FALSE(created.restored.has_value());
  EXPECT_THAT(created.model.model->state().usable(),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("its journal is damaged")));
  ASSERT_OK_AND_ASSIGN(const CreatedModel joined, Create(loser()));
  EXPECT_FALSE(joined.model.created);
  ExpectHealed();
}

TEST_P(ReplicasTest, HealADaemonThatHasLostItWithoutACheckpoint) {
  for (const auto& folder : std::filesystem::directory_iterator(world_.model(0).save_dir())) {
    std::filesystem::remove_all(folder);
  }
  Lose(loser());
  ASSERT_OK(Create(loser()));
  ExpectHealed();
}

TEST_P(ReplicasTest, HealADaemonThatAsksForTheCheckpointItself) {
  if (loser() == 0) GTEST_SKIP() << "node 0 leads a restore that is asked for";
  Empty(loser());
  ASSERT_OK_AND_ASSIGN(const CreatedModel created, Create(loser(), RestoreSource()));
  EXPECT_FALSE(created.restored.has_value());
  ExpectHealed();
}

TEST_P(ReplicasTest, WaitForTheTrainersOfADaemonThatHasLostIt) {
  Lose(loser());
  const auto waits = Attach(other());
  ASSERT_OK(Create(loser()));
  const auto comes = Attach(loser());
  EXPECT_TRUE(waits->AwaitStarted());
  EXPECT_TRUE(comes->AwaitStarted());
  EXPECT_EQ(comes->started().numbers.commit_number, kSaved + kMore);
}

const RollbackCase kSharedCases[] = {{"SharedNode0", 2, 0}, {"SharedNode1", 2, 1}};
const RollbackCase kReplicasCases[] = {{"ReplicasNode0", 1, 0}, {"ReplicasNode1", 1, 1}};
const RollbackCase kCases[] = {kSharedCases[0], kSharedCases[1], kReplicasCases[0], kReplicasCases[1]};
std::string NameOf(const testing::TestParamInfo<RollbackCase>& info) { return info.param.name; }
INSTANTIATE_TEST_SUITE_P(Worlds, SavedWorldTest, testing::ValuesIn(kSharedCases), NameOf);
INSTANTIATE_TEST_SUITE_P(Worlds, UnsavedWorldTest, testing::ValuesIn(kSharedCases), NameOf);
INSTANTIATE_TEST_SUITE_P(Worlds, BrokenRestoreTest, testing::ValuesIn(kCases), NameOf);
INSTANTIATE_TEST_SUITE_P(Worlds, ReplicasTest, testing::ValuesIn(kReplicasCases), NameOf);

}  // namespace
}  // namespace paramshard::server
