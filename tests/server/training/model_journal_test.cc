#include "server/training/model_journal.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/device/memory.h"
#include "server/journal/journal.h"
#include "server/journal/journal_reader.h"
#include "server/journal/journal_stores.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

// Ends the process that writes a journal behind so many bytes.
class DyingWriter final : public StoreLimit {
 public:
  explicit DyingWriter(int64_t bytes) : left_(bytes) {}
  int64_t Allow(int64_t size_bytes) override {
    const int64_t allowed = std::min(left_, size_bytes);
    left_ -= allowed;
    return allowed;
  }
  int64_t left() const { return left_; }

 private:
  int64_t left_;
};

JournalIdentity SomeIdentity() {
  JournalIdentity identity{.spec = "a spec's bytes",
                           .spec_fingerprint = 0x1234,
                           .node = 0,
                           .device_counts = {1},
                           .shard_size = 1,
                           .parameters = 0,
                           .groups = 0,
                           .client_state_bytes = 8,
                           .book = {},
                           .ranks = {}};
  identity.ranks.push_back({.rank = 0, .pieces = {}, .extents = {}, .trainable_count = 0, .bands = {}, .distance = 0});
  return identity;
}

absl::Status MakeUsable(absl::Span<uint8_t> memory, StoreLimit& limit) {
  auto journal = Journal::Create(memory, SomeIdentity(), &limit);
  if (!journal.ok()) return journal.status();
  JournalNumbers numbers;
  numbers.client_states.resize(1);
  numbers.positions.resize(1);
  return (*journal)->SetUsable({.history = {1}, .lineage = {1}}, numbers);
}

TEST(ModelJournalTest, WhoeverIsAnotherModelLeavesAChangeThatIsNotPublishedAsItIs) {
  ASSERT_OK_AND_ASSIGN(const int64_t size_bytes, Journal::SizeOf(SomeIdentity()));
  ASSERT_OK_AND_ASSIGN(const Memory piece, Memory::Allocate("journal", size_bytes, Sharing::kPrivate));
  const auto memory = absl::MakeSpan(piece.data(), size_bytes);
  DyingWriter whole(INT64_MAX);
  ASSERT_OK(MakeUsable(memory, whole));
  // The last word says that all is published.
  std::fill(memory.begin(), memory.end(), uint8_t{0});
  DyingWriter dying(INT64_MAX - whole.left() - 1);
  ASSERT_OK(MakeUsable(memory, dying));
  ASSERT_OK_AND_ASSIGN(const JournalReader reader, JournalReader::Open(memory));
  ASSERT_EQ(reader.Lifecycle()->lifecycle, JournalLifecycle::kChanged);

  const std::vector<uint8_t> before(memory.begin(), memory.end());
  const std::unique_ptr<ComputeDevice> device = MakeCpuDevice(0);
  JournalIdentity other = SomeIdentity();
  other.device_counts = {1, 1};
  EXPECT_THAT(ModelJournal::Adopt(piece, other, *device), StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_TRUE(std::equal(before.begin(), before.end(), memory.begin()));
  ASSERT_OK(ModelJournal::Adopt(piece, SomeIdentity(), *device));
  EXPECT_EQ(JournalReader::Open(memory)->Lifecycle()->lifecycle, JournalLifecycle::kUsable);
}

}  // namespace
}  // namespace paramshard::server
