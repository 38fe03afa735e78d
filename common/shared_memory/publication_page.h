// Pages by which a daemon publishes a model's planes to readers.
//
// A **publication page** belongs to one model, for the model's whole life. The daemon alone writes it; readers map it
// read-only. A **lease page** belongs to one reader, which writes it; the daemon reads it.
//
// The gate of a publication page holds a generation, which grows with every writing of planes, and a state:
//
//   kValid  ->  kAsked    a writer waits until leases of this generation are released, for a bounded time
//   kAsked  ->  kWriting  of the next generation: planes change
//   kWriting -> kValid    the version's numbers are written, then the planes are whole
//   any     ->  kEnded    the model is deleted, or its daemon has stopped in order
//
// A reader takes a lease on a generation: it reads a valid gate, stores the gate's value in its lease page, and reads
// the gate again; if the gate has changed it withdraws. Both sides are sequentially consistent, so that either the
// writer sees the lease, or the reader sees the writer. Planes that were read under a lease are whole if the gate still
// holds the lease's generation, valid or asked, after the copy: a writer does not wait for ever.
#ifndef PARAMSHARD_COMMON_SHARED_MEMORY_PUBLICATION_PAGE_H_
#define PARAMSHARD_COMMON_SHARED_MEMORY_PUBLICATION_PAGE_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace paramshard::wire {

inline constexpr int kHistoryIdBytes = 32;  // hexadecimal digits
inline constexpr int kPublicationTextBytes = 512;
inline constexpr size_t kPublicationDataBytes = 4096;  // kMaxReaderDataBytes

struct PublishedVersion {
  char history_id[kHistoryIdBytes] = {};
  int64_t commit_number = 0;
  int64_t version = 0;  // commits applied
  // Given by the trainers with the commit.
  uint64_t data_bytes = 0;
  char data[kPublicationDataBytes] = {};

  absl::string_view history() const { return {history_id, kHistoryIdBytes}; }
  // Requires data_bytes <= kPublicationDataBytes, as all below.
  absl::string_view reader_data() const { return {data, data_bytes}; }
  void SetReaderData(absl::string_view bytes) {
    data_bytes = bytes.size();
    std::copy(bytes.begin(), bytes.end(), data);
  }
  friend bool operator==(const PublishedVersion& a, const PublishedVersion& b) {
    return a.history() == b.history() && a.commit_number == b.commit_number && a.version == b.version &&
           a.reader_data() == b.reader_data();
  }
};

// Returns true if both have one history and one commit number.
inline bool IsSameState(const PublishedVersion& a, const PublishedVersion& b) {
  return a.history() == b.history() && a.commit_number == b.commit_number;
}

// Value of the gate.
struct Gate {
  enum class State : uint8_t { kValid = 0, kAsked = 1, kWriting = 2, kEnded = 3 };

  uint64_t generation = 0;  // from 1
  State state = State::kWriting;

  // Returns true if planes of the generation are whole.
  bool readable() const { return state == State::kValid || state == State::kAsked; }
  uint64_t packed() const { return generation << 2 | static_cast<uint64_t>(state); }
  static Gate Unpack(uint64_t value) { return {.generation = value >> 2, .state = static_cast<State>(value & 3)}; }
  friend bool operator==(const Gate& a, const Gate& b) { return a.packed() == b.packed(); }
};

// A view of a mapped page. Owns nothing; copyable. Zeroed memory is a page of generation 0 in state kValid, which no
// reader is given: the writer calls SetGate first.
class PublicationPage {
 public:
  PublicationPage() = default;
  // `page` must be kBytes long and live as long as the view.
  explicit PublicationPage(void* page) : page_(static_cast<Content*>(page)) {}

  Gate gate() const { return Gate::Unpack(page_->gate.load(std::memory_order_seq_cst)); }
  // The version of the present generation. Requires a lease on it: else it may be half written.
  PublishedVersion version() const { return page_->version; }
  // Returns why the gate is in state kWriting or kEnded; may be half written.
  std::string text() const;

  // Reader: sleeps until the gate is not `seen`, at most `timeout`. May return early.
  void AwaitChange(const Gate& seen, absl::Duration timeout) const;

  // Writer. The numbers and the text must be set in state kWriting, and a change of the gate wakes all readers.
  void SetVersion(const PublishedVersion& version) const { page_->version = version; }
  void SetText(absl::string_view text) const;
  void SetGate(const Gate& gate) const;

 private:
  struct Content {
    alignas(64) std::atomic<uint64_t> gate;
    std::atomic<uint32_t> changes;  // counts changes of the gate: a futex has 32 bits
    alignas(64) PublishedVersion version;
    char text[kPublicationTextBytes];
  };
  Content* page_ = nullptr;

 public:
  static constexpr int64_t kBytes = sizeof(Content);
};

// A view of a mapped page, as above. Zeroed memory is a page without a lease.
class LeasePage {
 public:
  LeasePage() = default;
  explicit LeasePage(void* page) : page_(static_cast<Content*>(page)) {}

  // Reader: takes a lease on the generation of a valid gate. Returns false if the gate has changed.
  bool Take(const PublicationPage& publication, const Gate& valid) const;
  void Release() const;

  // Writer. What a reader may write is not trusted: a lease counts if it is on the present generation.
  bool Holds(uint64_t generation) const;
  // Number of leases that were released.
  uint64_t released() const { return page_->released.load(std::memory_order_relaxed); }

 private:
  struct Content {
    alignas(64) std::atomic<uint64_t> lease;  // packed gate, 0 without one
    std::atomic<uint64_t> released;
  };
  Content* page_ = nullptr;

 public:
  static constexpr int64_t kBytes = sizeof(Content);
};

}  // namespace paramshard::wire

#endif  // PARAMSHARD_COMMON_SHARED_MEMORY_PUBLICATION_PAGE_H_
