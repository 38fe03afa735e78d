// Daemons that hold replicas heal each other: one that has no state gets it when the next epoch starts, and the
// training goes on as if nothing had happened.

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/keeper/fake_kept_store.h"
#include "tests/server/models/daemons.h"
#include "tests/server/models/left_memory.h"
#include "tests/server/state/test_spec.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kLost = 3;  // commits before a daemon loses its part
constexpr int64_t kLast = 6;

v1::ParameterSpec Normal(std::string name, std::vector<int64_t> shape, v1::Format format) {
  v1::ParameterSpec parameter = MakeParameter(std::move(name), std::move(shape), format);
  parameter.mutable_initial_value()->mutable_normal()->set_standard_deviation(0.5);
  return parameter;
}

v1::ParameterSpec Frozen(std::string name, v1::Format format) {
  v1::ParameterSpec parameter = Normal(std::move(name), {40, 48}, format);
  parameter.set_trainable(false);
  return parameter;
}

// Every kind of state: masters of all types, moments with scales, histories, planes that are the state.
v1::ModelSpec Spec() {
  v1::ParameterSpec delayed = Normal("delayed", {61, 33}, v1::FORMAT_FP8_TENSOR_DELAYED);
  delayed.mutable_delayed_scaling()->set_history_length(8);
  v1::ParameterSpec remainder = Normal("remainder", {40, 130}, v1::FORMAT_BF16);
  remainder.set_master_type(v1::MASTER_TYPE_BF16_REMAINDER);
  remainder.set_exp_avg_type(v1::MOMENT_TYPE_FP8);
  remainder.set_exp_avg_sq_type(v1::MOMENT_TYPE_FP16);
  v1::ModelSpec spec =
      MakeSpec("m", {MakeUnit("a", {Normal("current", {61, 33}, v1::FORMAT_FP8_TENSOR_CURRENT),
                                    Frozen("frozen", v1::FORMAT_FP8_TENSOR_CURRENT)}),
                     MakeUnit("b", {delayed}), MakeUnit("c", {Normal("nvfp4", {70, 39}, v1::FORMAT_NVFP4_2D)}),
                     MakeUnit("d", {remainder, Frozen("planes", v1::FORMAT_MXFP8)}),
                     MakeUnit("e", {Normal("small", {9, 5}, v1::FORMAT_FP32)}),
                     MakeUnit("f", {Owned(Normal("owned", {3, 32, 39}, v1::FORMAT_NVFP4_2D)),
                                    Owned(Frozen("owned.planes", v1::FORMAT_MXFP8))})});
  spec.set_small_parameter_bytes(100);
  return spec;
}

std::vector<float> Gradient(const ParameterSpec& spec, int64_t commit, int unit, int rank) {
  std::mt19937 random(static_cast<uint32_t>(commit * 64 + unit * 8 + rank));
  std::normal_distribution<float> normal;
  std::vector<float> values(spec.rows() * spec.columns());
  std::generate(values.begin(), values.end(), [&] { return normal(random); });
  return values;
}

std::string ReaderData(int64_t commit) { return absl::StrCat("for readers of ", commit); }

std::string ClientState(int rank, int64_t commit) { return absl::StrCat("rank ", rank, " behind commit ", commit); }

int64_t CommitNumber(Daemons& world, int node = 0) {
  return world.model(node).committed().commits.numbers().commit_number;
}

void Step(Daemons& world) {
  const int64_t commit = CommitNumber(world) + 1;
  const auto& units = world.model(0).spec().units;
  for (int unit = 0; unit < static_cast<int>(units.size()); ++unit) {
    world.Push(unit, [&](int rank) { return Gradient(units[unit].parameters[0], commit, unit, rank); });
  }
  int rank = 0;
  const auto with_state = [&](v1::Commit& command) {
    command.set_client_state(ClientState(rank++, commit));
    command.set_reader_data(ReaderData(commit));
  };
  ASSERT_EQ(world.Commit(with_state).commit_number, static_cast<uint64_t>(commit));
}

void StepTo(Daemons& world, int64_t commit) {
  while (CommitNumber(world) < commit) ASSERT_NO_FATAL_FAILURE(Step(world));
}

// Everything that the next steps depend on.
std::vector<std::string> StateOf(Daemons& world) {
  std::vector<std::string> state = world.Hashes();
  for (int node = 0; node < world.nodes(); ++node) {
    for (const ScalingBook::Record& record : world.model(node).committed().book.records()) {
      std::string& text = state.emplace_back(absl::StrCat(record.amax, " ", record.scale, " ", record.is_fresh));
      if (record.history.has_value()) absl::StrAppend(&text, " ", absl::StrJoin(record.history->amaxes, " "));
    }
  }
  return state;
}

std::vector<std::string> Uninterrupted(const std::vector<int>& devices) {
  Daemons world(devices);
  world.Create(Spec());
  world.Attach();
  StepTo(world, kLast);
  return StateOf(world);
}

// Creates the model anew, as at a daemon that is started in the place of another one.
void Empty(Daemons& world, int node) {
  ASSERT_OK(world.store(node).Delete("m", ""));
  ASSERT_OK(world.store(node).CreateOrJoin(Parse(Spec())));
}

// Trainers of all daemons meet in an epoch, and find what they have left.
void ExpectHealed(Daemons& world, int64_t commit) {
  world.FindAgain("m");
  world.Attach();
  for (int node = 0; node < world.nodes(); ++node) {
    EXPECT_EQ(CommitNumber(world, node), commit) << "node " << node;
    EXPECT_EQ(world.model(node).committed().commits.reader_data(), ReaderData(commit)) << "node " << node;
    EXPECT_EQ(world.model(node).state().history().id, world.model(0).state().history().id);
    EXPECT_EQ(world.model(node).state().history().lineage, world.model(0).state().history().lineage);
    EXPECT_OK(world.model(node).state().usable());
  }
  for (int rank = 0; rank < world.ranks(); ++rank) {
    EXPECT_EQ(world.trainer(rank).started().client_state, ClientState(rank, commit)) << "rank " << rank;
    EXPECT_EQ(world.trainer(rank).started().numbers.commit_number, commit);
  }
}

struct HealingCase {
  std::string name;
  std::vector<int> devices;
  std::vector<int> victims;
};

class HealingTest : public testing::TestWithParam<HealingCase> {
 protected:
  void SetUp() override {
    world_.Create(Spec());
    world_.Attach();
    StepTo(world_, kLost);
    world_.Kill(0);
  }

  Daemons world_{GetParam().devices};
};

TEST_P(HealingTest, EndsInTheBytesOfARunThatWasNotInterrupted) {
  for (const int victim : GetParam().victims) Empty(world_, victim);
  ASSERT_NO_FATAL_FAILURE(ExpectHealed(world_, kLost));
  StepTo(world_, kLast);
  EXPECT_EQ(StateOf(world_), Uninterrupted(GetParam().devices));
}

TEST_P(HealingTest, ADaemonThatKnowsOfItsLossIsHealedToo) {
  for (const int victim : GetParam().victims) {
    ASSERT_OK(world_.store(victim).Delete("m", ""));
    ASSERT_OK_AND_ASSIGN(const auto created, world_.store(victim).CreateToBeHealed(Parse(Spec()), "by this test"));
    EXPECT_THAT(created.model->state().usable(), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("by this test")));
  }
  ASSERT_NO_FATAL_FAILURE(ExpectHealed(world_, kLost));
  StepTo(world_, kLast);
  EXPECT_EQ(StateOf(world_), Uninterrupted(GetParam().devices));
}

TEST_P(HealingTest, TheSameDaemonIsHealedAgain) {
  for (int64_t commit = kLost; commit < kLast; ++commit) {
    for (const int victim : GetParam().victims) Empty(world_, victim);
    ASSERT_NO_FATAL_FAILURE(ExpectHealed(world_, commit));
    ASSERT_NO_FATAL_FAILURE(Step(world_));
    world_.Kill(0);
  }
  EXPECT_EQ(StateOf(world_), Uninterrupted(GetParam().devices));
}

INSTANTIATE_TEST_SUITE_P(Worlds, HealingTest,
                         testing::Values(HealingCase{"TwoNodesNode0", {1, 1}, {0}},
                                         HealingCase{"TwoNodesNode1", {1, 1}, {1}},
                                         HealingCase{"TwoDevicesEach", {2, 2}, {1}},
                                         HealingCase{"FourNodesTwoAtOnce", {1, 1, 1, 1}, {1, 3}}),
                         [](const auto& info) { return info.param.name; });

// Returns the end that a trainer hears whose daemon waits in vain.
absl::Status EndOf(FakeTrainer& trainer) {
  const EpochEndInfo* const ended = trainer.AwaitEnded();
  return ended == nullptr ? absl::InternalError("no end in time") : ended->why;
}

std::vector<absl::Status> Refusals(Daemons& world) {
  world.FindAgain("m");
  std::vector<std::unique_ptr<FakeTrainer>> trainers;
  for (int node = 0; node < world.nodes(); ++node) {
    for (int rank = 0; rank < world.ranks(); ++rank) {
      if (!world.model(node).world().Serves(rank)) continue;
      trainers.push_back(std::make_unique<FakeTrainer>(&world.model(node), rank));
      EXPECT_OK(trainers.back()->Attach());
    }
  }
  std::vector<absl::Status> refusals;
  for (const auto& trainer : trainers) refusals.push_back(EndOf(*trainer));
  return refusals;
}

auto IsRefused() { return StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("want one state on all nodes")); }

TEST(UnhealedTest, ANodeWhoseNextOneIsEmptyTooIsNot) {
  Daemons world({1, 1, 1});
  world.Create(Spec());
  world.Attach();
  StepTo(world, kLost);
  world.Kill(0);
  Empty(world, 1);
  Empty(world, 2);
  EXPECT_THAT(Refusals(world), testing::Each(IsRefused()));
  EXPECT_EQ(CommitNumber(world), kLost);
}

TEST(HealedTest, HealsTheNodeBeforeItThoughItHasSeenNoCommitSince) {
  Daemons world({1, 1, 1});
  world.Create(Spec());
  world.Attach();
  StepTo(world, kLost);
  world.Kill(0);
  Empty(world, 2);
  ASSERT_NO_FATAL_FAILURE(ExpectHealed(world, kLost));
  world.Kill(0);
  // Node 2 has heard at the start of that epoch what node 1's trainers have sent.
  Empty(world, 1);
  ASSERT_NO_FATAL_FAILURE(ExpectHealed(world, kLost));
  StepTo(world, kLast);
  EXPECT_EQ(StateOf(world), Uninterrupted({1, 1, 1}));
}

// Imports weights of its own, like a program that begins with them.
void Import(Daemons& world, int node) {
  Model& model = **world.store(node).Find("m");
  ASSERT_OK(model.changes().Import({.content = {.digest = 5}}, [] { return absl::OkStatus(); }));
}

TEST(UnhealedTest, WhatANodeHasImportedToBeginWithGivesWayToWhatOthersHaveTrained) {
  Daemons world({1, 1});
  world.Create(Spec());
  world.Attach();
  StepTo(world, kLost);
  world.Kill(0);
  Empty(world, 1);
  ASSERT_NO_FATAL_FAILURE(Import(world, 1));
  ASSERT_NO_FATAL_FAILURE(ExpectHealed(world, kLost));
}

TEST(UnhealedTest, WhatNode0HasImportedIsForAPersonToJudge) {
  Daemons world({1, 1});
  world.Create(Spec());
  world.Attach();
  StepTo(world, kLost);
  world.Kill(0);
  Empty(world, 0);
  ASSERT_NO_FATAL_FAILURE(Import(world, 0));
  EXPECT_THAT(Refusals(world), testing::Each(IsRefused()));
  EXPECT_EQ(CommitNumber(world, 1), kLost);
}

// Imports into one daemon alone: it has other bytes, and counts further than the others.
void Spoil(Daemons& world, int node) {
  Model& model = **world.store(node).Find("m");
  const auto write = [&]() -> absl::Status {
    for (const auto& shard : model.committed().shards) {
      for (const ShardExtent& extent : shard->extents()) {
        const ParameterSpec& parameter = shard->extents().Spec(extent);
        if (parameter.name != "small") continue;
        const std::vector<float> values((extent.rows.end - extent.rows.begin) * parameter.columns(), 3.0f);
        RETURN_IF_ERROR(shard->Write(extent, StateTensor::kMaster, values));
      }
    }
    return absl::OkStatus();
  };
  const auto digest = static_cast<absl::uint128>(node + 5);
  ASSERT_OK(
      model.changes().Import({.commit_number = kLast + 5, .version = kLast + 5, .content = {.digest = digest}}, write));
}

// A person says which node is right.
struct OrderCase {
  std::string name;
  std::vector<int> devices;
  int right = 0;
  std::vector<int> others;
};

class OrderedHealingTest : public testing::TestWithParam<OrderCase> {};

TEST_P(OrderedHealingTest, GoesOnFromTheStateThatIsRight) {
  Daemons world(GetParam().devices);
  world.Create(Spec());
  world.Attach();
  StepTo(world, kLost);
  const HistoryId before = world.model(0).state().history().id;
  world.Kill(0);
  for (const int other : GetParam().others) ASSERT_NO_FATAL_FAILURE(Spoil(world, other));
  for (const absl::Status& refusal : Refusals(world)) {
    EXPECT_THAT(refusal, IsRefused());
    EXPECT_THAT(refusal.message(), HasSubstr("`paramshardctl heal m --from=NODE` at node 0"));
  }
  ASSERT_OK_AND_ASSIGN(const HealingAnswer answer, world.cluster(0).OrderHealing("m", GetParam().right));
  EXPECT_TRUE(answer.ordered);
  ASSERT_NO_FATAL_FAILURE(ExpectHealed(world, kLost));
  for (int node = 0; node < world.nodes(); ++node) {
    EXPECT_EQ(world.model(node).state().history().parent, (HistoryParent{.history = before, .commit_number = kLost}));
  }
  StepTo(world, kLast);
  EXPECT_EQ(StateOf(world), Uninterrupted(GetParam().devices));
  EXPECT_EQ(world.cluster(0).healing_donor("m"), std::nullopt);
}

INSTANTIATE_TEST_SUITE_P(Worlds, OrderedHealingTest,
                         testing::Values(OrderCase{"Node1ForNode0", {1, 1}, 1, {0}},
                                         OrderCase{"Node0ForNode1", {1, 1}, 0, {1}},
                                         OrderCase{"TwoDevicesEach", {2, 2}, 0, {1}},
                                         OrderCase{"OneOfThree", {1, 1, 1}, 0, {1}},
                                         OrderCase{"OneOfThreeBesideNode0", {1, 1, 1}, 2, {0}}),
                         [](const auto& info) { return info.param.name; });

// Ranks whose client states are not kept anywhere go on with the client states of the donor's ranks.
TEST(HealedTest, OneNodeHealsAllOthers) {
  Daemons world({1, 1, 1});
  world.Create(Spec());
  world.Attach();
  StepTo(world, kLost);
  world.Kill(0);
  for (const int other : {0, 2}) ASSERT_NO_FATAL_FAILURE(Spoil(world, other));
  EXPECT_THAT(Refusals(world), testing::Each(IsRefused()));
  ASSERT_OK(world.cluster(0).OrderHealing("m", 1).status());
  world.FindAgain("m");
  world.Attach();
  for (int rank = 0; rank < world.ranks(); ++rank) {
    EXPECT_EQ(world.trainer(rank).started().client_state, ClientState(rank == 2 ? 1 : rank, kLost)) << "rank " << rank;
  }
  StepTo(world, kLast);
  EXPECT_EQ(StateOf(world), Uninterrupted({1, 1, 1}));
}

// The node's state is not the one that the order has named any more.
TEST(UnhealedTest, AStateThatNobodyHasGivenUpStays) {
  Daemons world({1, 1});
  world.Create(Spec());
  world.Attach();
  StepTo(world, kLost);
  world.Kill(0);
  Model& model = world.model(1);
  FakeTrainer trainer(&model, 1);
  ASSERT_OK(trainer.Attach());
  const EpochStart start{
      .epoch = 50,
      .lineage = "",
      .history_id = RandomHistoryId().ToString(),
      .active = {0, 1},
      .healings = {{.receiver = 1,
                    .donor = 0,
                    .gives_up = Healing::GivenUp{.history_id = RandomHistoryId().ToString(), .commit_number = kLost}}}};
  model.trainers().OnEpochStart(start);
  EXPECT_FALSE(model.trainers().activity().running);
  EXPECT_EQ(CommitNumber(world, 1), kLost);
  EXPECT_OK(model.state().usable());
}

// The history that begins is in the journals of all before a commit is made in it.
TEST(HealedTest, AHistoryThatAnOrderHasBegunOutlivesItsServers) {
  FakeKeptStore kept[2], left[2];
  Daemons::Options options{.kept = {&kept[0], &kept[1]}, .moves = {.moves = true}};
  HistoryId history;
  {
    Daemons world({1, 1}, options);
    world.Create(Spec());
    world.Attach();
    StepTo(world, kLost);
    world.Kill(0);
    ASSERT_NO_FATAL_FAILURE(Spoil(world, 0));
    EXPECT_THAT(Refusals(world), testing::Each(IsRefused()));
    ASSERT_OK(world.cluster(0).OrderHealing("m", 1).status());
    ASSERT_NO_FATAL_FAILURE(ExpectHealed(world, kLost));
    history = world.model(1).state().history().id;
    for (int node = 0; node < 2; ++node) CopyKept(kept[node], left[node]);
  }
  Daemons next({1, 1}, {.kept = {&left[0], &left[1]}, .moves = {.moves = true}});
  next.TakeOver("m");
  for (int node = 0; node < 2; ++node) {
    EXPECT_EQ(next.model(node).state().history().id, history);
    EXPECT_TRUE(next.model(node).state().history().parent.has_value());
    EXPECT_TRUE(next.model(node).state().untouched());
  }
  next.Attach();
  StepTo(next, kLast);
  EXPECT_EQ(StateOf(next), Uninterrupted({1, 1}));
}

TEST(HealedTest, OutlivesItsServer) {
  FakeKeptStore kept[2], left[2];
  Daemons::Options options{.kept = {&kept[0], &kept[1]}, .moves = {.moves = true}};
  {
    Daemons world({1, 1}, options);
    world.Create(Spec());
    world.Attach();
    StepTo(world, kLost);
    world.Kill(0);
    Empty(world, 1);
    ASSERT_NO_FATAL_FAILURE(ExpectHealed(world, kLost));
    StepTo(world, kLost + 1);
    for (int node = 0; node < 2; ++node) CopyKept(kept[node], left[node]);
  }
  Daemons next({1, 1}, {.kept = {&left[0], &left[1]}, .moves = {.moves = true}});
  next.TakeOver("m");
  next.Attach();
  StepTo(next, kLast);
  EXPECT_EQ(StateOf(next), Uninterrupted({1, 1}));
}

// A node that dies before it is healed is lost as it was: no trainer trains on from its initial values.
TEST(HealedTest, AServerThatDiesBeforeLeavesWhatIsLost) {
  FakeKeptStore kept[2], left;
  Daemons world({1, 1}, {.kept = {&kept[0], &kept[1]}, .moves = {.moves = true}});
  world.Create(Spec());
  world.Attach();
  StepTo(world, kLost);
  world.Kill(0);
  ASSERT_OK(world.store(1).Delete("m", ""));
  ASSERT_OK(world.store(1).CreateToBeHealed(Parse(Spec()), "by this test"));
  CopyKept(kept[1], left);
  world.FindAgain("m");
  world.Attach();
  EXPECT_EQ(CommitNumber(world, 1), kLost);

  FakeKeptStore none;
  Daemons next({1, 1}, {.kept = {&none, &left}, .moves = {.moves = true}});
  ASSERT_OK(next.store(1).TakeOver());
  EXPECT_THAT(next.store(1).Find("m").status(),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("a replica was to heal it")));
}

}  // namespace
}  // namespace paramshard::server
