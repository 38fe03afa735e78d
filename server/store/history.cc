#include "server/store/history.h"

#include <xxhash.h>

#include <algorithm>
#include <utility>

#include "absl/random/random.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/check.h"

namespace paramshard::server {
namespace {

constexpr size_t kDigits = 32;

// An origin says what a lineage was made from: those of different origins never meet.
enum class Origin : uint8_t { kCreation = 1, kWholeImport = 2, kPartialImport = 3 };

std::string Digits(absl::uint128 value) {
  return absl::StrFormat("%016x%016x", absl::Uint128High64(value), absl::Uint128Low64(value));
}

absl::uint128 FromHash(const XXH128_hash_t& hash) { return absl::MakeUint128(hash.high64, hash.low64); }

}  // namespace

std::string HistoryId::ToString() const { return Digits(value); }

std::string Lineage::ToString() const { return Digits(value); }

HistoryId RandomHistoryId() {
  absl::BitGen random;
  return {absl::MakeUint128(random(), random())};
}

absl::StatusOr<HistoryId> HistoryId::Parse(absl::string_view text) {
  const bool is_id = text.size() == kDigits && std::all_of(text.begin(), text.end(), [](char digit) {
                       return absl::ascii_isdigit(digit) || (digit >= 'a' && digit <= 'f');
                     });
  uint64_t high = 0;
  uint64_t low = 0;
  if (!is_id || !absl::SimpleHexAtoi(text.substr(0, 16), &high) || !absl::SimpleHexAtoi(text.substr(16), &low)) {
    return absl::InvalidArgumentError(
        absl::StrCat("history id: 32 hexadecimal digits in lower case expected, got ", text.size(), " bytes"));
  }
  return HistoryId{absl::MakeUint128(high, low)};
}

Lineage LineageOfCreation(uint64_t spec_fingerprint) {
  return {Digest().Add(static_cast<uint64_t>(Origin::kCreation)).Add(spec_fingerprint).value()};
}

Lineage LineageOfImport(uint64_t spec_fingerprint, const ImportedContent& content, const StateBefore& before,
                        int64_t commit_number, int64_t version) {
  Digest digest;
  digest.Add(static_cast<uint64_t>(content.whole ? Origin::kWholeImport : Origin::kPartialImport));
  digest.Add(spec_fingerprint).Add(content.digest).Add(commit_number).Add(version);
  if (!content.whole) digest.Add(before.origin).Add(before.commit_number).Add(before.version);
  return {digest.value()};
}

RowHasher::RowHasher(int64_t row_bytes) : row_bytes_(row_bytes) { PARAMSHARD_CHECK(row_bytes > 0); }

RowHasher::RowHasher(RowHasher&& other) noexcept
    : row_bytes_(other.row_bytes_),
      row_(other.row_),
      filled_(other.filled_),
      state_(std::exchange(other.state_, nullptr)),
      sum_(other.sum_) {}

RowHasher& RowHasher::operator=(RowHasher&& other) noexcept {
  row_bytes_ = other.row_bytes_;
  row_ = other.row_;
  filled_ = other.filled_;
  sum_ = other.sum_;
  std::swap(state_, other.state_);
  return *this;
}

RowHasher::~RowHasher() { XXH3_freeState(state_); }

void RowHasher::Add(absl::Span<const uint8_t> bytes) {
  while (!bytes.empty()) {
    const size_t taken = std::min(bytes.size(), static_cast<size_t>(row_bytes_ - filled_));
    if (static_cast<int64_t>(taken) == row_bytes_) {
      sum_ += FromHash(XXH3_128bits_withSeed(bytes.data(), taken, row_++));
    } else {
      AddPart(bytes.subspan(0, taken));
    }
    bytes.remove_prefix(taken);
  }
}

void RowHasher::AddPart(absl::Span<const uint8_t> bytes) {
  if (state_ == nullptr) state_ = XXH3_createState();
  if (filled_ == 0) XXH3_128bits_reset_withSeed(state_, row_);
  XXH3_128bits_update(state_, bytes.data(), bytes.size());
  filled_ += static_cast<int64_t>(bytes.size());
  if (filled_ < row_bytes_) return;
  sum_ += FromHash(XXH3_128bits_digest(state_));
  filled_ = 0;
  ++row_;
}

Digest& Digest::Add(absl::uint128 number) {
  for (int shift = 0; shift < 128; shift += 8) bytes_.push_back(static_cast<char>(absl::Uint128Low64(number >> shift)));
  return *this;
}

absl::uint128 Digest::value() const { return FromHash(XXH3_128bits(bytes_.data(), bytes_.size())); }

}  // namespace paramshard::server
