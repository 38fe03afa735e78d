// Stores of a journal's writer.
#ifndef PARAMSHARD_SERVER_JOURNAL_JOURNAL_STORES_H_
#define PARAMSHARD_SERVER_JOURNAL_JOURNAL_STORES_H_

#include <atomic>
#include <cstdint>
#include <cstring>

#include "absl/types/span.h"

namespace paramshard::server {

// Limit of the bytes that are stored, for tests in which writers die.
class StoreLimit {
 public:
  virtual ~StoreLimit() = default;
  virtual int64_t Allow(int64_t size_bytes) = 0;
};

// Writer to memory that is aligned to 8 bytes. Different threads may write marks of different ranks.
class JournalStores {
 public:
  JournalStores() = default;
  // `limit` may be null. Both outlive this.
  JournalStores(uint8_t* memory, StoreLimit* limit) : memory_(memory), limit_(limit) {}

  // Stores in any order, but before the next Publish.
  void Copy(int64_t offset, absl::Span<const uint8_t> bytes) const { CopyBytes(offset, bytes.data(), bytes.size()); }
  template <typename T>
  void Put(int64_t offset, const T& value) const {
    CopyBytes(offset, &value, sizeof(value));
  }
  // Makes one store, after all earlier stores of the calling thread.
  void Publish(int64_t offset, uint64_t word) const {
    if (limit_ != nullptr && limit_->Allow(sizeof(word)) < static_cast<int64_t>(sizeof(word))) return;
    Word(offset).store(word, std::memory_order_release);
  }
  // Reads a word that this writer has stored.
  uint64_t Load(int64_t offset) const { return Word(offset).load(std::memory_order_relaxed); }
  const uint8_t* at(int64_t offset) const { return memory_ + offset; }

 private:
  std::atomic_ref<uint64_t> Word(int64_t offset) const {
    return std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(memory_ + offset));
  }
  void CopyBytes(int64_t offset, const void* data, size_t size) const {
    if (limit_ != nullptr) size = limit_->Allow(static_cast<int64_t>(size));
    if (size > 0) std::memcpy(memory_ + offset, data, size);
  }

  uint8_t* memory_ = nullptr;
  StoreLimit* limit_ = nullptr;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_JOURNAL_JOURNAL_STORES_H_
