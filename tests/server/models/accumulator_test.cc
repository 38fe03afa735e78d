// Accumulators of either type, in every kind of world, against a training in plain loops that follows the letter of
// docs/reference/numerics.md.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
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

using ::testing::HasSubstr;

constexpr int kRows = 37;
constexpr int kColumns = 33;
constexpr int kElements = kRows * kColumns;

struct Case {
  std::string name;
  std::vector<int> device_counts;
  v1::GradientSums sums = v1::GRADIENT_SUMS_AT_PUSH;
  int shard_size = 0;  // 0: the devices of a daemon
  v1::GradientType accumulators = v1::GRADIENT_TYPE_BF16;
  int most_pushes = 0;  // of a unit in a step; 0: as the accumulators say
  v1::GradientType gradients = v1::GRADIENT_TYPE_FP32;
  bool keeps_pushes = false;  // accumulators have the type of gradients
};

float FromBits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// Rounds to the nearest of the two BF16 numbers around it, by distance; a tie to the one whose last bit is 0.
float RoundToBF16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  const float below = FromBits(bits & 0xffff0000u);
  const float above = FromBits((bits & 0xffff0000u) + 0x10000u);
  const double to_below = std::fabs(static_cast<double>(value) - below);
  const double to_above = std::fabs(static_cast<double>(above) - value);
  if (to_below != to_above) return to_below < to_above ? below : above;
  return (bits & 0x10000u) == 0 ? below : above;
}

// Gradients of all magnitudes, so that the order and the number of roundings show.
std::vector<float> Gradients(uint32_t seed, int rank, v1::GradientType type) {
  std::mt19937 random(seed * 64 + static_cast<uint32_t>(rank));
  std::vector<float> values(kElements);
  for (float& value : values) {
    value = std::ldexp(static_cast<float>(random() % 262143) - 131071.0f, static_cast<int>(random() % 24) - 20);
    if (type == v1::GRADIENT_TYPE_BF16) value = RoundToBF16(value);
  }
  return values;
}

class AccumulatorTest : public testing::TestWithParam<Case> {
 protected:
  static v1::ModelSpec Spec() {
    v1::ParameterSpec parameter = MakeParameter("w.w", {kRows, kColumns});
    parameter.set_gradient_type(GetParam().gradients);
    v1::ModelSpec spec = MakeSpec("m", {MakeUnit("w", {parameter})});
    // Ranks own rows, though they are few.
    spec.set_small_parameter_bytes(0);
    spec.set_gradient_sums(GetParam().sums);
    spec.set_accumulator_type(GetParam().accumulators);
    if (GetParam().shard_size > 0) spec.set_shard_size(GetParam().shard_size);
    if (GetParam().most_pushes > 0) spec.set_pushes_per_step(GetParam().most_pushes);
    return spec;
  }

  void SetUp() override {
    daemons_.Create(Spec());
    daemons_.Attach();
    for (int count : GetParam().device_counts) ranks_ += count;
    group_ = GetParam().shard_size > 0 ? GetParam().shard_size : GetParam().device_counts.front();
    const auto kept_in = GetParam().keeps_pushes ? GetParam().gradients : GetParam().accumulators;
    for (int node = 0; node < daemons_.nodes(); ++node) {
      for (const auto& shard : daemons_.model(node).committed().shards) {
        for (const ShardExtent& extent : shard->extents()) {
          EXPECT_EQ(shard->memory().GradientOf(extent).type, static_cast<GradientType>(kept_in));
        }
      }
    }
  }

  static std::vector<float> GradientsOf(uint32_t seed, int rank) { return Gradients(seed, rank, GetParam().gradients); }

  void Push(uint32_t seed) {
    daemons_.Push(0, [&](int rank) { return GradientsOf(seed, rank); });
  }

  // Step 1 and 2 of "Sums of gradients": over the ranks of a group, then over the groups.
  std::vector<float> Sum(uint32_t seed) const {
    std::vector<float> sum;
    for (int start = 0; start < ranks_; start += group_) {
      std::vector<float> of_group = GradientsOf(seed, start);
      for (int rank = start + 1; rank < start + group_; ++rank) Add(GradientsOf(seed, rank), of_group);
      start == 0 ? void(sum = of_group) : Add(of_group, sum);
    }
    return sum;
  }
  static void Add(const std::vector<float>& more, std::vector<float>& sum) {
    for (int i = 0; i < kElements; ++i) sum[i] = sum[i] + more[i];
  }

  // Step 3, for the pushes `seeds` of one step.
  std::vector<float> Accumulated(const std::vector<uint32_t>& seeds) const {
    std::vector<float> stored;
    for (uint32_t seed : seeds) {
      std::vector<float> sum = Sum(seed);
      if (!stored.empty()) {
        for (int i = 0; i < kElements; ++i) sum[i] = stored[i] + sum[i];
      }
      stored = sum;
      if (GetParam().accumulators == v1::GRADIENT_TYPE_BF16) {
        for (float& value : stored) value = RoundToBF16(value);
      }
    }
    return stored;
  }

  // "Unscale, mean and clip" without a scale or a limit, then "Adam" with the hyper-parameters of CommitCommand().
  void ExpectCommit(const std::vector<uint32_t>& seeds) {
    const wire::CommitRecord answer = daemons_.Commit();
    const std::vector<float> gradients = Accumulated(seeds);
    const float k = 1.0f / static_cast<float>(ranks_);
    double squares = 0;
    ++step_;
    const auto c1 = static_cast<float>(1 - std::pow(static_cast<double>(0.9f), step_));
    const auto c2 = static_cast<float>(1 - std::pow(static_cast<double>(0.99f), step_));
    for (int i = 0; i < kElements; ++i) {
      squares += static_cast<double>(gradients[i]) * gradients[i];
      const float g = gradients[i] * k;
      exp_avg_[i] = 0.9f * exp_avg_[i] + (1 - 0.9f) * g;
      exp_avg_sq_[i] = 0.99f * exp_avg_sq_[i] + ((1 - 0.99f) * g) * g;
      const float d = std::sqrt(exp_avg_sq_[i] / c2) + 1e-8f;
      master_[i] = master_[i] - 0.1f * ((exp_avg_[i] / c1) / d + 0.0f * master_[i]);
    }
    EXPECT_EQ(answer.version, step_);
    const double norm = static_cast<double>(k) * std::sqrt(squares);
    EXPECT_NEAR(answer.gradient_norm, norm, norm * 1e-12) << "of what accumulators hold";
    ExpectState();
  }

  void ExpectState() {
    for (int node = 0; node < daemons_.nodes(); ++node) {
      for (const auto& shard : daemons_.model(node).committed().shards) {
        for (const ShardExtent& extent : shard->extents()) {
          ExpectRows(*shard, extent, StateTensor::kMaster, master_);
          ExpectRows(*shard, extent, StateTensor::kFirstMoment, exp_avg_);
          ExpectRows(*shard, extent, StateTensor::kSecondMoment, exp_avg_sq_);
        }
      }
    }
  }

  void ExpectRows(const Shard& shard, const ShardExtent& extent, StateTensor tensor,
                  const std::vector<float>& whole) const {
    absl::ReaderMutexLock lock(&shard.mutex());
    ASSERT_OK_AND_ASSIGN(const std::vector<float> rows, shard.arrays().Read(extent, tensor));
    const auto first = whole.begin() + extent.rows.begin * kColumns;
    EXPECT_TRUE(std::equal(rows.begin(), rows.end(), first, first + extent.elements))
        << "tensor " << static_cast<int>(tensor) << " of the rows from " << extent.rows.begin << " at step " << step_;
  }

  Daemons daemons_{GetParam().device_counts};
  int ranks_ = 0;
  int group_ = 0;
  int64_t step_ = 0;
  std::vector<float> master_ = std::vector<float>(kElements);
  std::vector<float> exp_avg_ = master_;
  std::vector<float> exp_avg_sq_ = master_;
};

// BF16 gradients that are pushed once.
Case Once(std::string name, std::vector<int> device_counts, bool keeps_pushes = false) {
  return {.name = std::move(name),
          .device_counts = std::move(device_counts),
          .accumulators = v1::GRADIENT_TYPE_FP32,
          .most_pushes = 1,
          .gradients = v1::GRADIENT_TYPE_BF16,
          .keeps_pushes = keeps_pushes};
}

INSTANTIATE_TEST_SUITE_P(
    Worlds, AccumulatorTest,
    testing::Values(Case{.name = "OneRank", .device_counts = {1}}, Case{.name = "OneDaemon", .device_counts = {3}},
                    Case{.name = "AtCommit", .device_counts = {3}, .sums = v1::GRADIENT_SUMS_AT_COMMIT},
                    Case{.name = "Replicas", .device_counts = {2, 2}},
                    Case{.name = "ManyReplicas", .device_counts = {1, 1, 1}},
                    Case{.name = "OneGroup", .device_counts = {1, 2}, .shard_size = 3},
                    Case{.name = "FP32", .device_counts = {2, 2}, .accumulators = v1::GRADIENT_TYPE_FP32},
                    Case{.name = "FP32AtCommit",
                         .device_counts = {3},
                         .sums = v1::GRADIENT_SUMS_AT_COMMIT,
                         .accumulators = v1::GRADIENT_TYPE_FP32},
                    Once("OneRankOnce", {1}, /*keeps_pushes=*/true), Once("TwoRanksOnce", {2}),
                    Once("ThreeRanksOnce", {3}), Once("ReplicasOnce", {1, 1}),
                    Case{.name = "AtCommitOnce",
                         .device_counts = {3},
                         .sums = v1::GRADIENT_SUMS_AT_COMMIT,
                         .accumulators = v1::GRADIENT_TYPE_FP32,
                         .most_pushes = 1,
                         .gradients = v1::GRADIENT_TYPE_BF16},
                    Case{.name = "OneRankOnceAtCommit",
                         .device_counts = {1},
                         .sums = v1::GRADIENT_SUMS_AT_COMMIT,
                         .accumulators = v1::GRADIENT_TYPE_FP32,
                         .most_pushes = 1,
                         .gradients = v1::GRADIENT_TYPE_BF16,
                         .keeps_pushes = true},
                    Case{.name = "FP32GradientsOnce",
                         .device_counts = {1},
                         .accumulators = v1::GRADIENT_TYPE_FP32,
                         .most_pushes = 1},
                    Case{.name = "Twice",
                         .device_counts = {1},
                         .accumulators = v1::GRADIENT_TYPE_FP32,
                         .most_pushes = 2,
                         .gradients = v1::GRADIENT_TYPE_BF16}),
    [](const testing::TestParamInfo<Case>& info) { return info.param.name; });

TEST_P(AccumulatorTest, TrainingFollowsTheLetterOfNumerics) {
  for (uint32_t step = 1; step <= 4; ++step) {
    Push(step);
    ExpectCommit({step});
  }
}

TEST_P(AccumulatorTest, WhatWasPushedBeforeADeathOrADiscardLeavesNoTrace) {
  Push(1);
  ExpectCommit({1});
  Push(2);
  daemons_.Kill(0);
  ExpectState();
  daemons_.Attach();
  Push(3);
  daemons_.Discard();
  Push(4);
  ExpectCommit({4});
  Push(5);
  ExpectCommit({5});
}

TEST_P(AccumulatorTest, APushTooManyIsRefused) {
  int most = GetParam().most_pushes;
  if (GetParam().accumulators == v1::GRADIENT_TYPE_BF16) most = 1;
  Push(1);
  if (most != 1) Push(2);
  if (most == 0) {
    ExpectCommit({1, 2});
    return;
  }
  for (int rank = 0; rank < ranks_; ++rank) daemons_.trainer(rank).SendPush(0, 1);
  for (int rank = 0; rank < ranks_; ++rank) {
    const EpochEndInfo* const ended = daemons_.trainer(rank).AwaitEnded();
    ASSERT_NE(ended, nullptr);
    EXPECT_THAT(ended->why, StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("push w: already pushed")));
  }
  ExpectState();
  // And the next epoch works.
  daemons_.Attach();
  Push(3);
  ExpectCommit({3});
}

}  // namespace
}  // namespace paramshard::server
