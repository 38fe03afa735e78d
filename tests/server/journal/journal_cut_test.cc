// Writers that die behind every single store, and readers that go on.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/journal/journal.h"
#include "server/journal/journal_reader.h"
#include "server/journal/recovery.h"
#include "tests/server/journal/training.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

constexpr int kCommits = 8;

// Allows a number of stores of up to `unit` bytes, and no more.
class DyingWriter final : public StoreLimit {
 public:
  DyingWriter(int64_t stores, int64_t unit) : left_(stores), unit_(unit) {}

  int64_t Allow(int64_t size_bytes) override {
    const int64_t stores = std::min(left_, (size_bytes + unit_ - 1) / unit_);
    left_ -= stores;
    made_ += stores;
    return std::min(size_bytes, stores * unit_);
  }
  bool dead() const { return left_ == 0; }
  int64_t made() const { return made_; }

 private:
  int64_t left_;
  const int64_t unit_;
  int64_t made_ = 0;
};

// A life of a model, cut off anywhere.
class CutTest : public testing::TestWithParam<JournalIdentity> {
 protected:
  void SetUp() override { steps_ = WholeTraining(GetParam(), kCommits); }

  int64_t CountStores(int64_t unit) {
    JournalBuffer buffer(GetParam());
    DyingWriter writer(INT64_MAX, unit);
    std::unique_ptr<Journal> journal;
    for (const TrainingStep& step : steps_) EXPECT_OK(step.call(journal, buffer.bytes(), &writer)) << step.name;
    return writer.made();
  }

  // Returns the index of the call in which the writer dies.
  size_t RunUntilDeath(DyingWriter& writer, JournalBuffer& buffer) {
    std::unique_ptr<Journal> journal;
    size_t step = 0;
    for (; step < steps_.size(); ++step) {
      EXPECT_OK(steps_[step].call(journal, buffer.bytes(), &writer));
      if (writer.dead()) break;
    }
    return step;
  }

  const RecoveryPlan& Before(size_t step) const { return step == 0 ? nothing_ : steps_[step - 1].after; }

  const RecoveryPlan nothing_ = {};
  std::vector<TrainingStep> steps_;
};

TEST_P(CutTest, BehindEveryStoreTheOldStateIsFoundOrTheNewOne) {
  for (const int64_t unit : {8, 1}) {
    const int64_t stores = CountStores(unit);
    ASSERT_GT(stores, 1000);
    // Byte by byte there are many, which differ little.
    for (int64_t n = 1; n <= stores; n += unit == 8 ? 1 : 13) {
      JournalBuffer buffer(GetParam());
      DyingWriter writer(n, unit);
      const size_t step = RunUntilDeath(writer, buffer);
      ASSERT_LT(step, steps_.size());
      ASSERT_OK_AND_ASSIGN(const RecoveryPlan plan, PlanRecovery(buffer.bytes()));
      ASSERT_TRUE(SamePlan(plan, Before(step)) || SamePlan(plan, steps_[step].after))
          << "store " << n << " in " << steps_[step].name << ": " << RecoveryActionName(plan.action) << " "
          << plan.loss;
    }
  }
}

TEST_P(CutTest, ACallHasHappenedWhenItsLastStoreHas) {
  JournalBuffer whole(GetParam());
  DyingWriter counter(INT64_MAX, 8);
  std::unique_ptr<Journal> journal;
  for (size_t step = 0; step < steps_.size(); ++step) {
    ASSERT_OK(steps_[step].call(journal, whole.bytes(), &counter));
    JournalBuffer buffer(GetParam());
    DyingWriter writer(counter.made(), 8);
    ASSERT_EQ(RunUntilDeath(writer, buffer), step);
    ASSERT_OK_AND_ASSIGN(const RecoveryPlan plan, PlanRecovery(buffer.bytes()));
    EXPECT_TRUE(SamePlan(plan, steps_[step].after)) << steps_[step].name;
  }
}

TEST_P(CutTest, WhoeverAdoptsWhatIsFoundEndsWithTheSameState) {
  const int64_t stores = CountStores(8);
  for (int64_t n = 1; n <= stores; n += 5) {
    JournalBuffer buffer(GetParam());
    DyingWriter writer(n, 8);
    size_t step = RunUntilDeath(writer, buffer);
    ASSERT_OK_AND_ASSIGN(const RecoveryPlan plan, PlanRecovery(buffer.bytes()));
    std::unique_ptr<Journal> journal;
    if (step == 0) {
      buffer = JournalBuffer(GetParam());  // it is dropped, and made again
    } else {
      ASSERT_OK_AND_ASSIGN(journal, Journal::Adopt(buffer.bytes()));
      if (SamePlan(plan, steps_[step].after)) ++step;
    }
    for (; step < steps_.size(); ++step) {
      ASSERT_OK(steps_[step].call(journal, buffer.bytes(), nullptr)) << "store " << n << ": " << steps_[step].name;
      ASSERT_OK_AND_ASSIGN(const RecoveryPlan found, PlanRecovery(buffer.bytes()));
      ASSERT_TRUE(SamePlan(found, steps_[step].after)) << "store " << n << ": " << steps_[step].name;
    }
  }
}

// The writer dies in a call that ends a change.
class ChangeEndTest : public CutTest {
 protected:
  void SetUp() override {
    CutTest::SetUp();
    DyingWriter counter(INT64_MAX, 8);
    JournalBuffer buffer(GetParam());
    std::unique_ptr<Journal> journal;
    for (size_t step = 0; step < steps_.size(); ++step) {
      const int64_t first = counter.made() + 1;
      ASSERT_OK(steps_[step].call(journal, buffer.bytes(), &counter));
      const std::string& name = steps_[step].name;
      if (absl::StartsWith(name, "end import") || name == "end a restore") {
        ends_.push_back({.step = step, .first = first, .last = counter.made()});
      }
    }
  }
  struct End {
    size_t step = 0;
    int64_t first = 0;  // store
    int64_t last = 0;
  };
  // Returns a journal whose writer has made so many stores.
  JournalBuffer Behind(int64_t stores) {
    JournalBuffer buffer(GetParam());
    DyingWriter writer(stores, 8);
    RunUntilDeath(writer, buffer);
    return buffer;
  }

  std::vector<End> ends_;
};

TEST_P(ChangeEndTest, OneStoreBehindAllThatIsOfTheNewStateMakesItTheOneThatHolds) {
  ASSERT_EQ(ends_.size(), 5u) << "imports, and a restore";
  for (const End& end : ends_) {
    bool holds = false;
    int64_t unpublished = 0;
    for (int64_t n = end.first; n <= end.last; ++n) {
      JournalBuffer buffer = Behind(n);
      ASSERT_OK_AND_ASSIGN(const RecoveryPlan plan, PlanRecovery(buffer.bytes()));
      ASSERT_TRUE(!holds || SamePlan(plan, steps_[end.step].after)) << "store " << n;
      holds = SamePlan(plan, steps_[end.step].after);
      ASSERT_TRUE(holds || SamePlan(plan, Before(end.step))) << "store " << n << ": " << plan.loss;
      ASSERT_OK_AND_ASSIGN(const JournalReader reader, JournalReader::Open(buffer.bytes()));
      if (!holds || reader.Lifecycle()->lifecycle != JournalLifecycle::kChanged) continue;
      ++unpublished;
      ASSERT_OK(Journal::Adopt(buffer.bytes()).status());
      ASSERT_OK_AND_ASSIGN(const JournalReader adopted, JournalReader::Open(buffer.bytes()));
      EXPECT_EQ(adopted.Lifecycle()->lifecycle, JournalLifecycle::kUsable);
      EXPECT_EQ(PlanRecovery(buffer.bytes()).value(), plan) << "store " << n;
    }
    EXPECT_TRUE(holds) << steps_[end.step].name;
    EXPECT_GT(unpublished, 2) << "it holds before its records are published";
  }
}

TEST_P(ChangeEndTest, AFlippedBitOfAWordIsFoundOrChangesNothingThere) {
  const End& end = ends_.front();
  int64_t store = end.last;
  const auto is_changed = [](JournalBuffer& buffer) {
    return JournalReader::Open(buffer.bytes())->Lifecycle()->lifecycle == JournalLifecycle::kChanged;
  };
  for (JournalBuffer buffer = Behind(store); !is_changed(buffer); buffer = Behind(--store)) ASSERT_GT(store, end.first);
  JournalBuffer buffer = Behind(store);
  ASSERT_OK_AND_ASSIGN(const RecoveryPlan expected, PlanRecovery(buffer.bytes()));
  ASSERT_OK_AND_ASSIGN(const JournalReader reader, JournalReader::Open(buffer.bytes()));
  for (const JournalLayout::Record& record : reader.layout().records) {
    for (int64_t bit = 8 * record.word; bit < 8 * record.word + 64; ++bit) {
      uint8_t& byte = buffer.bytes()[bit / 8];
      byte = static_cast<uint8_t>(byte ^ 1 << bit % 8);
      ASSERT_OK_AND_ASSIGN(const RecoveryPlan plan, PlanRecovery(buffer.bytes()));
      EXPECT_TRUE(plan.action == RecoveryAction::kDataLoss || plan == expected) << "bit " << bit;
      byte = static_cast<uint8_t>(byte ^ 1 << bit % 8);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, ChangeEndTest, testing::Values(BandedIdentity()));

INSTANTIATE_TEST_SUITE_P(All, CutTest, testing::Values(SmallIdentity(), BandedIdentity()),
                         [](const auto& info) { return info.param.ranks.size() == 3 ? "InPlaceToo" : "InBands"; });

}  // namespace
}  // namespace paramshard::server
