#include "server/terms/digest.h"

#include <xxhash.h>

#include <algorithm>
#include <utility>

#include "kernels/base/check.h"

namespace paramshard::server {
namespace {

absl::uint128 FromHash(const XXH128_hash_t& hash) { return absl::MakeUint128(hash.high64, hash.low64); }

}  // namespace

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
