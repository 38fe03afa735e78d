// Devices that have no memory left, at every allocation in turn: nothing stays allocated, and the next attempt works.
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "kernels/base/status_macros.h"
#include "server/models/staged_import.h"
#include "tests/server/models/faulty_world.h"

namespace paramshard::server {
namespace {

using ::testing::HasSubstr;

// The parameter is true if bytes move as between daemons.
class AllocationFaultsTest : public FaultyWorldTest, public testing::WithParamInterface<bool> {
 protected:
  void SetUp() override {
    const EngineSettings engines{.mesh_inside = GetParam(),
                                 .nccl_library = test::EnvironmentOr("PARAMSHARD_NCCL_LIBRARY", "")};
    Open(engines);
    if (IsSkipped() || HasFatalFailure()) return;
    std::vector<Device> ids;
    for (const ComputeDevice* device : devices_) ids.push_back(device->id());
    if (const absl::Status loaded = LoadEngineLibraries(ids, 1, engines).status(); !loaded.ok()) GTEST_SKIP() << loaded;
  }

  void FailAllocation(int number) {
    faults_.allocations = 0;
    faults_.failing_allocation = number;
  }

  absl::StatusOr<ModelStore::Created> Create() { return world_->store().CreateOrJoin(Parse(Spec())); }
};

INSTANTIATE_TEST_SUITE_P(DirectAndMesh, AllocationFaultsTest, testing::Bool());

TEST_P(AllocationFaultsTest, AModelIsCreatedWholeOrNotAtAll) {
  FailAllocation(0);
  ASSERT_OK(Create());
  const int allocations = faults_.allocations;
  ASSERT_OK(world_->store().Delete("m", ""));
  ASSERT_EQ(faults_.allocated_bytes, 0);
  // Five memories and the arithmetic.
  ASSERT_EQ(allocations, 6 * static_cast<int>(devices_.size()));
  for (int number = 1; number <= allocations; ++number) {
    FailAllocation(number);
    EXPECT_THAT(Create().status(), StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("allocation")));
    EXPECT_EQ(faults_.allocated_bytes, 0) << "allocation " << number;
    FailAllocation(0);
    ASSERT_OK(Create()) << "after allocation " << number;
    ASSERT_OK(world_->store().Delete("m", ""));
  }
}

TEST_P(AllocationFaultsTest, AnEpochThatFindsNoMemoryEndsAndTheNextOneStarts) {
  FailAllocation(0);
  const std::shared_ptr<Model> model = world_->Create(Spec());
  const int64_t before = faults_.allocated_bytes;
  FailAllocation(0);
  ExpectEpochWorks(*model);
  const int allocations = faults_.allocations;
  ASSERT_TRUE(SettlesAt(before));
  // Slots and the words page at least.
  ASSERT_GE(allocations, 2 * static_cast<int>(devices_.size()));
  for (int number = 1; number <= allocations; ++number) {
    FailAllocation(number);
    {
      FakeTrainers trainers;
      for (int rank = 0; rank < model->world().rank_count(); ++rank) {
        trainers.push_back(std::make_unique<FakeTrainer>(model.get(), rank));
        ASSERT_OK(trainers.back()->Attach());
      }
      for (const auto& trainer : trainers) {
        const EpochEndInfo* const ended = trainer->AwaitEnded();
        ASSERT_NE(ended, nullptr) << "allocation " << number;
        EXPECT_EQ(ended->why.code(), absl::StatusCode::kResourceExhausted) << ended->why.message();
      }
    }
    EXPECT_TRUE(SettlesAt(before)) << "allocation " << number << ": " << faults_.allocated_bytes << " bytes, not "
                                   << before;
    FailAllocation(0);
    ExpectEpochWorks(*model);
    ASSERT_TRUE(SettlesAt(before));
  }
}

// Covers every kind of master that a frozen parameter can have.
v1::ModelSpec FrozenSpec() {
  v1::ParameterSpec none = MakeParameter("none", {96, 64}, v1::FORMAT_NVFP4_2D);
  v1::ParameterSpec other = MakeParameter("other", {50, 64}, v1::FORMAT_MXFP8);
  v1::ParameterSpec fp32 = MakeParameter("fp32", {32, 64}, v1::FORMAT_FP8_TENSOR_CURRENT);
  v1::ParameterSpec pair = MakeParameter("pair", {32, 64}, v1::FORMAT_BF16);
  fp32.set_master_type(v1::MASTER_TYPE_FP32);
  pair.set_master_type(v1::MASTER_TYPE_BF16_REMAINDER);
  for (v1::ParameterSpec* parameter : {&none, &other, &fp32, &pair}) {
    parameter->set_trainable(false);
    parameter->mutable_initial_value()->mutable_normal()->set_standard_deviation(1);
  }
  return MakeSpec("m", {MakeUnit("a", {none, other, fp32, pair}), MakeUnit("b", {MakeParameter("b.w", {30, 64})})});
}

absl::Status ImportOnes(const std::shared_ptr<Model>& model) {
  ASSIGN_OR_RETURN(StagedImport import, StagedImport::Begin(model));
  for (int parameter = 0; parameter < static_cast<int>(model->spec().units[0].parameters.size()); ++parameter) {
    const ParameterSpec& spec = model->spec().units[0].parameters[parameter];
    const std::vector<float> ones(spec.rows() * spec.columns(), 1.0f);
    RETURN_IF_ERROR(import.BeginSlice({.unit = 0, .parameter = parameter, .rows = {0, spec.rows()}}));
    RETURN_IF_ERROR(import.Add(absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(ones.data()), 4 * ones.size())));
  }
  return import.Apply({}).status();
}

TEST_P(AllocationFaultsTest, AnImportThatFindsNoRoomForFrozenParametersChangesNothing) {
  FailAllocation(0);
  const std::shared_ptr<Model> model = world_->Create(FrozenSpec());
  const std::string begun = StateHash(*model);
  const int64_t before = faults_.allocated_bytes;
  int number = 1;
  for (; number < 100; ++number) {
    FailAllocation(number);
    const absl::Status status = ImportOnes(model);
    EXPECT_EQ(faults_.allocated_bytes, before) << "allocation " << number;
    EXPECT_OK(model->state().usable());
    if (status.ok()) break;
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("import into m: ")));
    EXPECT_EQ(StateHash(*model), begun) << "allocation " << number;
  }
  // On each device the scratch, and arithmetic for each parameter without a master that it has rows of.
  EXPECT_GT(number, static_cast<int>(devices_.size()) * 2);
  EXPECT_NE(StateHash(*model), begun);
}

TEST_P(AllocationFaultsTest, PlanesOfKeptMastersAreEncodedAnewWithoutMemory) {
  FailAllocation(0);
  const std::shared_ptr<Model> model = world_->Create(FrozenSpec());
  const std::string begun = StateHash(*model);
  FailAllocation(0);
  ExpectEpochWorks(*model);
  FailAllocation(1);
  ASSERT_OK(model->changes().Import({}, [] { return absl::OkStatus(); }));
  EXPECT_EQ(faults_.allocations, 0) << "planes are encoded anew without any";
  EXPECT_EQ(StateHash(*model), begun);
}

// Before the first epoch, so that a model that fits can also be trained.
TEST_P(AllocationFaultsTest, WhatAnEngineWillHoldIsKnownBeforehand) {
  FailAllocation(0);
  const std::shared_ptr<Model> model = world_->Create(Spec());
  const FakeTrainers trainers = AttachAll(*model);
  EXPECT_EQ(model->trainers().activity().scratch_bytes, model->budget().ScratchBytesByRank());
}

}  // namespace
}  // namespace paramshard::server
