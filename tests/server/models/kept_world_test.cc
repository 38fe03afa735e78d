// Models of two daemons that a next world takes over: what each server leaves when it dies is a copy of its kept memory
// at that moment.

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/keeper/fake_kept_store.h"
#include "tests/server/models/daemons.h"
#include "tests/server/models/left_memory.h"
#include "tests/server/models/watched_device.h"
#include "tests/server/state/test_spec.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

using ::testing::HasSubstr;

constexpr int kNodes = 2;

// Where a server is in the second commit.
enum class Moment { kPrepared, kDecided, kStepped, kSettled, kUnwritten, kAnswered };
constexpr std::array kMoments = {Moment::kPrepared, Moment::kDecided, Moment::kStepped, Moment::kAnswered};
// Behind the exchange of amaxes, where both daemons are then: they are in the book, or the commit is to be written
// down.
constexpr std::array kLateMoments = {Moment::kSettled, Moment::kUnwritten};
constexpr std::array kMomentNames = {"Prepared", "Decided", "Stepped", "Settled", "Unwritten", "Answered"};

// Memory that the keeper of each node holds.
using Kept = std::vector<std::unique_ptr<FakeKeptStore>>;

std::unique_ptr<FakeKeptStore> CopyOf(FakeKeptStore& from) {
  auto copy = std::make_unique<FakeKeptStore>();
  CopyKept(from, *copy);
  return copy;
}
Kept NewKept() {
  Kept kept;
  for (int node = 0; node < kNodes; ++node) kept.push_back(std::make_unique<FakeKeptStore>());
  return kept;
}
Kept CopyOf(FakeKeptStore& of0, FakeKeptStore& of1) {
  Kept kept;
  kept.push_back(CopyOf(of0));
  kept.push_back(CopyOf(of1));
  return kept;
}

v1::ParameterSpec Normal(std::string name, std::vector<int64_t> shape, v1::Format format) {
  v1::ParameterSpec parameter = MakeParameter(std::move(name), std::move(shape), format);
  parameter.mutable_initial_value()->mutable_normal()->set_standard_deviation(0.5);
  return parameter;
}

v1::ModelSpec Spec(int shard_size) {
  v1::ParameterSpec delayed = Normal("delayed", {61, 33}, v1::FORMAT_FP8_TENSOR_DELAYED);
  delayed.mutable_delayed_scaling()->set_history_length(8);
  v1::ParameterSpec remainder = Normal("remainder", {40, 130}, v1::FORMAT_BF16);
  remainder.set_master_type(v1::MASTER_TYPE_BF16_REMAINDER);
  remainder.set_exp_avg_type(v1::MOMENT_TYPE_FP8);
  v1::ModelSpec spec = MakeSpec(
      "m", {MakeUnit("a", {Normal("current", {61, 33}, v1::FORMAT_FP8_TENSOR_CURRENT)}), MakeUnit("b", {delayed}),
            MakeUnit("c", {Normal("nvfp4", {70, 39}, v1::FORMAT_NVFP4_2D)}), MakeUnit("d", {remainder}),
            MakeUnit("e", {Normal("small", {9, 5}, v1::FORMAT_FP8_TENSOR_DELAYED)}),
            MakeUnit("f", {Owned(Normal("owned", {3, 16, 39}, v1::FORMAT_NVFP4_2D))})});
  const v1::Optimizer optimizers[] = {v1::OPTIMIZER_ADAMW,        v1::OPTIMIZER_SGD_NESTEROV, v1::OPTIMIZER_LION,
                                      v1::OPTIMIZER_SGD_MOMENTUM, v1::OPTIMIZER_SGD,          v1::OPTIMIZER_ADAMW};
  for (int i = 0; i < spec.units_size(); ++i) {
    spec.add_groups()->set_optimizer(optimizers[i]);
    spec.mutable_units(i)->mutable_parameters(0)->set_group(i);
  }
  spec.set_shard_size(shard_size);
  spec.set_small_parameter_bytes(100);
  return spec;
}

std::vector<float> Gradient(const ParameterSpec& spec, int64_t commit, int unit, int rank) {
  std::mt19937 random(static_cast<uint32_t>(commit * 64 + unit * 4 + rank));
  std::normal_distribution<float> normal;
  std::vector<float> values(spec.rows() * spec.columns());
  std::generate(values.begin(), values.end(), [&] { return normal(random); });
  return values;
}

class KeptWorldTest : public testing::TestWithParam<std::tuple<bool, Moment, Moment>> {
 protected:
  static int shard_size() { return std::get<0>(GetParam()) ? kNodes : 1; }

  std::unique_ptr<Daemons> World(Kept& kept) {
    Daemons::Options options{.kept = {kept[0].get(), kept[1].get()},
                             .moves = {.moves = true, .rule = {.most_bands = 5, .least_elements = 512}}};
    options.make_device = [this](int node, int device) {
      return std::make_unique<WatchedDevice>(MakeCpuDevice(device), &hooks_[node]);
    };
    options.before_answer = [this](int node) { return before_answer_[node].Call(), absl::OkStatus(); };
    return std::make_unique<Daemons>(std::vector<int>(kNodes, 1), options);
  }
  static int64_t commit_number(Daemons& world) { return world.model(0).committed().commits.numbers().commit_number; }
  // The next step of the training: commit 3 leaves a parameter out.
  static void Step(Daemons& world) {
    const int64_t commit = commit_number(world) + 1;
    const auto& units = world.model(0).spec().units;
    for (int unit = 0; unit < static_cast<int>(units.size()); ++unit) {
      world.Push(unit, [&](int rank) {
        if (commit == 3 && unit == 1) return std::vector<float>{};
        return Gradient(units[unit].parameters[0], commit, unit, rank);
      });
    }
    const auto scaled = [](v1::Commit& command) {
      command.set_gradient_scale(3);
      command.set_max_grad_norm(0.75f);
    };
    ASSERT_EQ(world.Commit(scaled).commit_number, static_cast<uint64_t>(commit));
  }
  static void StepTo(Daemons& world, int64_t commit) {
    while (commit_number(world) < commit) ASSERT_NO_FATAL_FAILURE(Step(world));
  }
  // Everything that the next steps depend on.
  static std::vector<std::string> StateOf(Daemons& world) {
    std::vector<std::string> state = world.Hashes();
    for (int node = 0; node < kNodes; ++node) {
      for (const ScalingBook::Record& record : world.model(node).committed().book.records()) {
        std::string& text = state.emplace_back(absl::StrCat(record.amax, " ", record.scale, " ", record.is_fresh));
        if (record.history.has_value()) absl::StrAppend(&text, " ", absl::StrJoin(record.history->amaxes, " "));
      }
    }
    return state;
  }
  // A world without an interruption; and what its servers would leave in the second commit.
  std::vector<std::string> Train(int64_t commits, std::map<Moment, Kept>& left) {
    for (const Moment moment : kMoments) left[moment].resize(kNodes);
    for (const Moment moment : kLateMoments) left[moment].resize(kNodes);
    Kept kept = NewKept();
    const std::unique_ptr<Daemons> world = World(kept);
    world->Create(Spec(shard_size()));
    world->Attach();
    StepTo(*world, 1);
    for (int node = 0; node < kNodes; ++node) {
      const auto leave = [&kept, node](Kept& at) { return [&kept, &at, node] { at[node] = CopyOf(*kept[node]); }; };
      world->cluster(node).BeforeVote([copy = leave(left[Moment::kPrepared])] { return copy(), absl::OkStatus(); });
      hooks_[node].before_step.Set(leave(left[Moment::kDecided]));
      hooks_[node].after_step.Set(leave(left[Moment::kStepped]));
      hooks_[node].before_encode.Set(leave(left[Moment::kSettled]));
      before_answer_[node].Set(leave(left[Moment::kUnwritten]));
    }
    StepTo(*world, 2);
    for (int node = 0; node < kNodes; ++node) {
      left[Moment::kAnswered][node] = CopyOf(*kept[node]);
      world->cluster(node).BeforeVote([] { return absl::OkStatus(); });
      hooks_[node].before_step.Set(nullptr);
      hooks_[node].after_step.Set(nullptr);
      hooks_[node].before_encode.Set(nullptr);
      before_answer_[node].Set(nullptr);
    }
    StepTo(*world, commits);
    return StateOf(*world);
  }

  WatchedDevice::Hooks hooks_[kNodes];
  Hook before_answer_[kNodes];
};

TEST_P(KeptWorldTest, GoesOnFromTheSameCommitWhereverItsServersDied) {
  const auto& [sharded, moment0, moment1] = GetParam();
  if (moment0 == Moment::kPrepared && moment1 != Moment::kPrepared) {
    GTEST_SKIP() << "node 0 tells nobody what it has not written down";
  }
  constexpr int64_t kCommits = 12;  // ten more than the one that was cut off
  std::map<Moment, Kept> left;
  const std::vector<std::string> expected = Train(kCommits, left);
  if (HasFatalFailure()) return;
  Kept kept = CopyOf(*left[moment0][0], *left[moment1][1]);
  {
    const std::unique_ptr<Daemons> world = World(kept);
    world->TakeOver("m");
    for (int node = 0; node < kNodes; ++node) {
      EXPECT_EQ(world->model(node).committed().commits.numbers().commit_number, moment0 == Moment::kPrepared ? 1 : 2);
      EXPECT_OK(world->model(node).state().doubt());
      // Where both servers finished the step alone, each daemon knows amaxes of its own rows only, which cannot be
      // saved.
      const Moment moment = node == 0 ? moment0 : moment1;
      const bool finished = moment0 != Moment::kPrepared && moment != Moment::kAnswered;
      const absl::Status held = world->model(node).state().Hold().status();
      if (sharded && finished) {
        EXPECT_THAT(held, StatusIs(absl::StatusCode::kUnavailable, HasSubstr("amaxes of the last commit")));
      } else {
        EXPECT_OK(held);
        world->model(node).copies().EndCopies();
      }
    }
  }
  // The next epoch settles what daemons have not exchanged; node 1 dies before it writes that down.
  const std::unique_ptr<FakeKeptStore> unsettled = CopyOf(*kept[1]);
  {
    const std::unique_ptr<Daemons> world = World(kept);
    world->TakeOver("m");
    world->Attach();
  }
  Kept half = CopyOf(*kept[0], *unsettled);
  for (Kept* const from : {&kept, &half}) {
    for (const int64_t commit : {int64_t{3}, kCommits}) {
      const std::unique_ptr<Daemons> world = World(*from);
      world->TakeOver("m");
      world->Attach();
      StepTo(*world, commit);
      if (commit == kCommits) {
        EXPECT_EQ(StateOf(*world), expected);
      }
    }
  }
}

std::string NameOf(const testing::TestParamInfo<std::tuple<bool, Moment, Moment>>& info) {
  return absl::StrCat(std::get<0>(info.param) ? "Sharded" : "Replicas", "Node0",
                      kMomentNames[static_cast<int>(std::get<1>(info.param))], "Node1",
                      kMomentNames[static_cast<int>(std::get<2>(info.param))]);
}

INSTANTIATE_TEST_SUITE_P(, KeptWorldTest,
                         testing::Combine(testing::Bool(), testing::ValuesIn(kMoments), testing::ValuesIn(kMoments)),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(Late, KeptWorldTest,
                         testing::Combine(testing::Bool(), testing::ValuesIn(kLateMoments),
                                          testing::Values(Moment::kSettled, Moment::kUnwritten, Moment::kAnswered)),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(LateNode1, KeptWorldTest,
                         testing::Combine(testing::Bool(), testing::Values(Moment::kAnswered),
                                          testing::ValuesIn(kLateMoments)),
                         NameOf);

// A world in which node 0 has lost what it held.
class ForgetfulWorldTest : public KeptWorldTest {};

TEST_P(ForgetfulWorldTest, ACommitThatNodeZeroKnowsNothingOfStaysInDoubtAndIsAskedForAgain) {
  std::map<Moment, Kept> left;
  Train(3, left);
  Kept kept = NewKept();
  kept[1] = CopyOf(*left[Moment::kPrepared][1]);
  {
    const std::unique_ptr<Daemons> world = World(kept);
    ASSERT_OK(world->store(1).TakeOver());
    ASSERT_OK_AND_ASSIGN(const std::shared_ptr<Model> model, world->store(1).Find("m"));
    EXPECT_THAT(model->state().doubt(), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("commit 2 is in doubt")));
    EXPECT_EQ(model->committed().commits.numbers().commit_number, 1);
  }
  // Node 0 has its memory again.
  kept[0] = CopyOf(*left[Moment::kAnswered][0]);
  const std::unique_ptr<Daemons> world = World(kept);
  world->TakeOver("m");
  EXPECT_OK(world->model(1).state().doubt());
  EXPECT_EQ(world->model(1).committed().commits.numbers().commit_number, 2);
}

INSTANTIATE_TEST_SUITE_P(, ForgetfulWorldTest, testing::Values(std::tuple(true, Moment::kAnswered, Moment::kPrepared)),
                         [](const auto&) { return "Sharded"; });

}  // namespace
}  // namespace paramshard::server
