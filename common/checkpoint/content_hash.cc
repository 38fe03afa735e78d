#include "common/checkpoint/content_hash.h"

#ifdef PARAMSHARD_XXHASH_DISPATCHES
#include <xxh_x86dispatch.h>
#else
#define XXH_INLINE_ALL
#include <xxhash.h>
#endif

#include <algorithm>
#include <cstring>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/check.h"
#include "kernels/optim/master_remainder.h"

namespace paramshard::checkpoint {
namespace {

constexpr size_t kHashDigits = 32;

absl::uint128 NumberOf(const XXH128_hash_t& hash) { return absl::MakeUint128(hash.high64, hash.low64); }

}  // namespace

ContentHash HashRows(int64_t first_row, int64_t row_bytes, absl::Span<const uint8_t> bytes) {
  PARAMSHARD_CHECK(row_bytes > 0 && static_cast<int64_t>(bytes.size()) % row_bytes == 0);
  ContentHash hash{.rows = static_cast<int64_t>(bytes.size()) / row_bytes};
  const uint8_t* row = bytes.data();
  for (int64_t i = 0; i < hash.rows; ++i, row += row_bytes) {
    hash.sum += NumberOf(XXH3_128bits_withSeed(row, row_bytes, first_row + i));
  }
  return hash;
}

ContentHash HashJoinedRows(int64_t first_row, int64_t columns, absl::Span<const uint8_t> weights,
                           absl::Span<const uint8_t> remainders) {
  const int64_t row_bytes = columns * static_cast<int64_t>(sizeof(int16_t));
  PARAMSHARD_CHECK(columns > 0 && weights.size() == remainders.size() && weights.size() % row_bytes == 0);
  std::vector<int16_t> row_remainders(columns);  // aligned
  std::vector<float> joined(columns);
  ContentHash hash;
  for (size_t offset = 0; offset < weights.size(); offset += row_bytes) {
    std::memcpy(row_remainders.data(), remainders.data() + offset, row_bytes);
    JoinMasters(weights.data() + offset, row_remainders.data(), columns, joined.data());
    const auto* const bytes = reinterpret_cast<const uint8_t*>(joined.data());
    hash += HashRows(first_row + hash.rows, 2 * row_bytes, absl::MakeConstSpan(bytes, 2 * row_bytes));
  }
  return hash;
}

absl::uint128 HashBytes(absl::string_view bytes) { return NumberOf(XXH3_128bits(bytes.data(), bytes.size())); }

std::string HashText(absl::uint128 hash) {
  return absl::StrCat(absl::Hex(absl::Uint128High64(hash), absl::kZeroPad16),
                      absl::Hex(absl::Uint128Low64(hash), absl::kZeroPad16));
}

std::optional<absl::uint128> ParseHash(absl::string_view text) {
  const bool is_hash = text.size() == kHashDigits && std::all_of(text.begin(), text.end(), [](char digit) {
                         return absl::ascii_isdigit(digit) || (digit >= 'a' && digit <= 'f');
                       });
  uint64_t high = 0;
  uint64_t low = 0;
  if (!is_hash || !absl::SimpleHexAtoi(text.substr(0, 16), &high) || !absl::SimpleHexAtoi(text.substr(16), &low)) {
    return std::nullopt;
  }
  return absl::MakeUint128(high, low);
}

}  // namespace paramshard::checkpoint
