// Devices that have no memory left, at every allocation in turn: nothing stays allocated, and the next attempt works.
#include "gmock/gmock.h"
#include "tests/server/store/faulty_world.h"

namespace paramshard::server {
namespace {

using ::testing::HasSubstr;

// Whether bytes move as between daemons.
class AllocationFaultsTest : public FaultyWorldTest, public testing::WithParamInterface<bool> {
 protected:
  void SetUp() override {
    const EngineSettings engines{.mesh_inside = GetParam(),
                                 .nccl_library = test::EnvironmentOr("PARAMSHARD_NCCL_LIBRARY", "")};
    Open(engines);
    if (IsSkipped() || HasFatalFailure()) return;
    std::vector<Device> ids;
    for (const ComputeDevice* device : devices_) ids.push_back(device->id());
    if (const absl::Status loaded = LoadEngineLibraries(ids, 1, engines); !loaded.ok()) GTEST_SKIP() << loaded;
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
        const EpochFarewell* const ended = trainer->AwaitEnded();
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

// Before the first epoch, so that a model that fits can also be trained.
TEST_P(AllocationFaultsTest, WhatAnEngineWillHoldIsKnownBeforehand) {
  FailAllocation(0);
  const std::shared_ptr<Model> model = world_->Create(Spec());
  const FakeTrainers trainers = AttachAll(*model);
  EXPECT_EQ(model->activity().scratch_bytes, model->ScratchBytesByRank());
}

}  // namespace
}  // namespace paramshard::server
