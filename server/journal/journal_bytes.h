// Encoding of plain values as a journal's bytes, in the byte order of the machine, which a journal never leaves.
#ifndef PARAMSHARD_SERVER_JOURNAL_JOURNAL_BYTES_H_
#define PARAMSHARD_SERVER_JOURNAL_JOURNAL_BYTES_H_

#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/numeric/int128.h"
#include "absl/types/span.h"

namespace paramshard::server {

class JournalBytes {
 public:
  template <typename T>
  void Put(T value) {
    static_assert(std::is_arithmetic_v<T> || std::is_enum_v<T>);
    PutBytes(&value, sizeof(value));
  }
  void Put(absl::uint128 value) {
    Put(absl::Uint128Low64(value));
    Put(absl::Uint128High64(value));
  }
  void Put(const std::string& text) {
    Put(static_cast<uint32_t>(text.size()));
    PutBytes(text.data(), text.size());
  }
  void PutBytes(const void* data, size_t size) {
    if (size == 0) return;
    const size_t at = bytes_.size();
    bytes_.resize(at + size);
    std::memcpy(bytes_.data() + at, data, size);
  }

  // Keeps the capacity for the next record.
  void Clear() { bytes_.clear(); }
  absl::Span<const uint8_t> bytes() const { return bytes_; }

 private:
  std::vector<uint8_t> bytes_;
};

// Reader of any bytes. Values after the end read as 0, and ok() becomes false.
class JournalBytesReader {
 public:
  explicit JournalBytesReader(absl::Span<const uint8_t> bytes) : bytes_(bytes) {}

  template <typename T>
  void Get(T& value) {
    static_assert(std::is_arithmetic_v<T>);
    value = T();
    const absl::Span<const uint8_t> taken = Take(sizeof(T));
    if (!taken.empty()) std::memcpy(&value, taken.data(), sizeof(T));
  }
  void Get(bool& value) {
    uint8_t byte = 0;
    Get(byte);
    ok_ = ok_ && byte <= 1;
    value = byte == 1;
  }
  void Get(absl::uint128& value) {
    uint64_t low = 0;
    uint64_t high = 0;
    Get(low);
    Get(high);
    value = absl::MakeUint128(high, low);
  }
  void Get(std::string& text) {
    uint32_t size = 0;
    Get(size);
    const absl::Span<const uint8_t> taken = Take(size);
    text.assign(taken.begin(), taken.end());
  }
  template <typename T>
  T Next() {
    T value;
    Get(value);
    return value;
  }
  // Reads the number of items that follow, each of at least so many bytes. Never returns more than there can be.
  size_t Count(size_t least_bytes) {
    const auto count = Next<uint32_t>();
    ok_ = ok_ && count <= bytes_.size() / least_bytes;
    return ok_ ? count : 0;
  }
  void Refuse() { ok_ = false; }

  // True if nothing was missing so far.
  bool ok() const { return ok_; }
  // True if nothing was missing and nothing is left.
  bool done() const { return ok_ && bytes_.empty(); }

 private:
  absl::Span<const uint8_t> Take(size_t size) {
    ok_ = ok_ && size <= bytes_.size();
    if (!ok_) return {};
    const absl::Span<const uint8_t> taken = bytes_.subspan(0, size);
    bytes_.remove_prefix(size);
    return taken;
  }

  absl::Span<const uint8_t> bytes_;
  bool ok_ = true;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_JOURNAL_JOURNAL_BYTES_H_
