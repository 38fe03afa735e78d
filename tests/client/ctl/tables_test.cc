// The tables of the commands, as a daemon's answers make them.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/ctl/fake_daemon.h"
#include "tests/client/ctl/run_ctl.h"

namespace paramshard::ctl {
namespace {

// Returns the output of a command for a daemon's answer.
template <typename Answer>
std::string TextOf(Answer FakeAnswers::*member, const Answer& answer, const std::vector<std::string>& command) {
  FakeDaemon daemon;
  daemon.service().answers.*member = answer;
  return Output(daemon, command);
}

std::string ModelsText(const v1::ListModelsResponse& response) {
  return TextOf(&FakeAnswers::models, response, {"models"});
}
std::string ShardsText(const v1::ListShardsResponse& response) {
  return TextOf(&FakeAnswers::pages, {response}, {"shards", "m"});
}
std::string ParameterText(const v1::DescribeParameterResponse& response) {
  return TextOf(&FakeAnswers::parameter, response, {"describe", "m", "w"});
}
std::string StatsText(const v1::GetParameterStatsResponse& response) {
  return TextOf(&FakeAnswers::stats, response, {"stats", "m"});
}
std::string MemoryText(const v1::GetMemoryResponse& response) {
  return TextOf(&FakeAnswers::memory, response, {"memory"});
}
std::string VersionText(const v1::GetVersionResponse& response) {
  return TextOf(&FakeAnswers::version, response, {"version"});
}

TEST(TablesTest, Models) {
  v1::ListModelsResponse response;
  v1::ModelSummary& model = *response.add_models();
  model.set_name("tiny");
  model.set_parameter_count(10);
  model.set_element_count(1000);
  model.set_shard_size(2);
  model.set_world_size(4);
  model.set_attached_ranks(3);
  model.set_version(7);
  model.set_commit_number(8);
  model.set_skipped_commits(1);
  model.set_epoch(2);
  model.set_running(true);
  model.set_engine("memcpy");
  model.set_imbalance(1.0625);
  model.set_origin(v1::VALUE_ORIGIN_TRAINED);
  EXPECT_EQ(ModelsText(response),
            "MODEL  PARAMETERS  ELEMENTS  SHARD SIZE  ATTACHED  ORIGIN   VERSION  COMMIT  SKIPPED  EPOCH  RUNNING  "
            "ENGINE  IMBALANCE  LAST END\n"
            "tiny           10      1000           2       3/4  trained        7       8        1      2  yes      "
            "memcpy  "
            "    1.062  -\n");
}

TEST(TablesTest, Saves) {
  EXPECT_EQ(TextOf(&FakeAnswers::saves, v1::ListSavesResponse(), {"saves"}), "no saves\n");
  v1::ListSavesResponse response;
  v1::Save& save = *response.add_saves();
  save.set_model("tiny");
  save.set_number(1);
  save.set_step(500);
  save.set_state(v1::SAVE_STATE_WRITING);
  save.set_reason(v1::SAVE_REASON_COMMITS);
  save.set_size_bytes(2000);
  save.set_written_bytes(841);
  save.mutable_took()->set_seconds(2);
  save.mutable_copy()->set_nanos(250'000'000);
  save.mutable_stall()->set_nanos(1'500'000);
  v1::Save& abandoned = *response.add_saves();
  abandoned = save;
  abandoned.set_state(v1::SAVE_STATE_ABANDONED);
  abandoned.mutable_error()->set_text("disk full");
  v1::SaveCounts& counts = *response.add_counts();
  counts.set_model("tiny");
  counts.set_abandoned(1);
  counts.set_skipped(4);
  counts.set_leftovers("/saves/tiny/step-1.tmp-2: rmdir: Directory not empty");
  EXPECT_EQ(TextOf(&FakeAnswers::saves, response, {"saves", "tiny"}),
            "MODEL  SAVE  STEP  WHY      STATE           BYTES  SECONDS   COPY  STALL  BEGUN  PATH  ERROR\n"
            "tiny      1   500  commits  writing 42 %  2.0 KiB    2.000  0.250  0.002  -      -     -\n"
            "tiny      1   500  commits  abandoned     2.0 KiB    2.000  0.250  0.002  -      -     disk full\n"
            "tiny: 0 published, 1 abandoned, 0 unknown, 4 skipped\n"
            "tiny: not removed: /saves/tiny/step-1.tmp-2: rmdir: Directory not empty\n");
}

TEST(TablesTest, AModelThatIsUnusableSaysSo) {
  v1::ListModelsResponse response;
  v1::ModelSummary& model = *response.add_models();
  model.set_name("torn");
  model.set_last_end("ABORTED: somebody left");
  model.set_unusable("an import broke off");
  EXPECT_THAT(ModelsText(response), testing::EndsWith("an import broke off\n"));
}

TEST(TablesTest, VersionNamesLinksThatAreCutAndWhoIsLeftOut) {
  v1::GetVersionResponse response;
  EXPECT_THAT(VersionText(response), testing::Not(testing::HasSubstr("EXCLUDED (link)")));
  response.add_bad_links("node 1 (10.9.0.11) and node 2 (10.9.0.12)");
  response.add_bad_links("node 3 (\x1b) and node 4 (10.9.0.14)");
  EXPECT_THAT(VersionText(response),
              testing::AllOf(testing::HasSubstr("DO NOT REACH EACH OTHER: node 1 (10.9.0.11) and node 2 "
                                                "(10.9.0.12)\nDO NOT REACH EACH OTHER: node 3 (\\x1b)"),
                             testing::Not(testing::HasSubstr("EXCLUDED (link)"))));
  response.add_left_out_nodes(2);
  response.add_left_out_nodes(4);
  EXPECT_THAT(VersionText(response), testing::HasSubstr("EXCLUDED (link): node 2, node 4\n"));
}

TEST(TablesTest, VersionNamesWhoIsHeldBack) {
  v1::GetVersionResponse response;
  EXPECT_THAT(VersionText(response), testing::Not(testing::HasSubstr("EXCLUDED (failures)")));
  v1::HeldBackNode& node = *response.add_held_back_nodes();
  node.set_node(2);
  node.set_losses(3);
  node.mutable_held_for()->set_seconds(40);
  EXPECT_THAT(VersionText(response), testing::HasSubstr("EXCLUDED (failures): node 2 for 40s more, lost 3 times\n"));
}

TEST(TablesTest, VersionTellsThatNodeZeroIsLost) {
  v1::GetVersionResponse response;
  EXPECT_THAT(VersionText(response), testing::Not(testing::HasSubstr("NO EPOCH BEGINS")));
  response.set_node_zero_lost("node 0 (10.9.0.10:7777) is not reached: Connection refused\x1b");
  EXPECT_THAT(VersionText(response), testing::HasSubstr("NO EPOCH BEGINS: node 0 (10.9.0.10:7777) is not reached: "
                                                        "Connection refused\\x1b\n"));
}

TEST(TablesTest, VersionNamesWhoIsAbsent) {
  v1::GetVersionResponse response;
  EXPECT_THAT(VersionText(response), testing::Not(testing::HasSubstr("absent")));
  v1::AbsentNode& lost = *response.add_absent_nodes();
  lost.set_node(2);
  lost.set_losses(1);
  lost.mutable_absent_for()->set_seconds(65);
  response.add_absent_nodes()->set_node(3);
  EXPECT_THAT(VersionText(response),
              testing::ContainsRegex("absent +node 2 \\(for 1m5s\\), node 3 \\(never here\\)\n"));
}

TEST(TablesTest, VersionNamesTheRanks) {
  v1::GetVersionResponse response;
  response.add_devices("cuda:0");
  response.add_devices("cuda:1");
  response.set_nodes(4);
  response.set_node(1);
  response.set_first_rank(2);
  response.set_world_size(8);
  EXPECT_THAT(VersionText(response), testing::ContainsRegex("ranks +2..3 of 8\n"));
}

TEST(TablesTest, BrokenDevicesComeLast) {
  const auto check = [](auto response, std::string (*text)(const decltype(response)&)) {
    const std::string without = text(response);
    v1::BrokenDevice& broken = *response.add_broken_devices();
    broken.set_device("cuda:1");
    broken.set_reason("it fell off the bus; restart paramshardd");
    EXPECT_EQ(text(response), without + "BROKEN cuda:1: it fell off the bus; restart paramshardd\n");
  };
  check(v1::ListShardsResponse(), ShardsText);
  check(v1::GetMemoryResponse(), MemoryText);
  check(v1::GetVersionResponse(), VersionText);
}

TEST(TablesTest, Parameter) {
  v1::DescribeParameterResponse response;
  response.set_parameter("w");
  response.set_unit("block");
  response.set_format(v1::FORMAT_MXFP8);
  response.set_element(v1::ELEMENT_E5M2);
  response.set_gradient_type(v1::GRADIENT_TYPE_BF16);
  response.set_master_type(v1::MASTER_TYPE_BF16_REMAINDER);
  response.set_exp_avg_type(v1::MOMENT_TYPE_FP32);
  response.set_exp_avg_sq_type(v1::MOMENT_TYPE_BF16);
  response.set_version(3);
  response.set_step(2);
  response.set_origin(v1::VALUE_ORIGIN_RESTORED);
  EXPECT_EQ(ParameterText(response),
            "parameter   w\n"
            "unit        block\n"
            "shape       []\n"
            "format      MXFP8\n"
            "element     E5M2\n"
            "gradient    BF16\n"
            "master      BF16_REMAINDER\n"
            "exp_avg     FP32\n"
            "exp_avg_sq  BF16\n"
            "origin      restored\n"
            "version     3\n"
            "step        2\n"
            "group       0\n"
            "\n"
            "no extents on this daemon\n");
}

TEST(TablesTest, MomentsHaveTheNamesThatTheOptimizerGivesThem) {
  v1::DescribeParameterResponse response;
  response.set_optimizer(v1::OPTIMIZER_SGD_MOMENTUM);
  response.set_exp_avg_type(v1::MOMENT_TYPE_BF16);
  response.add_extents()->set_exp_avg_norm(2.5);
  EXPECT_THAT(ParameterText(response), testing::AllOf(testing::ContainsRegex("optimizer +SGD_MOMENTUM\n"),
                                                      testing::ContainsRegex("momentum_buffer +BF16\n"),
                                                      testing::ContainsRegex("MOMENTUM_BUFFER NORM +MIN +MAX\n"),
                                                      testing::Not(testing::HasSubstr("exp_avg"))));
  response.set_optimizer(v1::OPTIMIZER_SGD);
  response.clear_exp_avg_type();
  EXPECT_THAT(ParameterText(response), testing::Not(testing::HasSubstr("MOMENTUM_BUFFER")));
}

TEST(TablesTest, AFrozenParameter) {
  v1::DescribeParameterResponse response;
  response.set_parameter("w");
  response.set_unit("block");
  response.set_format(v1::FORMAT_MXFP8);
  response.set_element(v1::ELEMENT_E4M3);
  response.set_frozen(true);
  EXPECT_EQ(ParameterText(response),
            "parameter  w\n"
            "unit       block\n"
            "shape      []\n"
            "format     MXFP8\n"
            "element    E4M3\n"
            "trainable  no\n"
            "master     none\n"
            "origin     -\n"
            "version    0\n"
            "step       0\n"
            "group      0\n"
            "\n"
            "no extents on this daemon\n");
  response.add_extents()->set_device("cpu:0");
  EXPECT_THAT(ParameterText(response),
              testing::AllOf(testing::HasSubstr("cpu:0"), testing::Not(testing::HasSubstr("EXP_AVG"))));
}

TEST(TablesTest, ScalesThatAFormatHasNotAreDashes) {
  v1::DescribeParameterResponse response;
  response.add_extents()->set_device("cpu:0");
  EXPECT_NE(ParameterText(response).find("  -          -  "), std::string::npos) << ParameterText(response);
}

TEST(TablesTest, ScalesAreCountedOverAllExtents) {
  v1::DescribeParameterResponse response;
  response.set_scale(64);
  for (int64_t count : {1, 2}) {
    v1::ExtentDescription& extent = *response.add_extents();
    extent.set_rows(2);
    extent.set_columns(4);
    extent.set_zero_count(count);
    extent.add_scale_histogram()->set_count(1);
    v1::ScaleCount& bucket = *extent.add_scale_histogram();
    bucket.set_exponent(-7);
    bucket.set_count(count);
  }
  const std::string text = ParameterText(response);
  EXPECT_NE(text.find("\nscale      64\n"), std::string::npos) << text;
  EXPECT_EQ(text.find("amax  "), std::string::npos) << text;
  EXPECT_NE(text.find("  12.5 %  "), std::string::npos) << text;
  EXPECT_NE(text.find("SCALES FROM  COUNT  SHARE\n"
                      "     0, NaN      2   40 %\n"
                      "       2^-7      3   60 %\n"),
            std::string::npos)
      << text;
}

TEST(TablesTest, Stats) {
  v1::GetParameterStatsResponse response;
  EXPECT_EQ(StatsText(response), "no parameters on this daemon\n");
  v1::ParameterStats& stats = *response.add_parameters();
  stats.set_parameter("w");
  stats.set_unit("block");
  stats.set_format(v1::FORMAT_NVFP4_2D);
  stats.set_element_count(200);
  stats.set_relative_error(0.09375);
  stats.set_max_relative_error(1);
  stats.set_amax(2.5);
  stats.set_zero_count(30);
  stats.set_saturated_count(1);
  response.set_parameter_count(7);
  EXPECT_EQ(StatsText(response),
            "PARAMETER  UNIT   FORMAT    ELEMENTS  RELATIVE ERROR  MAX RELATIVE  AMAX  ZERO  SATURATED  NON-FINITE\n"
            "w          block  NVFP4_2D       200         0.09375             1   2.5  15 %      0.5 %           0\n"
            "1 of 7 parameters\n");
}

TEST(TablesTest, Memory) {
  v1::GetMemoryResponse response;
  v1::MemoryUse& use = *response.add_uses();
  use.set_device("cpu:0");
  use.set_model("tiny");
  use.set_memory_class("master");
  use.set_size_bytes(10 << 20);
  response.add_uses();
  response.mutable_uses(1)->set_device("cpu:10");
  response.mutable_uses(1)->set_memory_class("control_page");
  response.mutable_uses(1)->set_size_bytes(4096);
  response.add_uses();
  response.mutable_uses(2)->set_model("tiny");
  response.mutable_uses(2)->set_memory_class("histories");
  response.mutable_uses(2)->set_size_bytes(8192);
  response.set_total_bytes((10 << 20) + 4096);
  response.set_resident_bytes(40 << 20);
  EXPECT_EQ(MemoryText(response),
            "DEVICE  MODEL  CLASS             SIZE\n"
            "cpu:0   tiny   master        10.0 MiB\n"
            "cpu:10  -      control_page   4.0 KiB\n"
            "-       tiny   histories      8.0 KiB\n"
            "total 10.0 MiB, resident 40.0 MiB\n");
}

TEST(TablesTest, UnknownFormatIsAQuestionMark) {
  v1::ListShardsResponse response;
  response.add_shards()->set_format(static_cast<v1::Format>(99));
  EXPECT_NE(ShardsText(response).find("  ?  "), std::string::npos) << ShardsText(response);
}

TEST(TablesTest, ExtentsOfADaemonWithoutAny) {
  v1::VerifyModelResponse summary;
  summary.mutable_summary()->set_state_hash("0123");
  EXPECT_EQ(TextOf(&FakeAnswers::verification, {summary}, {"verify", "m"}),
            "no extents on this daemon\nversion 0, commit 0: 0 extents, 0 mismatches, state 0123\n");
}

}  // namespace
}  // namespace paramshard::ctl
