#include "server/terms/command_chain.h"

#include <xxhash.h>

#include <array>

namespace paramshard::server {
namespace {

absl::uint128 Hash(const void* data, size_t size_bytes) {
  const XXH128_hash_t hash = XXH3_128bits(data, size_bytes);
  return absl::MakeUint128(hash.high64, hash.low64);
}

absl::uint128 Chain(absl::uint128 before, absl::uint128 next) {
  const std::array<uint64_t, 4> both{absl::Uint128High64(before), absl::Uint128Low64(before), absl::Uint128High64(next),
                                     absl::Uint128Low64(next)};
  return Hash(both.data(), sizeof(both));
}

}  // namespace

void CommandChain::Add(int rank, const std::string& canonical) {
  hash_ = Chain(hash_, Hash(canonical.data(), canonical.size()));
  links_.push_back({.number = ++last_, .rank = rank, .canonical = canonical, .hash = hash_});
  bytes_ += canonical.size();
  while (links_.size() > kMostLinks || bytes_ > kMostBytes) DropFirst();
}

std::optional<absl::uint128> CommandChain::Through(int64_t number) const {
  if (links_.empty() || number < links_.front().number || number > last_) return std::nullopt;
  return links_[number - links_.front().number].hash;
}

void CommandChain::Forget(int64_t number) {
  while (!links_.empty() && links_.front().number <= number) DropFirst();
}

void CommandChain::DropFirst() {
  bytes_ -= links_.front().canonical.size();
  links_.pop_front();
}

}  // namespace paramshard::server
