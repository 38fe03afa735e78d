#include "client/ctl/tables.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace paramshard::ctl {
namespace {

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
  EXPECT_EQ(ModelsText(response),
            "MODEL  PARAMETERS  ELEMENTS  SHARD SIZE  ATTACHED  VERSION  COMMIT  SKIPPED  EPOCH  RUNNING  ENGINE  "
            "IMBALANCE  LAST END\n"
            "tiny           10      1000           2       3/4        7       8        1      2  yes      memcpy  "
            "    1.062  -\n");
}

TEST(TablesTest, AModelThatIsUnusableSaysSo) {
  v1::ListModelsResponse response;
  v1::ModelSummary& model = *response.add_models();
  model.set_name("torn");
  model.set_last_end("ABORTED: somebody left");
  model.set_unusable("an import broke off");
  EXPECT_THAT(ModelsText(response), testing::EndsWith("an import broke off\n"));
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
  response.set_exp_avg_type(v1::MOMENT_TYPE_FP32);
  response.set_exp_avg_sq_type(v1::MOMENT_TYPE_BF16);
  response.set_version(3);
  response.set_step(2);
  EXPECT_EQ(ParameterText(response),
            "parameter   w\n"
            "unit        block\n"
            "shape       []\n"
            "format      MXFP8\n"
            "element     E5M2\n"
            "gradient    BF16\n"
            "exp_avg     FP32\n"
            "exp_avg_sq  BF16\n"
            "version     3\n"
            "step        2\n"
            "group       0\n"
            "\n"
            "no extents on this daemon\n");
}

TEST(TablesTest, ScalesThatAFormatHasNotAreDashes) {
  v1::DescribeParameterResponse response;
  response.add_extents()->set_device("cpu:0");
  EXPECT_NE(ParameterText(response).find("  -          -  "), std::string::npos) << ParameterText(response);
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
  response.mutable_uses(1)->set_memory_class("words");
  response.mutable_uses(1)->set_size_bytes(4096);
  response.set_total_bytes((10 << 20) + 4096);
  response.set_resident_bytes(40 << 20);
  EXPECT_EQ(MemoryText(response),
            "DEVICE  MODEL  CLASS       SIZE\n"
            "cpu:0   tiny   master  10.0 MiB\n"
            "cpu:10  -      words    4.0 KiB\n"
            "total 10.0 MiB, resident 40.0 MiB\n");
}

TEST(TablesTest, UnknownFormatIsAQuestionMark) {
  v1::ListShardsResponse response;
  response.add_shards()->set_format(static_cast<v1::Format>(99));
  EXPECT_NE(ShardsText(response).find("  ?  "), std::string::npos) << ShardsText(response);
}

TEST(TablesTest, ExtentsOfADaemonWithoutAny) { EXPECT_EQ(ExtentsText({}), "no extents on this daemon\n"); }

}  // namespace
}  // namespace paramshard::ctl
