#include "server/models/inspection.h"

#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/models/test_world.h"
#include "tests/server/state/test_spec.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// A matrix of each format and a small parameter, on three ranks.
v1::ModelSpec InspectedSpec() {
  v1::ModelSpec spec = MakeSpec(
      "m",
      {MakeUnit("a", {MakeParameter("a.w", {96, 64}, v1::FORMAT_MXFP8), MakeParameter("a.b", {8})}),
       MakeUnit("b", {MakeParameter("b.w", {3, 64}), MakeParameter("b.v", {130, 64}, v1::FORMAT_FP8_BLOCK_128X128)})});
  spec.set_small_parameter_bytes(100);
  for (v1::UnitSpec& unit : *spec.mutable_units()) {
    for (v1::ParameterSpec& parameter : *unit.mutable_parameters()) {
      parameter.mutable_initial_value()->mutable_constant()->set_value(2);
    }
  }
  return spec;
}

class InspectionTest : public testing::Test {
 protected:
  static std::vector<std::string> Names(const std::vector<ShardListing>& shards) {
    std::vector<std::string> names;
    for (const ShardListing& shard : shards) names.push_back(absl::StrCat(shard.parameter->name, "@", shard.rank));
    return names;
  }
  std::vector<ExtentVerification> Verify(VerifySummary* summary) {
    std::vector<ExtentVerification> extents;
    auto verified = VerifyModel(*model_, [&](const ExtentVerification& extent) {
      extents.push_back(extent);
      return absl::OkStatus();
    });
    EXPECT_OK(verified);
    if (verified.ok()) *summary = *verified;
    return extents;
  }
  // One step of b.w.
  void Step() {
    const FakeTrainers trainers = AttachAll(*model_);
    for (const auto& trainer : trainers) {
      trainer->FillGradients(0, 1, 3.0f);
      trainer->Push(1, 0, {1});
      trainer->Commit(model_->committed().commits.numbers().commit_number + 1);
    }
    for (const auto& trainer : trainers) EXPECT_TRUE(trainer->AwaitCommitted(1).has_value());
  }

  TestWorld world_{{.ranks = 3}};
  const std::shared_ptr<Model> model_ = world_.Create(InspectedSpec());
};

TEST_F(InspectionTest, SummaryOfANewModel) {
  const ModelSummary summary = Summarize(*model_);
  EXPECT_EQ(summary.name, "m");
  EXPECT_EQ(summary.parameter_count, 4);
  EXPECT_EQ(summary.element_count, 96 * 64 + 8 + 3 * 64 + 130 * 64);
  EXPECT_EQ(summary.shard_size, 3);
  EXPECT_EQ(summary.world_size, 3);
  EXPECT_EQ(summary.numbers.history, model_->state().history().id);
  EXPECT_EQ(summary.lineage, model_->state().history().lineage);
  EXPECT_EQ(summary.epoch, 0);
  EXPECT_FALSE(summary.running);
  EXPECT_EQ(summary.attached_ranks, 0);
  EXPECT_GE(summary.imbalance, 1);
}

TEST_F(InspectionTest, SummaryAfterAnEpoch) {
  Step();
  // The trainers have left; the epoch's end is a moment later.
  ASSERT_OK(model_->changes().Import({.commit_number = 1, .version = 1}, [] { return absl::OkStatus(); }));
  const ModelSummary summary = Summarize(*model_);
  EXPECT_EQ(summary.numbers.version, 1);
  EXPECT_EQ(summary.numbers.commit_number, 1);
  EXPECT_EQ(summary.epoch, 1);
  EXPECT_THAT(summary.last_end, HasSubstr("ABORTED"));
}

TEST_F(InspectionTest, ShardsComeByParameterAndRank) {
  // 96 rows are three granules, 130 are two: rank 2 owns none of b.v. The small one is somewhere.
  const std::vector<ShardListing> shards = ListShards(*model_, 0, 1000);
  const std::string small = absl::StrCat("a.b@", *model_->layout().units()[0].parameters[1].owner);
  EXPECT_THAT(Names(shards),
              ElementsAre("a.w@0", "a.w@1", "a.w@2", small, "b.w@0", "b.w@1", "b.w@2", "b.v@0", "b.v@1"));
  EXPECT_EQ(shards[1].unit->name, "a");
  EXPECT_EQ(shards[1].device, "cpu:1");
  EXPECT_EQ(shards[1].parameter->encoding.format, Format::kMXFP8);
  EXPECT_EQ(shards[1].rows.begin, 32);
  EXPECT_EQ(shards[1].rows.size(), 32);
  EXPECT_EQ(shards[1].parameter->columns(), 64);
  EXPECT_EQ(shards[1].plane_bytes, 2 * 32 * 64 + 32 * 2 + 64);
  EXPECT_EQ(shards[1].optimizer_bytes, 32 * 64 * 16);
  EXPECT_FALSE(shards[1].small);
  EXPECT_TRUE(shards[3].small);
}

TEST_F(InspectionTest, APageIsAPartOfTheList) {
  const std::vector<std::string> all = Names(ListShards(*model_, 0, 1000));
  for (int64_t limit : {1, 2, 4, 9, 20}) {
    std::vector<std::string> paged;
    for (int64_t skip = 0; skip < static_cast<int64_t>(all.size()); skip += limit) {
      const auto page = Names(ListShards(*model_, skip, limit));
      EXPECT_LE(static_cast<int64_t>(page.size()), limit);
      paged.insert(paged.end(), page.begin(), page.end());
    }
    EXPECT_EQ(paged, all);
  }
  EXPECT_THAT(ListShards(*model_, 9, 10), IsEmpty());
  EXPECT_THAT(ListShards(*model_, INT64_MAX, 10), IsEmpty());
}

TEST_F(InspectionTest, ADescriptionHasTheNumbersOfEveryExtent) {
  Step();
  ASSERT_OK_AND_ASSIGN(const ParameterDescription described, DescribeParameter(*model_, "b.w"));
  EXPECT_EQ(described.parameter->name, "b.w");
  EXPECT_EQ(described.unit->name, "b");
  EXPECT_THAT(described.parameter->shape, ElementsAre(3, 64));
  EXPECT_EQ(described.version, 1);
  EXPECT_EQ(described.step, 1);
  ASSERT_THAT(described.extents, SizeIs(3));
  const ExtentDescription& extent = described.extents[1];
  EXPECT_EQ(extent.rank, 1);
  EXPECT_EQ(extent.device, "cpu:1");
  EXPECT_EQ(extent.rows.begin, 1);
  EXPECT_EQ(extent.rows.size(), 1);
  EXPECT_NEAR(extent.planes.amax, 1.9, 1e-6);
  EXPECT_NEAR(extent.planes.Norm(), 1.9 * 8, 1e-5);
  EXPECT_EQ(extent.planes.non_finite, 0);
  EXPECT_FALSE(extent.planes.scale_min.has_value()) << "fp32 has no scales";
  EXPECT_EQ(extent.planes.RelativeError(), 0);
  EXPECT_NEAR(extent.moments[MomentKind::kFirst].norm, 0.3 * 8, 1e-5);
  EXPECT_NEAR(extent.moments[MomentKind::kSecond].norm, 0.09 * 8, 1e-5);
  EXPECT_NEAR(extent.moments[MomentKind::kFirst].min, 0.3, 1e-5);
  EXPECT_NEAR(extent.moments[MomentKind::kSecond].max, 0.09, 1e-5);
  EXPECT_EQ(extent.planes.zeros, 0);
  EXPECT_EQ(extent.planes.saturated, 0);
}

TEST_F(InspectionTest, ADescriptionShowsScalesAndErrors) {
  const ShardExtent& extent = *model_->committed().shards[0]->extents().Find(0, 0);
  std::vector<float> values(extent.elements, 2.0f);
  values[5] = 1.7f;  // is no E4M3 number
  const Publication::Writing writing(*model_->committed().publication, Publication::Hold::kNone);
  EXPECT_OK(model_->committed().shards[0]->Write(extent, StateTensor::kMaster, values));
  ScalingBook book(model_->spec());
  EXPECT_OK(model_->committed().shards[0]->EncodePlanes(book));
  ASSERT_OK_AND_ASSIGN(const ParameterDescription described, DescribeParameter(*model_, "a.w"));
  EXPECT_GT(described.extents[0].planes.max_error, 0);
  EXPECT_LT(described.extents[0].planes.max_error, 0.1);
  EXPECT_GT(described.extents[0].planes.RelativeError(), 0);
  EXPECT_EQ(described.extents[1].planes.max_error, 0);
  EXPECT_TRUE(described.extents[1].planes.scale_min.has_value());
  EXPECT_GT(described.extents[1].planes.scale_min, 0);
  EXPECT_LE(described.extents[1].planes.scale_min, described.extents[1].planes.scale_max);
  ASSERT_OK_AND_ASSIGN(const ParameterDescription blocks, DescribeParameter(*model_, "b.v"));
  EXPECT_TRUE(blocks.extents[0].planes.scale_max.has_value());
}

RankedStats Stats(const Model& model, int64_t limit = 100) {
  auto stats = ListParameterStats(model, limit, [] { return false; });
  EXPECT_OK(stats);
  return stats.ok() ? *std::move(stats) : RankedStats();
}

TEST_F(InspectionTest, StatsComeWorstFirst) {
  Shard& shard = *model_->committed().shards[0];
  const ShardExtent& extent = *shard.extents().Find(0, 0);
  std::vector<float> values(extent.elements, 2.0f);
  values[5] = 1.7f;
  const Publication::Writing writing(*model_->committed().publication, Publication::Hold::kNone);
  EXPECT_OK(shard.Write(extent, StateTensor::kMaster, values));
  EXPECT_OK(shard.EncodePlanes(ScalingBook(model_->spec())));
  const RankedStats stats = Stats(*model_);
  ASSERT_THAT(stats.parameters, SizeIs(4));
  EXPECT_EQ(stats.parameter_count, 4);
  EXPECT_EQ(stats.parameters[0].parameter->name, "a.w");
  EXPECT_EQ(stats.parameters[0].planes.elements, 96 * 64) << "of all ranks";
  EXPECT_GT(stats.parameters[0].planes.RelativeError(), 0);
  EXPECT_NEAR(stats.parameters[0].planes.max_relative_error, 0.05 / 1.7, 0.02);
  EXPECT_EQ(stats.parameters[0].planes.amax, 2);
  EXPECT_EQ(stats.parameters[1].parameter->name, "a.b") << "the others have no error: the order of the model";
  EXPECT_EQ(stats.parameters[3].parameter->name, "b.v");
  EXPECT_THAT(Stats(*model_, 1).parameters, SizeIs(1));
  EXPECT_EQ(Stats(*model_, 1).parameter_count, 4);
}

TEST_F(InspectionTest, StatsEndWhenTheirCallerIsGone) {
  int asked = 0;
  EXPECT_THAT(ListParameterStats(*model_, 10, [&] { return ++asked == 3; }), StatusIs(absl::StatusCode::kCancelled));
  EXPECT_EQ(asked, 3);
}

TEST_F(InspectionTest, NonFiniteMastersAreCountedAndLeftOutOfTheRange) {
  const ShardExtent& extent = *model_->committed().shards[0]->extents().Find(1, 0);
  std::vector<float> values(extent.elements, 2.0f);
  values[0] = std::nanf("");
  values[1] = -INFINITY;
  const Publication::Writing writing(*model_->committed().publication, Publication::Hold::kNone);
  EXPECT_OK(model_->committed().shards[0]->Write(extent, StateTensor::kMaster, values));
  ASSERT_OK_AND_ASSIGN(const ParameterDescription described, DescribeParameter(*model_, "b.w"));
  EXPECT_EQ(described.extents[0].planes.non_finite, 2);
  EXPECT_EQ(described.extents[0].planes.amax, 2);
}

TEST_F(InspectionTest, AnUnknownParameterIsNotFound) {
  for (const std::string& name : {std::string("a.x"), std::string(), std::string(1 << 20, 'x')}) {
    EXPECT_THAT(DescribeParameter(*model_, name), StatusIs(absl::StatusCode::kNotFound, HasSubstr("describe m")));
  }
}

TEST_F(InspectionTest, VerificationCoversEveryExtent) {
  VerifySummary summary;
  const auto extents = Verify(&summary);
  EXPECT_THAT(extents, SizeIs(9));
  EXPECT_EQ(summary.extent_count, 9);
  EXPECT_EQ(summary.mismatch_count, 0);
  EXPECT_EQ(summary.numbers.version, 0);
  EXPECT_EQ(extents[1].parameter, "a.w");
  EXPECT_EQ(extents[1].rank, 1);
  EXPECT_EQ(extents[1].master_hash.size(), 32u);
  EXPECT_EQ(extents[0].master_hash, extents[1].master_hash) << "the same constant";
  EXPECT_NE(extents[0].master_hash, extents[0].moment_hashes[MomentKind::kFirst]);
}

TEST_F(InspectionTest, AFlippedByteOfAPlaneIsAResult) {
  VerifySummary before;
  Verify(&before);
  const Shard& shard = *model_->committed().shards[1];
  shard.memory().planes().data()[PlaneBytes(shard.memory(), *shard.extents().Find(0, 0))->front().data.data() -
                                 shard.memory().planes().data()] ^= 1;
  VerifySummary summary;
  const auto extents = Verify(&summary);
  EXPECT_EQ(summary.mismatch_count, 1);
  for (const ExtentVerification& extent : extents) {
    EXPECT_EQ(extent.planes_match, !(extent.parameter == "a.w" && extent.rank == 1));
  }
  EXPECT_EQ(summary.state_hash, before.state_hash) << "planes are no state";
}

TEST_F(InspectionTest, AnyChangeOfStateChangesTheHash) {
  const Publication::Writing writing(*model_->committed().publication, Publication::Hold::kNone);
  VerifySummary before;
  Verify(&before);
  for (StateTensor tensor : {StateTensor::kMaster, StateTensor::kFirstMoment, StateTensor::kSecondMoment}) {
    Shard& shard = *model_->committed().shards[2];
    const ShardExtent& extent = *shard.extents().Find(1, 0);
    const std::vector<float> values = *shard.arrays().Read(extent, tensor);
    std::vector<float> changed = values;
    changed.back() = std::nextafter(changed.back(), 10.0f);
    ASSERT_OK(shard.Write(extent, tensor, changed));
    VerifySummary after;
    Verify(&after);
    EXPECT_NE(after.state_hash, before.state_hash);
    ASSERT_OK(shard.Write(extent, tensor, values));
  }
  VerifySummary after;
  Verify(&after);
  EXPECT_EQ(after.state_hash, before.state_hash);
}

TEST_F(InspectionTest, VerificationStopsWhenItsCallerDoes) {
  int calls = 0;
  const auto verified = VerifyModel(*model_, [&](const ExtentVerification&) {
    return ++calls == 3 ? absl::CancelledError("enough") : absl::OkStatus();
  });
  EXPECT_THAT(verified, StatusIs(absl::StatusCode::kCancelled, "enough"));
  EXPECT_EQ(calls, 3);
}

TEST_F(InspectionTest, ACommitMeanwhileAbortsVerification) {
  const auto verified = VerifyModel(*model_, [&](const ExtentVerification&) {
    for (const auto& shard : model_->committed().shards) shard->SetVersion(1);
    return absl::OkStatus();
  });
  EXPECT_THAT(verified, StatusIs(absl::StatusCode::kAborted, HasSubstr("want version 0 throughout, got 1")));
}

// Numbers stay, and bytes too; it counts as another state all the same.
TEST_F(InspectionTest, AnImportMeanwhileAbortsVerification) {
  const auto verified = VerifyModel(*model_, [&](const ExtentVerification&) {
    return model_->changes().Import({}, [] { return absl::OkStatus(); }).status();
  });
  EXPECT_THAT(verified, StatusIs(absl::StatusCode::kAborted,
                                 HasSubstr("verify m: an import has begun to replace the state; verify again")));
}

// Masters and steps are changed together: a description that has both of two states says it by its numbers.
TEST_F(InspectionTest, ADescriptionIsOfOneState) {
  std::thread imports([this] {
    for (int step = 1; step <= 200; ++step) {
      EXPECT_OK(model_->changes().Import({}, [&] {
        absl::Status status;
        for (const auto& shard : model_->committed().shards) {
          const ShardExtent& extent = *shard->extents().Find(1, 0);
          const std::vector<float> values(extent.elements, static_cast<float>(step));
          status.Update(shard->Write(extent, StateTensor::kMaster, values));
          shard->SetStep(extent, step);
        }
        return status;
      }));
    }
  });
  for (int64_t step = 0; step < 200;) {
    const auto described = DescribeParameter(*model_, "b.w");
    if (!described.ok()) {
      ASSERT_TRUE(absl::IsAborted(described.status()) || absl::IsUnavailable(described.status())) << described.status();
      continue;
    }
    step = described->step;
    if (step == 0) continue;  // initial values
    for (const ExtentDescription& extent : described->extents) EXPECT_EQ(extent.planes.amax, step);
  }
  imports.join();
}

TEST_F(InspectionTest, NothingIsReadInTheMiddleOfAnImport) {
  ASSERT_OK(model_->changes().Import({}, [&] {
    EXPECT_THAT(VerifyModel(*model_, [](const ExtentVerification&) { return absl::OkStatus(); }),
                StatusIs(absl::StatusCode::kUnavailable, HasSubstr("verify m: an import is being applied")));
    EXPECT_THAT(DescribeParameter(*model_, "a.w"), StatusIs(absl::StatusCode::kUnavailable));
    return absl::OkStatus();
  }));
}

TEST_F(InspectionTest, MemoryIsCountedByDeviceAndClass) {
  const auto count = [this] {
    std::map<std::string, int64_t> bytes;
    for (const MemoryUse& use : CountMemory(*model_)) {
      bytes[absl::StrCat(use.device, " ", use.memory_class)] += use.size_bytes;
    }
    return bytes;
  };
  auto idle = count();
  for (int rank = 0; rank < 3; ++rank) {
    const ShardBytes bytes = model_->committed().shards[rank]->extents().bytes();
    const std::string device = absl::StrCat("cpu:", rank);
    EXPECT_EQ(idle[device + " master"], bytes.master);
    EXPECT_EQ(idle[device + " exp_avg"], bytes.moments[MomentKind::kFirst]);
    EXPECT_EQ(idle[device + " exp_avg_sq"], bytes.moments[MomentKind::kSecond]);
    EXPECT_EQ(idle[device + " gradients"], bytes.gradients);
    EXPECT_EQ(idle[device + " planes"], bytes.planes);
    EXPECT_FALSE(idle.contains(device + " gather_slots"));
    EXPECT_FALSE(idle.contains(device + " gradient_slots"));
  }
  const FakeTrainers trainers = AttachAll(*model_);
  auto running = count();
  EXPECT_EQ(running["cpu:1 gather_slots"] + running["cpu:1 gradient_slots"], model_->layout().slots_bytes());
  EXPECT_EQ(running["cpu:1 gather_slots"], model_->layout().gradient_slot_offsets()[0]);
  EXPECT_FALSE(running.contains("cpu:1 landing_area")) << "sums are made at the push";
  EXPECT_GT(running["cpu:2 control_page"], 0);
  EXPECT_FALSE(running.contains("cpu:0 scratch")) << "memcpy holds none";
  std::map<std::string, int64_t> ending;
  trainers[1]->WhenEnded([&] { ending = count(); });
  trainers[0]->Leave();
  ASSERT_NE(trainers[1]->AwaitEnded(), nullptr);
  EXPECT_EQ(ending, running);
}

TEST_F(InspectionTest, HistoriesAreCountedOnceForAllDevices) {
  v1::ModelSpec spec = MakeSpec("d", {MakeUnit("a", {MakeParameter("w", {96, 64}, v1::FORMAT_FP8_TENSOR_DELAYED),
                                                     MakeParameter("v", {96, 64}, v1::FORMAT_FP8_TENSOR_DELAYED)})});
  for (v1::ParameterSpec& parameter : *spec.mutable_units(0)->mutable_parameters()) {
    parameter.mutable_delayed_scaling()->set_history_length(100);
  }
  const std::shared_ptr<Model> delayed = world_.Create(spec);
  std::vector<int64_t> histories;
  for (const MemoryUse& use : CountMemory(*delayed)) {
    if (use.memory_class != "histories") continue;
    EXPECT_EQ(use.device, "");
    histories.push_back(use.size_bytes);
  }
  EXPECT_THAT(histories, ElementsAre(2 * 100 * 4));
  for (const MemoryUse& use : CountMemory(*model_)) EXPECT_NE(use.memory_class, "histories");
}

}  // namespace
}  // namespace paramshard::server
