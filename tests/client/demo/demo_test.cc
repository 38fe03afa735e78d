// The demo itself, shortened, on every shape of a world.
#include "client/demo/demo.h"

#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>

#include "gmock/gmock.h"
#include "tests/support/daemon_process.h"
#include "tests/support/status_matchers.h"

namespace paramshard::demo {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint64_t kKillSeed = 11;

struct DemoCase {
  std::string name;
  DemoOptions options;
};

class DemoTest : public testing::TestWithParam<DemoCase> {
 protected:
  DemoOptions Options() const {
    DemoOptions options = GetParam().options;
    options.bin_dir = PARAMSHARD_BIN_DIR;
    options.out_dir = directory_.path();
    options.epochs = 3;
    options.kill_seed = kKillSeed;
    return options;
  }
  nlohmann::json Report() const {
    std::ifstream in(directory_.path() + "/report.json");
    return nlohmann::json::parse(in);
  }

  const test::TemporaryDirectory directory_;
};

TEST_P(DemoTest, AllTrainingsEndInTheSameState) {
  ASSERT_OK(Demo(Options()).Run());
  const nlohmann::json report = Report();
  EXPECT_EQ(report["master_hash_interrupted"], report["master_hash_uninterrupted"]);
  EXPECT_FALSE(report["master_hash_uninterrupted"].get<std::string>().empty());
  EXPECT_GT(report["test_accuracy"], 0.9);
  EXPECT_LT(report["kill9_recovery_seconds"], 30.0);
  EXPECT_LT(report["gathered_bytes_per_step"], report["bf16_bytes_per_step"]);
  EXPECT_EQ(report["format"], Options().storage.format);
  EXPECT_EQ(report["world_size"], Options().world_size);
  ASSERT_EQ(report["devices"].size(), Options().nodes);
  for (int node = 0; node < Options().nodes; ++node) EXPECT_EQ(report["devices"][node], DevicesOf(Options(), node));
  // The server of one daemon is killed.
  ASSERT_EQ(report.contains("master_hash_server_killed"), Options().nodes == 1);
  if (Options().nodes > 1) return;
  EXPECT_EQ(report["master_hash_server_killed"], report["master_hash_uninterrupted"]);
  EXPECT_GT(report["server_kill9_recovery_seconds"], 0.0);
  EXPECT_GE(report["server_kill9_longest_recovery_seconds"], report["server_kill9_recovery_seconds"]);
  EXPECT_GE(report["server_kills"], 1);
  EXPECT_LE(report["server_kills"], 7);
  EXPECT_GE(report["server_steps_finished"], 0);
  EXPECT_EQ(report["server_kill_seed"], kKillSeed);
  EXPECT_GE(report["save_stall_seconds"], 0.0);
  EXPECT_GT(report["saved_bytes"], 0);
  EXPECT_EQ(report["restored_world_size"], Options().world_size + 1);
  EXPECT_EQ(report["restored_state_equal"], true);
}

INSTANTIATE_TEST_SUITE_P(
    Worlds, DemoTest,
    testing::Values(DemoCase{"OneRank", {.world_size = 1}}, DemoCase{"TwoRanks", {.world_size = 2}},
                    DemoCase{"ThreeRanksOfBlocks", {.storage = {.format = "FP8_BLOCK_128X128"}, .world_size = 3}},
                    DemoCase{"TwoNodesOfReplicas", {.world_size = 4, .nodes = 2}},
                    DemoCase{"TwoNodesOfOneShardGroup", {.world_size = 2, .nodes = 2, .shard_size = 2}}),
    [](const auto& info) { return info.param.name; });

TEST(DemoOptionsTest, DaemonsShareNoGpu) {
  EXPECT_THAT(DevicesOf({.world_size = 4, .nodes = 2}, 1), ElementsAre("cpu:0", "cpu:1"));
  EXPECT_THAT(DevicesOf({.world_size = 4, .nodes = 2, .device = "cuda"}, 0), ElementsAre("cuda:0", "cuda:1"));
  EXPECT_THAT(DevicesOf({.world_size = 4, .nodes = 2, .device = "cuda"}, 1), ElementsAre("cuda:2", "cuda:3"));
}

TEST(DemoOptionsTest, WhatCannotBeShownIsRefused) {
  DemoOptions options{.out_dir = testing::TempDir(), .world_size = 3, .nodes = 2};
  EXPECT_THAT(Demo(options).Run(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("multiple of the 2 nodes")));
  options = {.out_dir = testing::TempDir(), .storage = {.format = "FP7"}};
  EXPECT_THAT(Demo(options).Run(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("FP7")));
  options = {.out_dir = testing::TempDir(), .device = "tpu"};
  EXPECT_THAT(Demo(options).Run(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("tpu")));
  options = {.bin_dir = "/nowhere", .out_dir = testing::TempDir()};
  EXPECT_THAT(Demo(options).Run(), StatusIs(absl::StatusCode::kNotFound, HasSubstr("/nowhere/paramshardd")));
}

}  // namespace
}  // namespace paramshard::demo
