// The words page of a session: shared memory in which a trainer and its daemon publish their progress to each other.
//
// A word is 32 bits on its own cache line and has one writer; numbers are compared cyclically. The page holds, in
// this order, a header, the words below, the answers of the last commits, the texts of the end, and the command ring.
// Both sides compute the same layout from the same three counts.
//
// | word              | writer  | meaning                                                                  |
// | ----------------- | ------- | ------------------------------------------------------------------------ |
// | status            | both    | 0 while the epoch runs, else an absl::StatusCode, and kEndedByClient     |
// | committed         | daemon  | number of the last answered commit (low 32 bits)                          |
// | ready[slot][rank] | daemon  | number of the last Gather whose pieces of `rank` are in `slot`            |
// | drained[g]        | daemon  | number of the last Push that was read out of gradient slot g              |
// | daemon_waits      | daemon  | non-zero while the daemon sleeps on the doorbell                          |
// | ending            | both    | which sides have begun to end the page                                    |
// | released[slot]    | client  | number of the last Gather in `slot` that the trainer has released         |
// | filled[g]         | client  | number of the Push that gradient slot g is filled for                     |
// | client_waits      | client  | threads of the trainer that sleep on a word                               |
// | doorbell          | both    | counts up whenever the daemon's thread for the rank has to check          |
//
// **The end.** The daemon ends a page when its epoch ends, the client library when the daemon has died. Each side has
// its own text: it writes the text, then moves status from 0, and the side that succeeds has ended the page. Then every
// word of the daemon is moved 2^30 ahead, so that every waiter wakes, on a host or on a GPU. The line of such a word
// also holds the value that it was moved to, and both change in one atomic operation. So a thread that finds a page
// half moved moves the rest, and no word twice.
#ifndef PARAMSHARD_COMMON_SHARED_MEMORY_WORDS_H_
#define PARAMSHARD_COMMON_SHARED_MEMORY_WORDS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace paramshard::wire {

inline constexpr uint32_t kFinishedStep = 1u << 30;
inline constexpr size_t kCacheLineBytes = 64;
inline constexpr size_t kRingBytes = 256 * 1024;
inline constexpr size_t kEndTextBytes = 2048;  // of each side
inline constexpr int kCommitRecords = 4;

struct alignas(kCacheLineBytes) Word {
  std::atomic<uint32_t> value;
  // For a daemon's word, after the end: the value that it was moved to, with bit 0 set. 0 before.
  std::atomic<uint32_t> moved;
};
static_assert(sizeof(Word) == kCacheLineBytes);

// Flag in status, beside the code: the client's text is valid.
inline constexpr uint32_t kEndedByClient = 1u << 16;

enum class Side : uint32_t { kDaemon = 1, kClient = 2 };

// Returns true if `word` has reached `number`, for numbers less than 2^31 apart.
inline bool Reached(uint32_t word, uint32_t number) { return static_cast<int32_t>(word - number) >= 0; }

// Answer of one commit; written before `committed`. Commit c is in record c % kCommitRecords.
struct alignas(kCacheLineBytes) CommitRecord {
  int64_t commit_number;
  int64_t version;
  double gradient_norm;
  int64_t non_finite_count;
  uint32_t skipped;
};

struct WordsCounts {
  int slots = 0;  // gather slots, with resident ones
  int ranks = 0;  // shard size
  int gradient_slots = 0;
};

// A view of a mapped page. Owns nothing; copyable.
class Words {
 public:
  Words() = default;
  // `page` must be SizeBytes(counts) long and live as long as the view.
  Words(void* page, const WordsCounts& counts);

  static size_t SizeBytes(const WordsCounts& counts);

  Word& status() const { return fixed(0); }
  Word& committed() const { return fixed(1); }
  Word& daemon_waits() const { return fixed(2); }
  Word& client_waits() const { return fixed(3); }
  Word& doorbell() const { return fixed(4); }
  Word& ending() const { return fixed(7); }
  Word& ready(int slot, int rank) const { return lines_[kFixedWords + slot * counts_.ranks + rank]; }
  Word& drained(int slot) const { return lines_[kFixedWords + counts_.slots * counts_.ranks + slot]; }
  Word& released(int slot) const { return (&drained(0))[counts_.gradient_slots + slot]; }
  Word& filled(int slot) const { return (&released(0))[counts_.slots + slot]; }
  CommitRecord& commit_record(int64_t commit_number) const;
  // Positions in the command ring, in bytes, and its bytes: see ring.h.
  Word& ring_head() const { return fixed(5); }
  Word& ring_tail() const { return fixed(6); }
  uint8_t* ring_bytes() const;

  const WordsCounts& counts() const { return counts_; }

  // Stores a daemon word, moved ahead if the page has ended, and wakes the trainer if it sleeps.
  void Publish(Word& word, uint32_t value) const;
  // Increments the doorbell and wakes the daemon's thread if daemon_waits is set.
  void Ring() const;
  // Trainer side: spins briefly, then sleeps until `word` has reached `number`. Returns false on timeout.
  bool AwaitReached(const Word& word, uint32_t number, absl::Duration timeout) const;

  // Ends the page, or completes an end that was left half done; the first end stays. Requires status_code != 0. A
  // second call moves words ahead that a GPU has written since, so that no waiter waits forever.
  void Finish(Side side, uint32_t status_code, absl::string_view text) const;
  // Returns true if the page has ended; then end_code() and EndText() are its absl::StatusCode and text.
  bool ended() const { return end_code() != 0; }
  uint32_t end_code() const;
  std::string EndText() const;

 private:
  static constexpr int kFixedWords = 8;
  Word& fixed(int index) const { return lines_[index]; }
  char* end_text(Side side) const;
  void Claim(Side side, uint32_t status_code, absl::string_view text) const;
  void MoveAhead() const;

  Word* lines_ = nullptr;
  WordsCounts counts_;
};

}  // namespace paramshard::wire

#endif  // PARAMSHARD_COMMON_SHARED_MEMORY_WORDS_H_
