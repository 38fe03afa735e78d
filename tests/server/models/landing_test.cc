// Pushes that other ranks do not make, on devices with little memory: they stay in their slots, and give the same bytes.
#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "tests/server/models/faulty_world.h"

namespace paramshard::server {
namespace {

class LandingTest : public FaultyWorldTest {
 protected:
  static constexpr int kA = 0;
  static constexpr int kB = 1;

  void SetUp() override {
    Open();
    if (IsSkipped() || HasFatalFailure()) return;
    if (devices_.size() < 2) GTEST_SKIP() << "one device";
    model_ = world_->Create(TwoUnits());
    trainers_ = AttachAll(*model_);
  }

  // Both units have the same size.
  static v1::ModelSpec TwoUnits() {
    v1::ModelSpec spec =
        MakeSpec("m", {MakeUnit("a", {MakeParameter("a", {96, 64})}), MakeUnit("b", {MakeParameter("b", {96, 64})})});
    spec.set_gradient_sums(v1::GRADIENT_SUMS_AT_PUSH);
    spec.set_gradient_slots(2);
    return spec;
  }

  // Bytes that a rank keeps of a landed push: its rows, of two ranks.
  static constexpr int64_t kLandedBytes = 2 * 96 / 2 * 64 * 4;

  // The devices have so many bytes left.
  void Leave(int64_t bytes) { faults_.total_bytes = faults_.allocated_bytes + bytes; }

  int64_t Push(int unit, int slot, float value) {
    // This process does not map the slots of a GPU: gradients there are the zeros of new memory.
    if (test::TestDevices() == "cpu") trainers_[0]->FillGradients(slot, unit, value);
    return trainers_[0]->Push(unit, slot);
  }

  int64_t landed_bytes() const {
    const std::vector<int64_t> scratch = model_->trainers().activity().scratch_bytes;
    return std::accumulate(scratch.begin(), scratch.end(), -begun_);
  }

  static bool Comes(const std::function<bool()>& condition) {
    const absl::Time end = absl::Now() + absl::Seconds(30);
    while (!condition()) {
      if (absl::Now() > end) return false;
      std::this_thread::yield();
    }
    return true;
  }
  // Waits until the ranks have asked for memory for a push once more.
  bool AsksForMemory() const {
    return Comes(
        [this, asked = faults_.availability_questions.load()] { return faults_.availability_questions >= asked + 8; });
  }

  void Commit() {
    const int64_t commit = model_->committed().commits.numbers().commit_number + 1;
    for (const auto& trainer : trainers_) trainer->Commit(commit);
    for (const auto& trainer : trainers_) ASSERT_TRUE(trainer->AwaitCommitted(commit).has_value());
  }

  // The state is that after a step in which rank 0 alone pushes both units, with memory enough.
  void ExpectState() const {
    if (test::TestDevices() != "cpu") return;
    TestWorld world({.ranks = 2});
    const std::shared_ptr<Model> model = world.Create(TwoUnits());
    const FakeTrainers trainers = AttachAll(*model);
    for (const int unit : {kA, kB}) {
      trainers[0]->FillGradients(unit, unit, static_cast<float>(1 + unit));
      trainers[0]->Push(unit, unit);
    }
    for (const auto& trainer : trainers) trainer->Commit(1);
    for (const auto& trainer : trainers) ASSERT_TRUE(trainer->AwaitCommitted(1).has_value());
    EXPECT_EQ(StateHash(*model_), StateHash(*model));
  }

  std::shared_ptr<Model> model_;
  FakeTrainers trainers_;
  int64_t begun_ = 0;
};

TEST_F(LandingTest, WithoutMemoryPushesStayInTheirSlotsUntilAllAreAtTheEndOfTheStep) {
  begun_ = landed_bytes();
  const int64_t before = faults_.allocated_bytes;
  Leave(2 * kLandedBytes - 1);
  const int64_t pushes[] = {Push(kA, 0, 1.0f), Push(kB, 1, 2.0f)};
  ASSERT_TRUE(AsksForMemory());
  EXPECT_EQ(faults_.allocated_bytes, before);
  EXPECT_EQ(landed_bytes(), 0);
  Commit();
  for (const int slot : {0, 1}) EXPECT_TRUE(trainers_[0]->AwaitDrained(slot, pushes[slot]));
  EXPECT_EQ(faults_.allocated_bytes, before);
  ExpectState();
}

TEST_F(LandingTest, APushLandsAsSoonAsThereIsMemory) {
  begun_ = landed_bytes();
  Leave(0);
  const int64_t push = Push(kA, 0, 1.0f);
  ASSERT_TRUE(AsksForMemory());
  EXPECT_EQ(landed_bytes(), 0);
  Leave(4 * kLandedBytes);
  ASSERT_TRUE(trainers_[0]->AwaitDrained(0, push));
  EXPECT_EQ(landed_bytes(), 2 * kLandedBytes);
  const int64_t next = Push(kB, 1, 2.0f);
  ASSERT_TRUE(AsksForMemory()) << "there is less left than was landed";
  EXPECT_EQ(landed_bytes(), 2 * kLandedBytes);
  Commit();
  EXPECT_TRUE(trainers_[0]->AwaitDrained(1, next));
  ExpectState();
}

TEST_F(LandingTest, MemoryThatAnotherUnitHasHadIsTakenInItsPlace) {
  begun_ = landed_bytes();
  ASSERT_TRUE(trainers_[0]->AwaitDrained(0, Push(kA, 0, 1.0f)));
  Commit();
  const int64_t before = faults_.allocated_bytes;
  EXPECT_EQ(landed_bytes(), 2 * kLandedBytes);
  Leave(kLandedBytes * 3 / 2);
  ASSERT_TRUE(trainers_[0]->AwaitDrained(1, Push(kB, 1, 2.0f)));
  EXPECT_EQ(faults_.allocated_bytes, before);
  EXPECT_EQ(landed_bytes(), 2 * kLandedBytes);
  Commit();
}

}  // namespace
}  // namespace paramshard::server
