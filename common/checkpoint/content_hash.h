// Hashes of a state's bytes that do not depend on how the state is cut over ranks.
//
// They find accidents: flipped bits, and rows that are swapped, missing or duplicated. They do not protect against
// deliberate changes.
#ifndef PARAMSHARD_COMMON_CHECKPOINT_CONTENT_HASH_H_
#define PARAMSHARD_COMMON_CHECKPOINT_CONTENT_HASH_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/numeric/int128.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace paramshard::checkpoint {

// The sum mod 2^128 of XXH3-128(row, seed = the row's index in the whole tensor), with the number of rows: hashes of
// parts add up to the hash of the whole, in any order. As a number XXH3-128 is high64 * 2^64 + low64.
struct ContentHash {
  absl::uint128 sum = 0;
  int64_t rows = 0;

  ContentHash& operator+=(const ContentHash& other) {
    sum += other.sum;
    rows += other.rows;
    return *this;
  }
  friend bool operator==(const ContentHash&, const ContentHash&) = default;
};

// Hashes rows [first_row, first_row + bytes / row_bytes) of a tensor as stored. Requires row_bytes > 0 and whole rows.
ContentHash HashRows(int64_t first_row, int64_t row_bytes, absl::Span<const uint8_t> bytes);

// Hashes a master whose rows of `columns` elements are stored as BF16 and remainders: over the fp32 rows that the two
// join to. Both have the same number of elements.
ContentHash HashJoinedRows(int64_t first_row, int64_t columns, absl::Span<const uint8_t> weights,
                           absl::Span<const uint8_t> remainders);

// Returns XXH3-128 without a seed; for everything but tensors.
absl::uint128 HashBytes(absl::string_view bytes);

// The text of a hash in files: 32 hexadecimal digits in lower case, the highest first. ParseHash returns nullopt for
// any other text.
std::string HashText(absl::uint128 hash);
std::optional<absl::uint128> ParseHash(absl::string_view text);

}  // namespace paramshard::checkpoint

#endif  // PARAMSHARD_COMMON_CHECKPOINT_CONTENT_HASH_H_
