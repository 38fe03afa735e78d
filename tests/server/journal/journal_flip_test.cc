// Journals of which a bit, or more, is not what was written.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/numeric/int128.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/journal/journal.h"
#include "server/journal/recovery.h"
#include "tests/server/journal/journal_version.h"
#include "tests/server/journal/training.h"
#include "tests/support/effort.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// The memory of a life behind one of its calls.
JournalBuffer Behind(const std::string& name) {
  JournalBuffer buffer(SmallIdentity());
  std::unique_ptr<Journal> journal;
  for (const TrainingStep& step : WholeTraining(SmallIdentity(), 8)) {
    EXPECT_OK(step.call(journal, buffer.bytes(), nullptr));
    if (step.name == name) return buffer;
  }
  ADD_FAILURE() << name;
  return buffer;
}

class FlipTest : public testing::TestWithParam<const char*> {};

TEST_P(FlipTest, EveryFlippedBitIsFoundOrChangesNothing) {
  JournalBuffer buffer = Behind(GetParam());
  ASSERT_OK_AND_ASSIGN(const RecoveryPlan expected, PlanRecovery(buffer.bytes()));
  int64_t refused = 0;
  for (size_t bit = 0; bit < 8 * buffer.bytes().size(); bit += Stride()) {
    uint8_t& byte = buffer.bytes()[bit / 8];
    byte = static_cast<uint8_t>(byte ^ 1 << bit % 8);
    const absl::StatusOr<RecoveryPlan> plan = PlanRecovery(buffer.bytes());
    const bool lost = !plan.ok() || plan->action == RecoveryAction::kDataLoss;
    refused += lost;
    ASSERT_TRUE(lost || *plan == expected) << "bit " << bit << ": " << RecoveryActionName(plan->action);
    byte = static_cast<uint8_t>(byte ^ 1 << bit % 8);
  }
  // At least the bits of the header, the identity and the records are found.
  EXPECT_GT(refused, 8 * 500 / Stride());
}

INSTANTIATE_TEST_SUITE_P(All, FlipTest, testing::Values("prepare 5", "end band 2 of rank 0", "begin a restore"));

TEST(DamageTest, ManyFlippedBitsAreFoundToo) {
  JournalBuffer buffer = Behind("end band 2 of rank 0");
  ASSERT_OK_AND_ASSIGN(const RecoveryPlan expected, PlanRecovery(buffer.bytes()));
  const std::vector<uint8_t> good(buffer.bytes().begin(), buffer.bytes().end());
  std::mt19937_64 random(1);
  for (int round = 0; round < 2000; ++round) {
    for (uint64_t flips = 2 + random() % 30; flips > 0; --flips) {
      buffer.bytes()[random() % good.size()] = static_cast<uint8_t>(random());
    }
    const absl::StatusOr<RecoveryPlan> plan = PlanRecovery(buffer.bytes());
    ASSERT_TRUE(!plan.ok() || plan->action == RecoveryAction::kDataLoss || *plan == expected) << "round " << round;
    std::copy(good.begin(), good.end(), buffer.bytes().begin());
  }
}

TEST(DamageTest, APartOfAJournalIsNone) {
  JournalBuffer buffer = Behind("answer 8");
  for (const size_t size : {size_t{0}, size_t{7}, size_t{64}, buffer.bytes().size() - 64}) {
    ASSERT_OK_AND_ASSIGN(const RecoveryPlan plan, PlanRecovery(buffer.bytes().subspan(0, size)));
    EXPECT_EQ(plan.action, RecoveryAction::kDataLoss) << size;
  }
}

TEST(DamageTest, WhatIsDamagedIsNamed) {
  JournalBuffer buffer = Behind("answer 8");
  std::fill(buffer.bytes().end() - 64, buffer.bytes().end(), 0x5a);  // the rings
  ASSERT_OK_AND_ASSIGN(const RecoveryPlan plan, PlanRecovery(buffer.bytes()));
  EXPECT_THAT(plan.loss, HasSubstr("histories of amaxes is damaged"));
  EXPECT_EQ(plan.identity, SmallIdentity());
}

TEST(DamageTest, AnotherVersionOfTheFormatIsSaidClearlyAndIsNoDamage) {
  for (const uint32_t version : {kJournalVersion - 1, kJournalVersion + 1, kJournalVersion + 1000}) {
    JournalBuffer buffer = Behind("answer 8");
    SetJournalVersion(buffer.bytes(), version);
    const std::string both = absl::StrCat("want format version ", kJournalVersion, ", got ", version, ", of a");
    const char* const whose =
        version > kJournalVersion ? "a newer program: start that" : "an older program: start that";
    EXPECT_THAT(PlanRecovery(buffer.bytes()),
                StatusIs(absl::StatusCode::kFailedPrecondition, AllOf(HasSubstr(both), HasSubstr(whose))));
    EXPECT_THAT(Journal::Adopt(buffer.bytes()), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr(both)));
  }
}

// Such as a header of another size has, which ends with its hash as well.
TEST(DamageTest, AVersionWithAnotherHeaderIsKnownToo) {
  JournalBuffer buffer = Behind("answer 8");
  for (const uint32_t header_bytes : {32u, 160u}) {
    const uint32_t version = kJournalVersion + 1;
    std::memcpy(buffer.bytes().data() + offsetof(JournalHeader, version), &version, sizeof(version));
    std::memcpy(buffer.bytes().data() + offsetof(JournalHeader, size_bytes), &header_bytes, sizeof(header_bytes));
    const size_t hashed_bytes = header_bytes - sizeof(JournalHeader::hash);
    const absl::uint128 hash = JournalHash(buffer.bytes().subspan(0, hashed_bytes), kHeaderSeed);
    const uint64_t stored[2] = {absl::Uint128Low64(hash), absl::Uint128High64(hash)};
    std::memcpy(buffer.bytes().data() + hashed_bytes, stored, sizeof(stored));
    EXPECT_THAT(PlanRecovery(buffer.bytes()), StatusIs(absl::StatusCode::kFailedPrecondition)) << header_bytes;
  }
}

TEST(DamageTest, AVersionThatItsHashDoesNotCoverIsDamage) {
  for (const uint8_t version : {kJournalVersion - 1, kJournalVersion + 1}) {
    JournalBuffer buffer = Behind("answer 8");
    buffer.bytes()[offsetof(JournalHeader, version)] = version;
    ASSERT_OK_AND_ASSIGN(const RecoveryPlan plan, PlanRecovery(buffer.bytes()));
    EXPECT_THAT(plan.loss, HasSubstr("header is damaged"));
  }
}

TEST(DamageTest, ADamagedModelMayBeWrittenAnewByAChange) {
  JournalBuffer buffer = Behind("begin a restore");
  std::fill(buffer.bytes().end() - 64, buffer.bytes().end(), 0x5a);
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Journal> journal, Journal::Adopt(buffer.bytes()));
  Training training(SmallIdentity());
  training.Replace();
  ASSERT_OK(journal->SetUsable(training.epoch(), training.numbers()));
  ASSERT_OK_AND_ASSIGN(const RecoveryPlan plan, PlanRecovery(buffer.bytes()));
  EXPECT_EQ(plan.numbers, training.numbers());
}

}  // namespace
}  // namespace paramshard::server
