// State that outlives a server beside masters, moments and numbers.

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/base/polling.h"
#include "kernels/formats/format.h"
#include "tests/server/keeper/fake_kept_store.h"
#include "tests/server/models/model_fixture.h"
#include "tests/server/models/test_world.h"
#include "tests/server/state/test_spec.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class KeptStateTest : public ModelTest {
 protected:
  void SetUp() override { Start(); }

  // A server in the place of the one before.
  void Start() {
    CloseWorld();
    world_ = std::make_unique<TestWorld>(TestWorld::Options{
        .moves = {.moves = true}, .kept = kept_.get(), .hooks = {.before_answer = [this]() -> absl::Status {
                                                         if (!answers_fail_) return absl::OkStatus();
                                                         return absl::InternalError("the test lets it fail");
                                                       }}});
    const auto cut_off = world_->store().TakeOver();
    ASSERT_OK(cut_off);
    if (const auto found = world_->store().Find("m"); found.ok()) model_ = *found;
  }

  // Frozen ones of every format, and without a master.
  static v1::ModelSpec FrozenSpec() {
    std::vector<v1::ParameterSpec> frozen;
    for (const FormatTraits& traits : kFormats) {
      v1::ParameterSpec& parameter = frozen.emplace_back(MakeParameter(
          absl::StrCat("frozen.", static_cast<int>(traits.format)), {130, 96}, static_cast<v1::Format>(traits.format)));
      parameter.set_trainable(false);
      parameter.mutable_initial_value()->mutable_normal()->set_standard_deviation(1);
    }
    return MakeSpec("m", {MakeUnit("w", {MakeParameter("w.w", {6, 4})}), MakeUnit("f", frozen)});
  }
  // All bytes that trainers are served.
  std::string Planes() const {
    std::string bytes;
    for (const auto& shard : model_->committed().shards) {
      for (const ShardExtent& extent : shard->extents()) {
        const auto planes = PlaneBytes(shard->memory(), extent);
        EXPECT_OK(planes);
        for (const PlaneViews& plane : *planes) {
          for (const HostView* const view : {&plane.data, &plane.scales, &plane.amax}) {
            bytes.append(view->bytes().begin(), view->bytes().end());
          }
        }
      }
    }
    return bytes;
  }
  // Other values for what is frozen.
  absl::Status Import() {
    return model_->changes()
        .Import({},
                [this]() -> absl::Status {
                  float next = 0.5f;
                  for (const auto& shard : model_->committed().shards) {
                    for (const ShardExtent& extent : shard->extents()) {
                      if (shard->extents().Spec(extent).trainable) continue;
                      std::vector<float> values(extent.elements);
                      for (float& value : values) value = next = next > 100 ? 0.01f : next * 1.03f;
                      RETURN_IF_ERROR(shard->Write(extent, StateTensor::kMaster, values));
                    }
                  }
                  return absl::OkStatus();
                })
        .status();
  }

  std::atomic<bool> answers_fail_ = false;
  std::unique_ptr<FakeKeptStore> kept_ = std::make_unique<FakeKeptStore>();
};

TEST_F(KeptStateTest, PlanesWithoutAMasterGoOnByteForByte) {
  model_ = world_->Create(FrozenSpec());
  const std::string created = Planes();
  const std::string hash = StateHash(*model_);
  Start();
  EXPECT_EQ(Planes() == created, true) << "those of initial values";
  EXPECT_EQ(StateHash(*model_), hash);
  ASSERT_OK(Import());
  const std::string imported = Planes();
  EXPECT_FALSE(imported == created);
  for (int i = 0; i < 2; ++i) {
    Start();
    EXPECT_TRUE(Planes() == imported);
  }
  Attach();
  Step();
  trainers_.clear();
  const std::string stepped = Planes();
  Start();
  EXPECT_TRUE(Planes() == stepped);
}

TEST_F(KeptStateTest, TheCopyOfPlanesIsCounted) {
  model_ = world_->Create(FrozenSpec());
  int64_t frozen = 0;
  for (const auto& shard : model_->committed().shards) {
    for (const ShardExtent& extent : shard->extents()) {
      if (!shard->extents().Spec(extent).trainable) frozen += PlaneSize(shard->memory(), extent);
    }
  }
  EXPECT_EQ(model_->committed().plane_copy_bytes(), frozen);
  ASSERT_OK(world_->store().Delete("m", ""));
  model_ = world_->Create(TestSpec());
  EXPECT_EQ(model_->committed().plane_copy_bytes(), 0) << "masters are kept";
}

TEST_F(KeptStateTest, AnAnswerThatIsNotWrittenDownIsTheLastOne) {
  model_ = world_->Create(TestSpec());
  Attach();
  Step();
  answers_fail_ = true;
  Step();
  ExpectEnded(absl::StatusCode::kInternal,
              AllOf(HasSubstr("commit 2 is answered, and could not be written down (the test lets it fail)"),
                    HasSubstr("resume from commit 2")));
  trainers_.clear();
  // A trainer that attaches before the epoch has settled is told later.
  const absl::StatusOr<bool> settled =
      Poll({.timeout = absl::Minutes(1)}, [&] { return !model_->state().doubt().ok(); });
  ASSERT_TRUE(settled.value_or(false));
  Trainer trainer;
  trainer.session = 1;
  EXPECT_THAT(model_->trainers().Attach(trainer),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("restart the daemon")));
  EXPECT_OK(model_->state().usable()) << "it can be saved";
  const std::string expected = StateHash(*model_);
  answers_fail_ = false;
  Start();
  EXPECT_EQ(commit_number(), 2);
  EXPECT_EQ(StateHash(*model_), expected);
  ExpectNextEpochWorks();
}

TEST_F(KeptStateTest, AnImportWritesDownWhatCouldNotBe) {
  model_ = world_->Create(TestSpec());
  Attach();
  answers_fail_ = true;
  Step();
  ExpectEnded(absl::StatusCode::kInternal, HasSubstr("could not be written down"));
  trainers_.clear();
  answers_fail_ = false;
  ASSERT_OK(model_->changes().Import({}, [] { return absl::OkStatus(); }));
  ExpectNextEpochWorks();
}

}  // namespace
}  // namespace paramshard::server
