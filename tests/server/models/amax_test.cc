// Formats that need the amax of a whole tensor, in models whose rows are spread over daemons.

#include <algorithm>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/base/status_macros.h"
#include "server/models/inspection.h"
#include "tests/server/models/daemons.h"
#include "tests/server/state/test_spec.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

constexpr int kDelayed = 1;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

v1::ParameterSpec Normal(std::string name, std::vector<int64_t> shape, v1::Format format) {
  v1::ParameterSpec parameter = MakeParameter(std::move(name), std::move(shape), format);
  parameter.mutable_initial_value()->mutable_normal()->set_standard_deviation(0.5);
  return parameter;
}

// One parameter in a unit; of small ones only one rank knows the amax.
v1::ModelSpec TestSpec(int shard_size) {
  v1::ParameterSpec delayed = Normal("delayed", {61, 33}, v1::FORMAT_FP8_TENSOR_DELAYED);
  delayed.mutable_delayed_scaling()->set_history_length(2);
  v1::ParameterSpec remainder = Normal("remainder", {40, 130}, v1::FORMAT_BF16);
  remainder.set_master_type(v1::MASTER_TYPE_BF16_REMAINDER);
  remainder.set_exp_avg_type(v1::MOMENT_TYPE_FP8);
  remainder.set_exp_avg_sq_type(v1::MOMENT_TYPE_FP16);
  v1::ModelSpec spec =
      MakeSpec("m", {MakeUnit("a", {Normal("current", {61, 33}, v1::FORMAT_FP8_TENSOR_CURRENT)}),
                     MakeUnit("b", {delayed}), MakeUnit("c", {Normal("nvfp4", {70, 39}, v1::FORMAT_NVFP4_2D)}),
                     MakeUnit("d", {remainder}), MakeUnit("e", {Normal("plain", {16, 33}, v1::FORMAT_FP32)}),
                     MakeUnit("f", {Normal("small.nvfp4", {7, 9}, v1::FORMAT_NVFP4_2D)}),
                     MakeUnit("g", {Normal("small.delayed", {9, 5}, v1::FORMAT_FP8_TENSOR_DELAYED)}),
                     MakeUnit("h", {Owned(Normal("owned.current", {5, 12, 33}, v1::FORMAT_FP8_TENSOR_CURRENT))}),
                     MakeUnit("i", {Owned(Normal("owned.nvfp4", {4, 16, 39}, v1::FORMAT_NVFP4_2D))}),
                     MakeUnit("j", {Owned(Normal("owned.delayed", {61, 33}, v1::FORMAT_FP8_TENSOR_DELAYED))})});
  spec.set_shard_size(shard_size);
  spec.set_small_parameter_bytes(100);
  return spec;
}

std::vector<float> Gradient(const ParameterSpec& spec, uint32_t seed, int rank) {
  std::mt19937 random(seed * 64 + static_cast<uint32_t>(rank));
  std::normal_distribution<float> normal;
  std::vector<float> values(spec.rows() * spec.columns());
  std::generate(values.begin(), values.end(), [&] { return normal(random); });
  return values;
}

// A step of all units but one that has no gradient; -1 none.
wire::CommitRecord Step(Daemons& daemons, uint32_t seed, int absent = -1) {
  const auto& units = daemons.model(0).spec().units;
  for (int unit = 0; unit < static_cast<int>(units.size()); ++unit) {
    daemons.Push(unit, [&](int rank) {
      if (unit == absent) return std::vector<float>{};
      return Gradient(units[unit].parameters[0], 100 * seed + static_cast<uint32_t>(unit), rank);
    });
  }
  return daemons.Commit();
}

void SkippedStep(Daemons& daemons) {
  const ParameterSpec& spec = daemons.model(0).spec().units[kDelayed].parameters[0];
  daemons.Push(kDelayed, [&](int) { return std::vector<float>(spec.rows() * spec.columns(), kInfinity); });
  EXPECT_TRUE(daemons.Commit().skipped);
}

class AmaxTest : public testing::TestWithParam<std::vector<int>> {};

INSTANTIATE_TEST_SUITE_P(Worlds, AmaxTest,
                         testing::Values(std::vector<int>{3}, std::vector<int>{2, 1}, std::vector<int>{1, 1, 1}),
                         [](const auto& info) { return absl::StrCat(info.param.size(), "Daemons"); });

// A daemon of its own, without a pause, against daemons whose trainers die.
TEST_P(AmaxTest, DaemonsAndNewEpochsChangeNoBit) {
  Daemons reference({3});
  reference.Create(TestSpec(3));
  reference.Attach();
  Daemons daemons(GetParam());
  daemons.Create(TestSpec(3));
  daemons.Attach();
  EXPECT_EQ(daemons.Hashes(), reference.Hashes());
  for (Daemons* world : {&reference, &daemons}) EXPECT_EQ(Step(*world, 1).version, 1);
  EXPECT_EQ(daemons.Hashes(), reference.Hashes());
  for (Daemons* world : {&reference, &daemons}) Step(*world, 2, kDelayed);
  daemons.Kill(1);
  EXPECT_EQ(daemons.Hashes(), reference.Hashes()) << "while nobody is attached";
  daemons.Attach();
  EXPECT_EQ(daemons.Hashes(), reference.Hashes());
  for (Daemons* world : {&reference, &daemons}) SkippedStep(*world);
  EXPECT_EQ(daemons.Hashes(), reference.Hashes());
  // Gradients of a step that was never committed.
  daemons.Push(kDelayed,
               [&](int rank) { return Gradient(daemons.model(0).spec().units[kDelayed].parameters[0], 7, rank); });
  daemons.Kill(2);
  daemons.Attach();
  for (uint32_t seed = 3; seed < 6; ++seed) {
    for (Daemons* world : {&reference, &daemons}) Step(*world, seed);
    EXPECT_EQ(daemons.Hashes(), reference.Hashes()) << "step " << seed;
  }
}

TEST_P(AmaxTest, EveryRankKnowsTheAmaxOfTheWholeTensor) {
  Daemons daemons(GetParam());
  daemons.Create(TestSpec(3));
  daemons.Attach();
  Step(daemons, 1);
  for (const char* name : {"current", "nvfp4"}) {
    double largest = 0;
    std::vector<double> known;
    for (int node = 0; node < daemons.nodes(); ++node) {
      ASSERT_OK_AND_ASSIGN(const ParameterDescription described, DescribeParameter(daemons.model(node), name));
      EXPECT_TRUE(described.amax.has_value());
      EXPECT_FALSE(described.scale.has_value());
      known.push_back(*described.amax);
      for (const auto& extent : described.extents) largest = std::max(largest, extent.planes.amax);
    }
    EXPECT_THAT(known, testing::Each(largest)) << name;
  }
}

// Masters that are larger than those before, on one daemon only.
TEST_P(AmaxTest, AnImportIsKnownToAllWhenAnEpochStarts) {
  Daemons daemons(GetParam());
  daemons.Create(TestSpec(3));
  Model& model = daemons.model(0);
  const HistoryId history{.value = 7};
  for (int node = 1; node < daemons.nodes(); ++node) {
    ASSERT_OK(daemons.model(node).changes().Import({.history = history}, [] { return absl::OkStatus(); }));
  }
  ASSERT_OK(model.changes().Import({.history = history}, [&]() -> absl::Status {
    for (int unit : {0, kDelayed, 2}) {
      Shard& shard = *model.committed().shards[0];
      const ShardExtent& extent = *shard.extents().Find(unit, 0);
      RETURN_IF_ERROR(shard.Write(extent, StateTensor::kMaster, std::vector<float>(extent.elements, 56.0f)));
    }
    return absl::OkStatus();
  }));
  daemons.Hashes();
  daemons.Attach();
  daemons.Hashes();
  for (int node = 0; node < daemons.nodes(); ++node) {
    ASSERT_OK_AND_ASSIGN(const auto delayed, DescribeParameter(daemons.model(node), "delayed"));
    EXPECT_EQ(delayed.scale, 8);
    for (const auto& extent : delayed.extents) EXPECT_EQ(extent.planes.scale_max, 0.125);
    ASSERT_OK_AND_ASSIGN(const auto nvfp4, DescribeParameter(daemons.model(node), "nvfp4"));
    EXPECT_EQ(nvfp4.amax, 56);
  }
}

// Histories of a replica that has lost its state begin anew on all.
TEST(AmaxOfReplicasTest, ReplicasStartWithTheSameScales) {
  Daemons daemons({1, 1});
  daemons.Create(TestSpec(1));
  daemons.Attach();
  for (uint32_t seed = 1; seed < 4; ++seed) Step(daemons, seed);
  daemons.Kill(0);
  Model& model = daemons.model(1);
  const HistoryId history = model.state().snapshot().numbers.history;
  ASSERT_OK(model.changes().Import({.history = history}, [] { return absl::OkStatus(); }));
  daemons.Attach();
  const auto halves = [&] {
    std::vector<std::string> hashes = daemons.Hashes();
    std::vector<std::string> nodes[2];
    for (std::string& hash : hashes) {
      const size_t at = hash.find('@');
      nodes[hash[at + 1] - '0'].push_back(hash.erase(at, 2));
    }
    return std::make_pair(nodes[0], nodes[1]);
  };
  EXPECT_EQ(halves().first, halves().second);
  Step(daemons, 5);
  EXPECT_EQ(halves().first, halves().second);
}

}  // namespace
}  // namespace paramshard::server
