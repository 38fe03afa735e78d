#include "common/shared_memory/words.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "common/shared_memory/futex.h"
#include "common/shared_memory/pause.h"

namespace paramshard::wire {
namespace {

// Spins before a thread sleeps, some 15 us: enough for an answer that is about to arrive, but less than waking the
// daemon takes.
constexpr int kSpins = 300;

size_t LineCount(const WordsCounts& counts) {
  return 8 + static_cast<size_t>(counts.slots) * counts.ranks + counts.slots +
         2 * static_cast<size_t>(counts.gradient_slots);
}

// A word and the value that it was moved to, exchanged as one number. Little-endian: the word is its low half.
struct Line {
  uint32_t value;
  uint32_t moved;
};
using Packed __attribute__((may_alias)) = uint64_t;

Line Read(const Word& word) {
  const uint64_t packed = __atomic_load_n(reinterpret_cast<const Packed*>(&word), __ATOMIC_SEQ_CST);
  return {static_cast<uint32_t>(packed), static_cast<uint32_t>(packed >> 32)};
}

// Returns true if the line still was `line` and is now `next`; else stores the present line in `line`.
bool Exchange(Word& word, Line& line, const Line& next) {
  const auto pack = [](const Line& l) { return l.value | static_cast<uint64_t>(l.moved) << 32; };
  uint64_t expected = pack(line);
  const bool done = __atomic_compare_exchange_n(reinterpret_cast<Packed*>(&word), &expected, pack(next), false,
                                                __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
  line = {static_cast<uint32_t>(expected), static_cast<uint32_t>(expected >> 32)};
  return done;
}

Line MovedFrom(uint32_t value) { return {value + kFinishedStep, (value + kFinishedStep) | 1}; }

// Returns true if the word has been moved ahead. A GPU stores only the word, so a store after the end puts it back
// behind `moved`.
bool IsMoved(const Line& line) {
  return line.moved != 0 && static_cast<int32_t>(line.value - line.moved) > -static_cast<int32_t>(kFinishedStep / 2);
}

// Largest number of exchanges of one word. Correct sides need one or two; a trainer that keeps writing the daemon's
// words must not hold up the daemon.
constexpr int kMostExchanges = 64;

}  // namespace

Words::Words(void* page, const WordsCounts& counts) : lines_(static_cast<Word*>(page)), counts_(counts) {}

size_t Words::SizeBytes(const WordsCounts& counts) {
  return LineCount(counts) * sizeof(Word) + kCommitRecords * sizeof(CommitRecord) + 2 * kEndTextBytes + kRingBytes;
}

CommitRecord& Words::commit_record(int64_t commit_number) const {
  auto* records = reinterpret_cast<CommitRecord*>(lines_ + LineCount(counts_));
  return records[commit_number % kCommitRecords];
}

char* Words::end_text(Side side) const {
  char* const texts = reinterpret_cast<char*>(&commit_record(0) + kCommitRecords);
  return side == Side::kDaemon ? texts : texts + kEndTextBytes;
}

uint8_t* Words::ring_bytes() const { return reinterpret_cast<uint8_t*>(end_text(Side::kClient)) + kEndTextBytes; }

// Both sides are sequentially consistent: either the waiter sees the new value, or the writer sees the waiter.
void Words::Publish(Word& word, uint32_t value) const {
  Line seen = Read(word);
  for (int i = 0; i < kMostExchanges; ++i) {
    if (Exchange(word, seen, seen.moved == 0 ? Line{value, 0} : MovedFrom(value))) break;
  }
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
  using Clock = std::chrono::steady_clock;
  // Longer waits would overflow the clock.
  const auto deadline = Clock::now() + absl::ToChronoNanoseconds(std::min(timeout, absl::Hours(24)));
  client_waits().value.fetch_add(1, std::memory_order_seq_cst);
  bool reached = false;
  while (true) {
    const uint32_t seen = word.value.load(std::memory_order_seq_cst);
    reached = Reached(seen, number);
    const absl::Duration left = absl::FromChrono(deadline - Clock::now());
    if (reached || left <= absl::ZeroDuration()) break;
    FutexWait(word.value, seen, left);
  }
  client_waits().value.fetch_sub(1, std::memory_order_seq_cst);
  return reached;
}

void Words::Finish(Side side, uint32_t status_code, absl::string_view text) const {
  Claim(side, status_code, text);
  // Words are moved only after status is set, so that no waiter takes a moved word for an answer.
  if (ended()) MoveAhead();
}

// Writes the text and status. If two threads of a side call it, only the first one does so.
void Words::Claim(Side side, uint32_t status_code, absl::string_view text) const {
  const auto claim = static_cast<uint32_t>(side);
  if (ended() || (ending().value.fetch_or(claim, std::memory_order_acq_rel) & claim) != 0) return;
  const size_t length = std::min(text.size(), kEndTextBytes - 1);
  std::memcpy(end_text(side), text.data(), length);
  end_text(side)[length] = '\0';
  uint32_t running = 0;
  status().value.compare_exchange_strong(running, side == Side::kClient ? status_code | kEndedByClient : status_code,
                                         std::memory_order_seq_cst);
  FutexWake(status().value);
}

void Words::MoveAhead() const {
  const auto move = [](Word& word) {
    Line line = Read(word);
    for (int i = 0; i < kMostExchanges && !IsMoved(line); ++i) {
      if (Exchange(word, line, MovedFrom(line.value))) break;
    }
    FutexWake(word.value);
  };
  move(committed());
  for (int slot = 0; slot < counts_.slots; ++slot) {
    for (int rank = 0; rank < counts_.ranks; ++rank) move(ready(slot, rank));
  }
  for (int slot = 0; slot < counts_.gradient_slots; ++slot) move(drained(slot));
}

uint32_t Words::end_code() const { return status().value.load(std::memory_order_seq_cst) & ~kEndedByClient; }

std::string Words::EndText() const {
  const bool by_client = (status().value.load(std::memory_order_seq_cst) & kEndedByClient) != 0;
  const char* text = end_text(by_client ? Side::kClient : Side::kDaemon);
  return std::string(text, strnlen(text, kEndTextBytes));
}

}  // namespace paramshard::wire
