// Hashes of what an import brings, for the lineage that it begins (history.h).
#ifndef PARAMSHARD_SERVER_TERMS_DIGEST_H_
#define PARAMSHARD_SERVER_TERMS_DIGEST_H_

#include <cstdint>
#include <string>

#include "absl/numeric/int128.h"
#include "absl/types/span.h"

struct XXH3_state_s;

namespace paramshard::server {

// Hashes a tensor's rows as they come, in pieces of any size: the sum, mod 2^128, of XXH3-128(row, seed = its index).
// So it does not depend on slices and on their order.
class RowHasher {
 public:
  explicit RowHasher(int64_t row_bytes);
  RowHasher(RowHasher&& other) noexcept;
  RowHasher& operator=(RowHasher&& other) noexcept;
  ~RowHasher();

  // The next bytes are those of this row, from its start. Requires that no row is half given.
  void Seek(int64_t row) { row_ = row; }
  void Add(absl::Span<const uint8_t> bytes);
  absl::uint128 sum() const { return sum_; }

 private:
  void AddPart(absl::Span<const uint8_t> bytes);

  int64_t row_bytes_;
  int64_t row_ = 0;
  int64_t filled_ = 0;             // bytes of the present row
  XXH3_state_s* state_ = nullptr;  // of a row that comes in parts
  absl::uint128 sum_ = 0;
};

// Hashes a list of numbers.
class Digest {
 public:
  Digest& Add(absl::uint128 number);
  absl::uint128 value() const;

 private:
  std::string bytes_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_TERMS_DIGEST_H_
