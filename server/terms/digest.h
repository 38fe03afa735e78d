// Hashes of an import's content, for the lineage that it begins (history.h).
#ifndef PARAMSHARD_SERVER_TERMS_DIGEST_H_
#define PARAMSHARD_SERVER_TERMS_DIGEST_H_

#include <cstdint>
#include <string>

#include "absl/numeric/int128.h"
#include "absl/types/span.h"

struct XXH3_state_s;

namespace paramshard::server {

// Hash of a tensor's rows, which come in pieces of any size: the sum, mod 2^128, of XXH3-128(row, seed = its index). It
// does not depend on the slices and their order.
class RowHasher {
 public:
  explicit RowHasher(int64_t row_bytes);
  RowHasher(RowHasher&& other) noexcept;
  RowHasher& operator=(RowHasher&& other) noexcept;
  ~RowHasher();

  // Continues at the start of this row. Requires that no row is incomplete.
  void Seek(int64_t row) { row_ = row; }
  void Add(absl::Span<const uint8_t> bytes);
  absl::uint128 sum() const { return sum_; }

 private:
  void AddPart(absl::Span<const uint8_t> bytes);

  int64_t row_bytes_;
  int64_t row_ = 0;
  int64_t filled_ = 0;             // bytes of the current row
  XXH3_state_s* state_ = nullptr;  // of a row that comes in pieces
  absl::uint128 sum_ = 0;
};

// Hash of a list of numbers.
class Digest {
 public:
  Digest& Add(absl::uint128 number);
  absl::uint128 value() const;

 private:
  std::string bytes_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_TERMS_DIGEST_H_
