// Gradients that are discarded leave no trace: what follows is what it would be without them, bit for bit.

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/models/daemons.h"
#include "tests/server/state/test_spec.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kW = 0;
constexpr int kScaled = 1;
constexpr int kRows = 64;
constexpr int kColumns = 32;

using Gradients = std::function<std::vector<float>(int rank)>;

// Small integers, whose sums over the ranks are exact, another for every seed, rank and element.
Gradients Exact(uint32_t seed) {
  return [seed](int rank) {
    std::mt19937 random(seed * 16 + static_cast<uint32_t>(rank));
    std::vector<float> values(kRows * kColumns);
    for (float& value : values) value = static_cast<float>(static_cast<int>(random() % 65) - 32);
    return values;
  };
}

std::vector<float> NotANumber(int) {
  return std::vector<float>(kRows * kColumns, std::numeric_limits<float>::quiet_NaN());
}

struct Case {
  std::string name;
  std::vector<int> device_counts;
  v1::GradientSums sums = v1::GRADIENT_SUMS_AT_PUSH;
  int shard_size = 0;  // 0: the devices of a daemon
};

class DiscardTest : public testing::TestWithParam<Case> {
 protected:
  static v1::ModelSpec Spec() {
    v1::ModelSpec spec = MakeSpec(
        "m", {MakeUnit("w", {MakeParameter("w.w", {kRows, kColumns})}),
              MakeUnit("scaled", {MakeParameter("scaled.w", {kRows, kColumns}, v1::FORMAT_FP8_TENSOR_CURRENT)})});
    for (v1::UnitSpec& unit : *spec.mutable_units()) {
      unit.mutable_parameters(0)->mutable_initial_value()->mutable_normal()->set_standard_deviation(1);
    }
    spec.set_gradient_sums(GetParam().sums);
    if (GetParam().shard_size > 0) spec.set_shard_size(GetParam().shard_size);
    return spec;
  }

  // Two steps, with `disturb(step)` before each, when nothing of it is pushed.
  static std::vector<std::string> Train(const std::function<void(Daemons&, int step)>& disturb) {
    Daemons daemons(GetParam().device_counts);
    daemons.Create(Spec());
    daemons.Attach();
    for (int step = 0; step < 2; ++step) {
      disturb(daemons, step);
      daemons.Push(kW, Exact(2 * step));
      if (step == 1) daemons.Push(kScaled, Exact(7));
      daemons.Push(kW, Exact(2 * step + 1));
      const wire::CommitRecord answer = daemons.Commit();
      EXPECT_EQ(answer.version, step + 1);
      norms_.push_back(answer.gradient_norm);
    }
    return daemons.Hashes();
  }

  static void DropSomething(Daemons& daemons, int step) {
    daemons.Push(kW, Exact(100 + step));
    daemons.Push(kScaled, Exact(200));
    daemons.Push(kW, Exact(300));
    daemons.Discard();
  }

  void SetUp() override { norms_.clear(); }

  static inline std::vector<double> norms_;  // of all steps trained
};

INSTANTIATE_TEST_SUITE_P(
    Worlds, DiscardTest,
    testing::Values(Case{.name = "OneDaemonAtPush", .device_counts = {2}},
                    Case{.name = "OneDaemonAtCommit", .device_counts = {2}, .sums = v1::GRADIENT_SUMS_AT_COMMIT},
                    Case{.name = "Replicas", .device_counts = {2, 2}},
                    Case{.name = "OneGroup", .device_counts = {1, 2}, .shard_size = 3}),
    [](const testing::TestParamInfo<Case>& info) { return info.param.name; });

TEST_P(DiscardTest, TrainingGoesOnAsIfTheDroppedPushesHadNeverBeen) {
  const std::vector<std::string> expected = Train([](Daemons&, int) {});
  EXPECT_EQ(Train(DropSomething), expected);
  EXPECT_EQ(Train([](Daemons& daemons, int step) {
              DropSomething(daemons, step);
              daemons.Discard();
              DropSomething(daemons, step + 1);
            }),
            expected);
  for (size_t i = 2; i < norms_.size(); ++i) EXPECT_EQ(norms_[i], norms_[i % 2]) << "training " << i / 2;
}

TEST_P(DiscardTest, WhatIsNotANumberIsDroppedWithTheRest) {
  const std::vector<std::string> expected = Train([](Daemons&, int) {});
  EXPECT_EQ(Train([](Daemons& daemons, int) {
              daemons.Push(kW, NotANumber);
              daemons.Push(kScaled, NotANumber);
              daemons.Discard();
            }),
            expected);
}

TEST_P(DiscardTest, ATrainerThatDiesAroundItChangesNothing) {
  const std::vector<std::string> expected = Train([](Daemons&, int) {});
  EXPECT_EQ(Train([](Daemons& daemons, int step) {
              DropSomething(daemons, step);
              if (step == 1) daemons.Push(kScaled, Exact(400));
              daemons.Kill(step);
              daemons.Attach();
            }),
            expected);
}

TEST_P(DiscardTest, ACommitWithoutAPushAfterItLeavesParametersAsTheyAre) {
  Daemons daemons(GetParam().device_counts);
  daemons.Create(Spec());
  daemons.Attach();
  const std::vector<std::string> created = daemons.Hashes();
  DropSomething(daemons, 0);
  const wire::CommitRecord answer = daemons.Commit();
  EXPECT_EQ(answer.version, 1);
  EXPECT_EQ(answer.gradient_norm, 0);
  EXPECT_EQ(daemons.Hashes(), created);
}

TEST_P(DiscardTest, ACommitInItsPlaceEndsTheEpochAndNamesBoth) {
  Daemons daemons(GetParam().device_counts);
  daemons.Create(Spec());
  daemons.Attach();
  daemons.Push(kW, Exact(1));
  const int last = daemons.ranks() - 1;
  for (int rank = 0; rank < last; ++rank) daemons.trainer(rank).Discard();
  daemons.trainer(last).Commit(1);
  for (int rank = 0; rank <= last; ++rank) {
    const EpochEndInfo* const ended = daemons.trainer(rank).AwaitEnded();
    ASSERT_NE(ended, nullptr);
    EXPECT_EQ(ended->why.code(), absl::StatusCode::kFailedPrecondition) << ended->why.message();
    EXPECT_THAT(ended->why.message(), AllOf(HasSubstr("sent discard"), HasSubstr("sent commit 1")));
    EXPECT_THAT(ended->why.message(), HasSubstr(absl::StrCat("rank ", last, " sent commit 1")));
    EXPECT_EQ(ended->numbers.commit_number, 0);
  }
}

}  // namespace
}  // namespace paramshard::server
