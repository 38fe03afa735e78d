// The reader of journals: the bytes are a journal's memory, whose hashes are repaired as far as they are found.
// Accepted journals are consistent, and can be adopted and continued.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "kernels/base/check.h"
#include "server/journal/journal.h"
#include "server/journal/recovery.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/server/journal/training.h"

namespace paramshard::server {
namespace {

// Largest memory in bytes that inputs of any size become.
constexpr size_t kMostBytes = size_t{1} << 20;

template <typename T>
T Load(const std::string& bytes, int64_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(value));
  return value;
}

template <typename T>
void Store(std::string& bytes, int64_t offset, const T& value) {
  std::memcpy(bytes.data() + offset, &value, sizeof(value));
}

void SetHash(uint64_t (&stored)[2], absl::uint128 hash) {
  stored[0] = absl::Uint128Low64(hash);
  stored[1] = absl::Uint128High64(hash);
}

absl::Span<const uint8_t> BytesOf(const std::string& bytes, int64_t offset, uint64_t size) {
  return {reinterpret_cast<const uint8_t*>(bytes.data()) + offset, size};
}

void MendSlot(std::string& bytes, int64_t offset, uint64_t capacity, uint64_t word, uint64_t seed) {
  auto slot = Load<JournalSlotHeader>(bytes, offset);
  slot.word = word;
  slot.size_bytes = std::min(slot.size_bytes, capacity);
  SetHash(slot.hash, JournalHash(BytesOf(bytes, offset + static_cast<int64_t>(sizeof(slot)), slot.size_bytes), seed));
  Store(bytes, offset, slot);
}

std::string Mend(std::string bytes, Mutator& mutator) {
  if (bytes.size() < sizeof(JournalHeader) || mutator.Below(8) == 0) return bytes;
  auto header = Load<JournalHeader>(bytes, 0);
  const absl::StatusOr<JournalLayout> layout = JournalLayout::Of(header.shape);
  if (!layout.ok() || layout->size_bytes > static_cast<int64_t>(kMostBytes)) return bytes;
  bytes.resize(layout->size_bytes);
  header.magic = kJournalMagic;
  header.version = kJournalVersion;
  header.size_bytes = sizeof(header);
  Store(bytes, 0, header);
  SetHash(header.hash, JournalHash(BytesOf(bytes, 0, offsetof(JournalHeader, hash)), kHeaderSeed));
  Store(bytes, 0, header);
  MendSlot(bytes, layout->identity, header.shape.identity_bytes, PublishedWord(0), kIdentitySeed);
  for (int i = 0; i < kJournalRecords; ++i) {
    const JournalLayout::Record& record = layout->records[i];
    const auto sequence = static_cast<uint32_t>(Load<uint64_t>(bytes, record.word));
    Store(bytes, record.word, PublishedWord(sequence));
    MendSlot(bytes, record.slots[sequence % 2], record.capacity, PublishedWord(sequence),
             SlotSeed(static_cast<JournalRecord>(i), sequence));
  }
  return bytes;
}

bool IsThere(RecoveryAction action) {
  return action != RecoveryAction::kNotBegun && action != RecoveryAction::kDrop && action != RecoveryAction::kDataLoss;
}

void CheckPlan(const RecoveryPlan& plan) {
  PARAMSHARD_CHECK(!IsThere(plan.action) || plan.identity.has_value());
  PARAMSHARD_CHECK((plan.action == RecoveryAction::kDataLoss) == !plan.loss.empty());
  if (plan.identity.has_value()) PARAMSHARD_CHECK(CheckIdentity(*plan.identity).ok());
  if (plan.numbers.has_value()) PARAMSHARD_CHECK(CheckNumbers(*plan.identity, *plan.numbers).ok());
  PARAMSHARD_CHECK(plan.action != RecoveryAction::kRedoApply || plan.redo.size() == plan.identity->ranks.size());
  for (size_t i = 0; i < plan.redo.size(); ++i) {
    const int bands = std::max(1, static_cast<int>(plan.identity->ranks[i].bands.size()));
    PARAMSHARD_CHECK(plan.redo[i].next >= 0 && plan.redo[i].next <= bands);
  }
}

// Follows the plan like the next server, as far as it concerns the journal.
void FollowPlan(const RecoveryPlan& plan, absl::Span<uint8_t> memory) {
  const absl::StatusOr<std::unique_ptr<Journal>> adopted = Journal::Adopt(memory);
  if (!IsThere(plan.action)) return;
  PARAMSHARD_CHECK(adopted.ok());
  if (plan.action != RecoveryAction::kServe) return;
  Journal& journal = **adopted;
  if (plan.prepared.has_value()) PARAMSHARD_CHECK(journal.Withdraw().ok());
  PARAMSHARD_CHECK(journal.BeginEpoch(plan.epoch->epoch + 1, plan.epoch->history).ok());
  PreparedCommit commit{.commit_number = plan.numbers->commit_number + 1,
                        .groups = {},
                        .has_gradient = std::vector<bool>(plan.identity->parameters),
                        .client_states = plan.numbers->client_states};
  PARAMSHARD_CHECK(journal.Prepare(commit).ok());
  const absl::StatusOr<RecoveryPlan> prepared = PlanRecovery(memory);
  PARAMSHARD_CHECK(prepared.ok() && prepared->prepared == commit);
}

void Run(const std::string& input) {
  if (input.size() > kMostBytes) return;
  std::vector<uint64_t> words((input.size() + 7) / 8);
  if (!input.empty()) std::memcpy(words.data(), input.data(), input.size());
  const absl::Span<uint8_t> memory(reinterpret_cast<uint8_t*>(words.data()), input.size());
  const absl::StatusOr<RecoveryPlan> plan = PlanRecovery(memory);
  if (!plan.ok()) return;
  CheckPlan(*plan);
  FollowPlan(*plan, memory);
}

// Lives that end behind some of their calls.
std::vector<std::string> Seeds() {
  std::vector<std::string> seeds = {""};
  JournalBuffer buffer(SmallIdentity());
  std::unique_ptr<Journal> journal;
  int calls = 0;
  for (const TrainingStep& step : WholeTraining(SmallIdentity(), 3)) {
    PARAMSHARD_CHECK(step.call(journal, buffer.bytes(), nullptr).ok());
    if (calls++ % 4 == 0) seeds.emplace_back(buffer.bytes().begin(), buffer.bytes().end());
  }
  return seeds;
}

}  // namespace
}  // namespace paramshard::server

const paramshard::FuzzTarget& paramshard::Target() {
  using namespace paramshard::server;  // NOLINT
  static const auto* const target =
      new FuzzTarget{.seeds = Seeds(),
                     .words = {std::string(4, '\0'), std::string(8, '\0'), std::string(4, '\xff'),
                               std::string(8, '\xff'), std::string("\x01\0\0\0", 4), std::string("\0\0\0\x80", 4),
                               std::string("\x01\0\0\0\xfe\xff\xff\xff", 8), "\x7f"},
                     .run = Run,
                     .mend = Mend};
  return *target;
}
