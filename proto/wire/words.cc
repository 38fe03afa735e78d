#include "proto/wire/words.h"

#include <algorithm>
#include <cstring>

#include "absl/time/clock.h"
#include "proto/wire/futex.h"
#include "proto/wire/pause.h"

namespace paramshard::wire {
namespace {

// Some 15 us: what is just arriving is not slept for, and what takes as long as waking the daemon costs no trainer's
// CPU.
constexpr int kSpins = 300;

size_t LineCount(const WordsCounts& counts) {
  return 8 + static_cast<size_t>(counts.slots) * counts.ranks + counts.slots +
         2 * static_cast<size_t>(counts.gradient_slots);
}

}  // namespace

Words::Words(void* page, const WordsCounts& counts) : lines_(static_cast<Word*>(page)), counts_(counts) {}

size_t Words::SizeBytes(const WordsCounts& counts) {
  return LineCount(counts) * sizeof(Word) + kCommitRecords * sizeof(CommitRecord) + kEndTextBytes + kRingBytes;
}

CommitRecord& Words::commit_record(int64_t commit_number) const {
  auto* records = reinterpret_cast<CommitRecord*>(lines_ + LineCount(counts_));
  return records[commit_number % kCommitRecords];
}

char* Words::end_text() const { return reinterpret_cast<char*>(&commit_record(0) + kCommitRecords); }

uint8_t* Words::ring_bytes() const { return reinterpret_cast<uint8_t*>(end_text()) + kEndTextBytes; }

// Sequentially consistent on both sides: either the waiter sees the new value or the writer sees the waiter.
void Words::Publish(Word& word, uint32_t value) const {
  word.value.store(value, std::memory_order_seq_cst);
  if (client_waits().value.load(std::memory_order_seq_cst) != 0) FutexWake(word.value);
}

void Words::Ring() const {
  doorbell().value.fetch_add(1, std::memory_order_seq_cst);
  if (daemon_waits().value.load(std::memory_order_seq_cst) != 0) FutexWake(doorbell().value);
}

bool Words::AwaitReached(const Word& word, uint32_t number, absl::Duration timeout) const {
  for (int spin = 0; spin < kSpins; ++spin) {
    if (Reached(word.value.load(std::memory_order_acquire), number)) return true;
    Pause();
  }
  const absl::Time deadline = absl::Now() + timeout;
  client_waits().value.fetch_add(1, std::memory_order_seq_cst);
  bool reached = false;
  while (true) {
    const uint32_t seen = word.value.load(std::memory_order_seq_cst);
    reached = Reached(seen, number);
    const absl::Duration left = deadline - absl::Now();
    if (reached || left <= absl::ZeroDuration()) break;
    FutexWait(word.value, seen, left);
  }
  client_waits().value.fetch_sub(1, std::memory_order_seq_cst);
  return reached;
}

void Words::Finish(uint32_t status_code, absl::string_view text) const {
  if (status().value.load(std::memory_order_acquire) != 0) return;
  const size_t length = std::min(text.size(), kEndTextBytes - 1);
  std::memcpy(end_text(), text.data(), length);
  end_text()[length] = '\0';
  status().value.store(status_code, std::memory_order_seq_cst);
  FutexWake(status().value);
  const auto advance = [](Word& word) {
    word.value.fetch_add(kFinishedStep, std::memory_order_seq_cst);
    FutexWake(word.value);
  };
  advance(committed());
  for (int slot = 0; slot < counts_.slots; ++slot) {
    for (int rank = 0; rank < counts_.ranks; ++rank) advance(ready(slot, rank));
  }
  for (int slot = 0; slot < counts_.gradient_slots; ++slot) advance(drained(slot));
}

std::string Words::EndText() const {
  const char* text = end_text();
  return std::string(text, strnlen(text, kEndTextBytes));
}

}  // namespace paramshard::wire
