#include "server/terms/history.h"

#include <algorithm>

#include "absl/random/random.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "server/terms/digest.h"
#include "xxhash.h"

namespace paramshard::server {
namespace {

constexpr size_t kDigits = 32;

// Source of a lineage. Lineages of different sources never collide.
enum class Origin : uint8_t { kCreation = 1, kWholeImport = 2, kPartialImport = 3, kRestore = 4 };

std::string Digits(absl::uint128 value) {
  return absl::StrFormat("%016x%016x", absl::Uint128High64(value), absl::Uint128Low64(value));
}

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
        absl::StrCat("history id: want 32 hexadecimal digits in lower case, got ", text.size(), " bytes"));
  }
  return HistoryId{absl::MakeUint128(high, low)};
}

absl::uint128 RunDigest(absl::string_view run) {
  if (run.empty()) return 0;
  const XXH128_hash_t hash = XXH3_128bits(run.data(), run.size());
  return absl::MakeUint128(hash.high64, hash.low64);
}

Lineage LineageOfCreation(uint64_t spec_fingerprint) {
  return {Digest().Add(static_cast<uint64_t>(Origin::kCreation)).Add(spec_fingerprint).value()};
}

Lineage LineageOfRestore(uint64_t spec_fingerprint, absl::uint128 checkpoint_id) {
  return {Digest().Add(static_cast<uint64_t>(Origin::kRestore)).Add(spec_fingerprint).Add(checkpoint_id).value()};
}

Lineage LineageOfImport(uint64_t spec_fingerprint, const ImportedContent& content, const StateBefore& before,
                        int64_t commit_number, int64_t version) {
  Digest digest;
  digest.Add(static_cast<uint64_t>(content.whole ? Origin::kWholeImport : Origin::kPartialImport));
  digest.Add(spec_fingerprint).Add(content.digest).Add(commit_number).Add(version);
  if (!content.whole) digest.Add(before.origin).Add(before.commit_number).Add(before.version);
  return {digest.value()};
}

}  // namespace paramshard::server
