#include "common/model/owner_choice.h"

#include <algorithm>
#include <numeric>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/numeric/int128.h"

namespace paramshard {
namespace {

// The whole model, in the unit in which shares are counted.
constexpr int64_t kWhole = int64_t{1} << 40;
constexpr int64_t kSlackOfMean = 32;

// A part of the model's work and of its bytes.
struct Share {
  int64_t work = 0;
  int64_t bytes = 0;

  int64_t Load() const { return std::max(work, bytes); }
  Share operator+(const Share& other) const { return {work + other.work, bytes + other.bytes}; }
};

int64_t ShareOf(int64_t part, absl::uint128 whole) {
  return whole == 0 ? 0 : static_cast<int64_t>(absl::uint128(part) * absl::uint128(kWhole) / whole);
}

// Places items one by one.
class Chooser {
 public:
  Chooser(absl::Span<const int64_t> bytes, int64_t total_bytes) {
    for (const int64_t held : bytes) ranks_.push_back({.work = 0, .bytes = ShareOf(held, total_bytes)});
    const int64_t mean = kWhole / static_cast<int64_t>(bytes.size());
    most_ = mean + mean / kSlackOfMean;
  }

  int Place(int unit, const Share& item) {
    using Preference = std::tuple<bool, int64_t, int64_t, int>;  // too much, by what else, load, rank
    Preference best;
    for (int rank = 0; rank < static_cast<int>(ranks_.size()); ++rank) {
      const int64_t load = (ranks_[rank] + item).Load();
      const bool is_too_much = load > most_;
      const Preference here{is_too_much, is_too_much ? 0 : BytesOfUnit(unit, rank), load, rank};
      if (rank == 0 || here < best) best = here;
    }
    const int owner = std::get<int>(best);
    ranks_[owner] = ranks_[owner] + item;
    units_[{unit, owner}] += item.bytes;
    return owner;
  }

 private:
  int64_t BytesOfUnit(int unit, int rank) const {
    const auto found = units_.find({unit, rank});
    return found == units_.end() ? 0 : found->second;
  }

  int64_t most_ = 0;
  std::vector<Share> ranks_;
  absl::flat_hash_map<std::pair<int, int>, int64_t> units_;  // share of bytes by unit and rank
};

}  // namespace

std::vector<int> ChooseOwners(absl::Span<const OwnedItem> items, absl::Span<const int64_t> bytes, int64_t total_bytes) {
  std::vector<int> owners(items.size(), 0);
  if (bytes.size() == 1) return owners;
  absl::uint128 total_work = 0;
  for (const OwnedItem& item : items) total_work += absl::uint128(item.work);
  std::vector<Share> shares;
  for (const OwnedItem& item : items) {
    shares.push_back({.work = ShareOf(item.work, total_work), .bytes = ShareOf(item.bytes, total_bytes)});
  }
  std::vector<size_t> order(items.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return shares[a].Load() > shares[b].Load(); });
  Chooser chooser(bytes, total_bytes);
  for (const size_t i : order) owners[i] = chooser.Place(items[i].unit, shares[i]);
  return owners;
}

}  // namespace paramshard
