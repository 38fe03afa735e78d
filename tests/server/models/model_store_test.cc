#include "server/models/model_store.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "common/model/model_spec_proto.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/models/inspection.h"
#include "tests/server/models/test_world.h"
#include "tests/server/state/test_spec.h"
#include "tests/server/training/command.h"
#include "tests/support/process_counts.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

v1::ModelSpec Spec(const std::string& name, int64_t rows = 16) {
  return MakeSpec(name, {MakeUnit("u", {MakeParameter("w", {rows, 64})})});
}

class ModelStoreTest : public testing::Test {
 protected:
  ModelStore& store() { return world_.store(); }
  absl::StatusOr<ModelStore::Created> Create(const v1::ModelSpec& spec) { return store().CreateOrJoin(Parse(spec)); }

  TestWorld world_{{.ranks = 2}};
};

// --- Creating and finding ---

TEST_F(ModelStoreTest, TheSecondCreationOfAnEqualSpecJoins) {
  ASSERT_OK_AND_ASSIGN(const ModelStore::Created first, Create(Spec("m")));
  ASSERT_OK_AND_ASSIGN(const ModelStore::Created second, Create(Spec("m")));
  EXPECT_TRUE(first.created);
  EXPECT_FALSE(second.created);
  EXPECT_EQ(first.model, second.model);
}

TEST_F(ModelStoreTest, AnotherSpecOfTheSameNameIsRefusedWithTheDifference) {
  ASSERT_OK(Create(Spec("m", 16)));
  EXPECT_THAT(Create(Spec("m", 32)),
              StatusIs(absl::StatusCode::kAlreadyExists,
                       AllOf(HasSubstr("create model m"), HasSubstr("[16, 64]"), HasSubstr("[32, 64]"))));
}

TEST_F(ModelStoreTest, AModelThatIsBeingFilledIsSeenAndJoinedWhenItIsFull) {
  std::atomic<bool> full{false};
  std::thread joiner;
  const auto fill = [&](const std::shared_ptr<Model>& model, ModelStore::Show show) -> absl::Status {
    EXPECT_THAT(store().List(), IsEmpty());
    EXPECT_OK(show());
    EXPECT_THAT(store().Find("m"), IsOkAndHolds(model));
    joiner = std::thread([&] {
      const auto joined = Create(Spec("m"));
      EXPECT_OK(joined.status());
      EXPECT_TRUE(joined.ok() && !joined->created);
      EXPECT_TRUE(full);
    });
    full = true;
    return absl::OkStatus();
  };
  const auto created = store().CreateOrJoin(Parse(Spec("m")), fill);
  joiner.join();
  ASSERT_OK(created.status());
  EXPECT_TRUE(created->created);
}

TEST_F(ModelStoreTest, AModelThatCannotBeFilledIsGone) {
  const auto fail = [&](const std::shared_ptr<Model>&, ModelStore::Show show) -> absl::Status {
    EXPECT_OK(show());
    return absl::DataLossError("damaged");
  };
  EXPECT_THAT(store().CreateOrJoin(Parse(Spec("m")), fail),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("damaged")));
  EXPECT_THAT(store().List(), IsEmpty());
  ASSERT_OK_AND_ASSIGN(const ModelStore::Created second, Create(Spec("m")));
  EXPECT_TRUE(second.created);
}

TEST_F(ModelStoreTest, AModelIsNotShownOnceTheStoreDrains) {
  const auto fill = [&](const std::shared_ptr<Model>&, ModelStore::Show show) -> absl::Status {
    store().Drain(SteadyTime::min(), absl::UnavailableError("the daemon stops"));
    return show();
  };
  EXPECT_THAT(store().CreateOrJoin(Parse(Spec("m")), fill), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(store().List(), IsEmpty());
}

TEST_F(ModelStoreTest, ACallerWhoIsGoneDoesNotWaitForTheCreationOfAnother) {
  const auto is_gone = [] { return true; };
  const auto fill = [&](const std::shared_ptr<Model>&, ModelStore::Show) -> absl::Status {
    EXPECT_THAT(store().CreateOrJoin(Parse(Spec("other")), is_gone),
                StatusIs(absl::StatusCode::kAborted, HasSubstr("create model other: the caller disconnected")));
    EXPECT_THAT(store().CreateOrJoin(Parse(Spec("m")), is_gone), StatusIs(absl::StatusCode::kAborted));
    return absl::OkStatus();
  };
  ASSERT_OK(store().CreateOrJoin(Parse(Spec("m")), fill));
  EXPECT_THAT(store().List(), SizeIs(1));
}

TEST_F(ModelStoreTest, OfManyThatCreateOneDoesAndAllGetIt) {
  std::atomic<int> created{0};
  std::vector<std::shared_ptr<Model>> models(8);
  std::vector<std::thread> threads;
  for (auto& model : models) {
    threads.emplace_back([&] {
      const auto mine = Create(Spec("m"));
      ASSERT_OK(mine);
      if (mine->created) ++created;
      model = mine->model;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(created, 1);
  EXPECT_THAT(models, testing::Each(models[0]));
}

TEST_F(ModelStoreTest, AnUnknownNameIsAnsweredWithTheKnownOnes) {
  EXPECT_THAT(store().Find("x"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("model x: not found; this daemon holds no models")));
  ASSERT_OK(Create(Spec("b")));
  ASSERT_OK(Create(Spec("a")));
  EXPECT_THAT(store().Find("x"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("not found; this daemon holds [a, b]")));
  EXPECT_THAT(store().Find(""), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(store().Find(std::string(1 << 20, 'x')), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(ModelStoreTest, OfManyKnownOnesAFewAreNamed) {
  for (int i = 10; i < 30; ++i) ASSERT_OK(Create(Spec(absl::StrCat("m", i))));
  EXPECT_THAT(store().Find("x"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("[m10, m11, m12, m13, m14, m15, m16, m17 and 12 more]")));
}

TEST_F(ModelStoreTest, ModelsAreListedByName) {
  for (const char* name : {"c", "a", "b"}) ASSERT_OK(Create(Spec(name)));
  std::string names;
  for (const auto& model : store().List()) names += model->spec().name;
  EXPECT_EQ(names, "abc");
}

TEST_F(ModelStoreTest, AShardSizeThatIsNeitherDaemonNorWorldIsRefused) {
  v1::ModelSpec spec = Spec("m");
  spec.set_shard_size(3);
  EXPECT_THAT(Create(spec),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("shard size 3: want 2 (the devices")));
  spec.set_shard_size(2);
  EXPECT_OK(Create(spec));
}

// --- What does not fit ---

TEST_F(ModelStoreTest, WhatTheMachineDoesNotHaveIsRefusedByClass) {
  const int64_t descriptors = OpenDescriptors();
  EXPECT_THAT(Create(Spec("m", int64_t{1} << 33)),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("bytes needed"), HasSubstr(absl::StrCat("master ", int64_t{1} << 41)),
                             HasSubstr("exp_avg"), HasSubstr("gradients"), HasSubstr("planes"), HasSubstr("slots"),
                             HasSubstr("bytes free"))));
  EXPECT_EQ(OpenDescriptors(), descriptors);
  EXPECT_THAT(store().List(), IsEmpty());
}

TEST_F(ModelStoreTest, BytesBeyond64BitsAreRefused) {
  v1::ModelSpec spec = MakeSpec("m", {});
  for (int unit = 0; unit < 10; ++unit) {
    v1::UnitSpec& added = *spec.add_units();
    added.set_name(absl::StrCat("u", unit));
    for (int i = 0; i < 80'000; ++i) {
      *added.add_parameters() = MakeParameter(absl::StrCat(unit, ".", i), {(int64_t{1} << 20) - 1, int64_t{1} << 20});
    }
  }
  const absl::StatusOr<ModelSpec> parsed = ParseModelSpec(spec);
  if (!parsed.ok()) {
    EXPECT_THAT(parsed, StatusIs(absl::StatusCode::kInvalidArgument));
    return;
  }
  EXPECT_THAT(store().CreateOrJoin(*parsed), StatusIs(absl::StatusCode::kResourceExhausted));
}

class MemoryLimitTest : public testing::Test {
 protected:
  // Two ranks, fp32 throughout: master, moments, gradients, planes, slots and gradient slots, and padding.
  static constexpr int64_t kRows = 1024;
  static constexpr int64_t kTensorBytes = kRows * 64 * 4;

  TestWorld world_{{.ranks = 2, .memory_limit_bytes = 20 * kTensorBytes}};
};

TEST_F(MemoryLimitTest, IsSharedByAllModelsAndFreedByDeletion) {
  ModelStore& store = world_.store();
  ASSERT_OK(store.CreateOrJoin(Parse(Spec("first", kRows))));
  EXPECT_THAT(store.CreateOrJoin(Parse(Spec("second", kRows))),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("create model second")));
  EXPECT_THAT(store.List(), SizeIs(1));
  ASSERT_OK(store.CreateOrJoin(Parse(Spec("small", 16))));
  ASSERT_OK(store.Delete("first", ""));
  EXPECT_OK(store.CreateOrJoin(Parse(Spec("second", kRows))));
}

TEST_F(MemoryLimitTest, GradientsThatWaitForTheCommitCount) {
  v1::ModelSpec spec = Spec("m", kRows * 5 / 4);
  spec.set_gradient_sums(v1::GRADIENT_SUMS_AT_COMMIT);
  EXPECT_THAT(
      world_.store().CreateOrJoin(Parse(spec)),
      StatusIs(absl::StatusCode::kResourceExhausted,
               HasSubstr(absl::StrCat("slots ", 11 * kTensorBytes * 5 / 4, ", scratch ", kTensorBytes * 5 / 4))));
  spec.set_gradient_sums(v1::GRADIENT_SUMS_AT_PUSH);
  EXPECT_OK(world_.store().CreateOrJoin(Parse(spec)));
}

TEST(MuonModelTest, UpdatesAndTheirProductsCount) {
  v1::ModelSpec spec = MakeSpec("m", {MakeUnit("w", {Owned(MakeParameter("w", {512, 512}))})});
  spec.add_groups()->set_optimizer(v1::OPTIMIZER_MUON);
  TestWorld world({.ranks = 1});
  const std::shared_ptr<Model> model = world.Create(spec);
  int64_t total = 0;
  int64_t muon = 0;
  for (const MemoryUse& use : CountMemory(*model)) {
    total += use.size_bytes;
    if (use.memory_class == "muon_scratch") muon += use.size_bytes;
  }
  // The update, two Gram matrices and the next iterate, and what products are tiled in.
  EXPECT_GT(muon, 4 * 512 * 512 * 2);
  total += model->budget().SlotsBytesByRank()[0] + model->budget().ScratchBytesByRank()[0];
  EXPECT_OK(TestWorld({.ranks = 1, .memory_limit_bytes = total}).store().CreateOrJoin(Parse(spec)));
  TestWorld small({.ranks = 1, .memory_limit_bytes = 2 * total - 1});
  EXPECT_THAT(TestWorld({.ranks = 1, .memory_limit_bytes = total - 1}).store().CreateOrJoin(Parse(spec)),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr(absl::StrCat(", updates of Muon and their products ", muon, "), "))));
  // A model that is there has taken them, too.
  ASSERT_OK(small.store().CreateOrJoin(Parse(spec)));
  spec.set_name("other");
  EXPECT_THAT(small.store().CreateOrJoin(Parse(spec)), StatusIs(absl::StatusCode::kResourceExhausted));
}

// One matrix of 64 columns is one band, and what a step moves needs as much room again.
TEST(MovedModelTest, TheRoomOfASmallStateIsCountedAsLargeAsTheState) {
  constexpr int64_t kRows = 1024;
  constexpr int64_t kTensorBytes = kRows * 64 * 4;
  const std::string room = "room that steps move the state into ";
  for (const bool moves : {false, true}) {
    TestWorld world({.ranks = 1, .memory_limit_bytes = 4 * kTensorBytes, .moves = {.moves = moves}});
    const absl::Status status = world.store().CreateOrJoin(Parse(Spec("m", kRows))).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(absl::StrContains(status.message(), absl::StrCat(room, 3 * kTensorBytes, ",")), moves) << status;
    EXPECT_EQ(absl::StrContains(status.message(), room), moves) << status;
  }
  TestWorld world({.ranks = 1, .moves = {.moves = true}});
  const std::shared_ptr<Model> model = world.Create(Spec("m", kRows));
  const std::vector<MemoryUse> uses = CountMemory(*model);
  const auto found =
      std::find_if(uses.begin(), uses.end(), [](const MemoryUse& use) { return use.memory_class == "keeper_scratch"; });
  ASSERT_NE(found, uses.end());
  EXPECT_EQ(found->size_bytes, 3 * kTensorBytes);
}

TEST(MovedModelTest, AModelOfAnySizeIsRefusedAtOnce) {
  TestWorld world({.ranks = 2, .moves = {.moves = true}});
  EXPECT_THAT(world.store().CreateOrJoin(Parse(Spec("m", int64_t{1} << 33))),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("room that steps move the state into ")));
}

// --- Deleting ---

TEST_F(ModelStoreTest, ADeletedModelIsGone) {
  const int64_t descriptors = OpenDescriptors();
  ASSERT_OK(Create(Spec("m")));
  EXPECT_GT(OpenDescriptors(), descriptors);
  ASSERT_OK(store().Delete("m", ""));
  EXPECT_EQ(OpenDescriptors(), descriptors);
  EXPECT_THAT(store().Find("m"), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(store().Delete("m", ""), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_OK(Create(Spec("m", 32))) << "the name is free";
}

TEST_F(ModelStoreTest, ARepeatedDeletionAnswersLikeTheFirst) {
  ASSERT_OK(Create(Spec("m")));
  ASSERT_OK(store().Delete("m", "request 1"));
  EXPECT_OK(store().Delete("m", "request 1"));
  ASSERT_OK(Create(Spec("m")));
  EXPECT_OK(store().Delete("m", "request 1"));
  EXPECT_OK(store().Find("m")) << "a repetition deletes nothing";
  EXPECT_OK(store().Delete("m", "request 2"));
  EXPECT_THAT(store().Find("m"), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(ModelStoreTest, ALongRequestIdIsNotRemembered) {
  ASSERT_OK(Create(Spec("m")));
  EXPECT_THAT(store().Delete("m", std::string(513, 'r')),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("at most 512 bytes, got 513")));
  EXPECT_OK(store().Find("m"));
  EXPECT_OK(store().Delete("m", std::string(512, 'r')));
}

TEST_F(ModelStoreTest, ARefusedDeletionMayBeRepeatedLater) {
  ASSERT_OK_AND_ASSIGN(const ModelStore::Created created, Create(Spec("m")));
  {
    FakeTrainer trainer(created.model.get(), 1);
    ASSERT_OK(trainer.Attach());
    EXPECT_THAT(store().Delete("m", "request 1"),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         AllOf(HasSubstr("delete model m"), HasSubstr("rank 1"),
                               HasSubstr(absl::StrCat("process ", 10'000 + trainer.session())))));
  }
  EXPECT_OK(store().Delete("m", "request 1"));
}

TEST_F(ModelStoreTest, ARunningModelIsNotDeleted) {
  ASSERT_OK_AND_ASSIGN(const ModelStore::Created created, Create(Spec("m")));
  FakeTrainers trainers = AttachAll(*created.model);
  EXPECT_THAT(store().Delete("m", ""), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("rank 0")));
  trainers.clear();
  // Its last epoch may still be ending.
  EXPECT_OK(store().Delete("m", ""));
}

TEST_F(ModelStoreTest, WhoStillHoldsADeletedModelCannotUseIt) {
  ASSERT_OK_AND_ASSIGN(const ModelStore::Created created, Create(Spec("m")));
  ASSERT_OK(store().Delete("m", ""));
  FakeTrainer trainer(created.model.get(), 0);
  EXPECT_THAT(trainer.Attach(), StatusIs(absl::StatusCode::kNotFound, HasSubstr("deleted")));
  const auto unexpected = [] {
    ADD_FAILURE();
    return absl::OkStatus();
  };
  EXPECT_THAT(created.model->changes().Import({.commit_number = 1, .version = 1}, unexpected),
              StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(ModelStoreTest, TheLastReferenceToADeletedModelDoesNotHarmItsSuccessor) {
  ASSERT_OK_AND_ASSIGN(ModelStore::Created old, Create(Spec("m")));
  ASSERT_OK(store().Delete("m", ""));
  ASSERT_OK_AND_ASSIGN(const ModelStore::Created created, Create(Spec("m")));
  FakeTrainers trainers = AttachAll(*created.model);
  old.model.reset();
  for (const auto& trainer : trainers) trainer->Commit(1);
  for (const auto& trainer : trainers) EXPECT_TRUE(trainer->AwaitCommitted(1).has_value());
}

// A vote that waits keeps its epoch from ending.
TEST_F(ModelStoreTest, ADeletionThatWaitsForAnEpochHoldsUpNoOtherModel) {
  ASSERT_OK_AND_ASSIGN(const ModelStore::Created created, Create(Spec("m")));
  absl::Notification voting, vote;
  world_.cluster().BeforeVote([&] {
    voting.Notify();
    vote.WaitForNotification();
    return absl::OkStatus();
  });
  FakeTrainers trainers = AttachAll(*created.model);
  for (const auto& trainer : trainers) trainer->Commit(1);
  voting.WaitForNotification();
  created.model->trainers().Leave(trainers[0]->session(), absl::AbortedError("process 1 has left"));
  std::thread deletion([&] { EXPECT_OK(store().Delete("m", "")); });
  // It is closed, and waits. A rank that there is not would only be refused for another reason.
  const auto is_closed = [&] {
    FakeTrainer late(created.model.get(), 2);
    return absl::IsNotFound(late.Attach());
  };
  while (!is_closed()) {
  }
  EXPECT_OK(Create(Spec("other")));
  EXPECT_OK(store().Delete("other", ""));
  EXPECT_OK(store().Find("m"));
  vote.Notify();
  deletion.join();
  EXPECT_THAT(store().Find("m"), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(ModelStoreTest, OfTwoDeletionsAtOnceNoneHarmsTheNextModel) {
  for (int round = 0; round < 20; ++round) {
    ASSERT_OK(Create(Spec("m")));
    std::vector<std::thread> threads;
    for (int i = 0; i < 2; ++i) {
      threads.emplace_back([&] {
        const absl::Status status = store().Delete("m", "");
        EXPECT_TRUE(status.ok() || absl::IsNotFound(status)) << status;
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_THAT(store().Find("m"), StatusIs(absl::StatusCode::kNotFound));
  }
}

// --- A commit in doubt ---

class DoubtTest : public ModelStoreTest {
 protected:
  // Ends the first epoch of "m" with a vote on commit 2 that gets no answer.
  std::shared_ptr<Model> LeaveInDoubt() {
    std::shared_ptr<Model> model = world_.Create(Spec("m"));
    FakeTrainers trainers = AttachAll(*model);
    for (const auto& trainer : trainers) trainer->Commit(1);
    for (const auto& trainer : trainers) EXPECT_TRUE(trainer->AwaitCommitted(1).has_value());
    world_.cluster().AfterVote([] { return absl::DataLossError("node 0 did not answer within 5m"); });
    for (const auto& trainer : trainers) trainer->Commit(2);
    for (const auto& trainer : trainers) EXPECT_NE(trainer->AwaitEnded(), nullptr);
    world_.cluster().AfterVote([] { return absl::OkStatus(); });
    return model;
  }
};

TEST_F(DoubtTest, NobodyTrainsOnAndTheStateOfTheLastCommitStays) {
  const std::shared_ptr<Model> model = LeaveInDoubt();
  const auto in_doubt =
      StatusIs(absl::StatusCode::kDataLoss,
               AllOf(HasSubstr("model m: commit 2 is in doubt (node 0 did not answer within 5m)"),
                     HasSubstr("the state of commit 1"), HasSubstr("import a state, or delete the model")));
  // A trainer that attaches while the epoch still ends is told later.
  FakeTrainer trainer(model.get(), 0);
  if (const absl::Status attached = trainer.Attach(); attached.ok()) {
    const EpochEndInfo* ended = trainer.AwaitEnded();
    ASSERT_NE(ended, nullptr);
    EXPECT_EQ(ended->why.code(), absl::StatusCode::kDataLoss);
  } else {
    EXPECT_THAT(attached, in_doubt);
  }
  EXPECT_THAT(model->state().doubt(), in_doubt);
  EXPECT_OK(model->state().usable()) << "the state is whole";
  EXPECT_EQ(model->committed().commits.numbers().commit_number, 1);
  FakeTrainer late(model.get(), 1);
  EXPECT_THAT(late.Attach(), in_doubt);
}

TEST_F(DoubtTest, AnImportSettlesIt) {
  const std::shared_ptr<Model> model = LeaveInDoubt();
  ASSERT_OK(model->changes().Import({.commit_number = 7, .version = 7}, [] { return absl::OkStatus(); }));
  EXPECT_OK(model->state().doubt());
  FakeTrainers trainers = AttachAll(*model);
  for (const auto& trainer : trainers) trainer->Commit(8);
  for (const auto& trainer : trainers) EXPECT_TRUE(trainer->AwaitCommitted(8).has_value());
}

TEST_F(DoubtTest, TheModelCanBeDeleted) {
  LeaveInDoubt();
  EXPECT_OK(store().Delete("m", ""));
  EXPECT_OK(Create(Spec("m", 32)));
}

// --- The end ---

TEST_F(ModelStoreTest, ADrainEndsAllModelsAndRefusesNewOnes) {
  ASSERT_OK_AND_ASSIGN(const ModelStore::Created running, Create(Spec("running")));
  ASSERT_OK_AND_ASSIGN(const ModelStore::Created waiting, Create(Spec("waiting")));
  ASSERT_OK(Create(Spec("idle")));
  FakeTrainers trainers = AttachAll(*running.model);
  FakeTrainer lonely(waiting.model.get(), 0);
  ASSERT_OK(lonely.Attach());
  store().Drain(SteadyDeadline(absl::Minutes(1)), absl::UnavailableError("the daemon stops"));
  for (const auto& trainer : trainers) {
    const EpochEndInfo* ended = trainer->AwaitEnded();
    ASSERT_NE(ended, nullptr);
    EXPECT_THAT(ended->why.message(), HasSubstr("the daemon stops"));
  }
  ASSERT_NE(lonely.AwaitEnded(), nullptr);
  EXPECT_THAT(Create(Spec("new")), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("drains")));
  EXPECT_THAT(store().List(), SizeIs(3)) << "they may still be looked at";
}

TEST_F(ModelStoreTest, AModelWhoseCommitHangsHoldsUpNoOtherInADrain) {
  ASSERT_OK_AND_ASSIGN(const ModelStore::Created busy, Create(Spec("a")));
  ASSERT_OK_AND_ASSIGN(const ModelStore::Created idle, Create(Spec("b")));
  FakeTrainers committing = AttachAll(*busy.model);
  FakeTrainers others = AttachAll(*idle.model);
  absl::Notification voting, go_on;
  world_.cluster().BeforeVote([&] {
    voting.Notify();
    go_on.WaitForNotification();
    return absl::OkStatus();
  });
  for (const auto& trainer : committing) trainer->Commit(1);
  voting.WaitForNotification();
  std::thread drain([this] { store().Drain(kNever, absl::UnavailableError("the daemon stops")); });
  for (const auto& trainer : others) EXPECT_NE(trainer->AwaitEnded(), nullptr) << "while the other one votes";
  go_on.Notify();
  drain.join();
  EXPECT_TRUE(committing[0]->AwaitCommitted(1).has_value());
}

TEST_F(ModelStoreTest, MessagesAboutUnknownModelsAreIgnored) {
  store().Hear(EpochStart{.model = "nobody", .epoch = 1});
  store().Hear(EpochEnded{.model = "nobody", .epoch = 1, .why = absl::AbortedError("over")});
  store().Hear(EpochRefused{.model = "nobody", .why = absl::FailedPreconditionError("want one state on all nodes")});
  ASSERT_OK_AND_ASSIGN(const ModelStore::Created created, Create(Spec("m")));
  // An epoch that no trainer waits for.
  store().Hear(EpochStart{.model = "m", .epoch = 7});
  store().Hear(EpochEnded{.model = "m", .epoch = 7, .why = absl::AbortedError("over")});
  EXPECT_FALSE(created.model->trainers().activity().running);
}

TEST(EpochNumberTest, GoesOnThroughAllEpochsOfAModel) {
  TestWorld world({.ranks = 1});
  const std::shared_ptr<Model> model = world.Create(Spec("m"));
  for (int epoch = 1; epoch <= 3; ++epoch) EXPECT_EQ(AttachAll(*model)[0]->started().epoch, epoch);
}

}  // namespace
}  // namespace paramshard::server
