#include "server/journal/journal_content.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/journal/journal_layout.h"

namespace paramshard::server {
namespace {

constexpr int64_t kMostHistory = int64_t{1} << 16;
constexpr size_t kMostPieceName = 64;

absl::Status Not(absl::string_view expected, int64_t got) {
  return absl::InvalidArgumentError(absl::StrCat("want ", expected, ", got ", got));
}

absl::Status CheckWorld(const JournalIdentity& identity) {
  const auto nodes = static_cast<int64_t>(identity.device_counts.size());
  if (identity.node < 0 || identity.node >= nodes) return Not("a node of the world", identity.node);
  int64_t first = 0;
  for (int node = 0; node < nodes; ++node) {
    const int32_t count = identity.device_counts[node];
    if (count < 1 || count > kMostJournalRanks) return Not("a node's devices", count);
    if (node < identity.node) first += count;
  }
  if (identity.device_counts[identity.node] != static_cast<int64_t>(identity.ranks.size())) {
    return Not("as many ranks as this node has devices", static_cast<int64_t>(identity.ranks.size()));
  }
  for (const JournalRank& rank : identity.ranks) {
    if (rank.rank != first++) return Not("ranks of this node in order", rank.rank);
  }
  return absl::OkStatus();
}

absl::Status CheckBook(const JournalIdentity& identity) {
  for (const JournalIdentity::BookParameter& parameter : identity.book) {
    if (parameter.unit < 0 || parameter.parameter < 0) return Not("a parameter of the book", parameter.parameter);
    if (parameter.history_length < 0 || parameter.history_length > kMostHistory) {
      return Not("the length of a history", parameter.history_length);
    }
  }
  return absl::OkStatus();
}

auto PlaceOf(const JournalRank::Extent& extent) { return std::tuple(extent.unit, extent.parameter); }

absl::Status CheckExtents(const JournalRank& rank) {
  const auto count = static_cast<int64_t>(rank.extents.size());
  if (rank.trainable_count < 0 || rank.trainable_count > count) return Not("trainable extents", rank.trainable_count);
  for (int64_t i = 0; i < count; ++i) {
    const JournalRank::Extent& extent = rank.extents[i];
    if (extent.unit < 0 || extent.parameter < 0) return Not("a parameter of the model", extent.parameter);
    if (extent.first_row < 0 || extent.end_row <= extent.first_row) return Not("rows of an extent", extent.end_row);
    const bool in_order = i == 0 || i == rank.trainable_count || PlaceOf(rank.extents[i - 1]) < PlaceOf(extent);
    if (!in_order) return Not("extents in the order of the model", extent.parameter);
    const int64_t least =
        std::min(extent.gradient_offset, *std::min_element(extent.offsets.begin(), extent.offsets.end()));
    if (least < 0) return Not("offsets from 0 on", least);
  }
  return absl::OkStatus();
}

// Bands begin at the very first row, and each after the one before it.
absl::Status CheckBands(const JournalRank& rank) {
  if (rank.distance < 0 || (rank.distance > 0) == rank.bands.empty())
    return Not("the distance of a step", rank.distance);
  if (static_cast<int64_t>(rank.bands.size()) > kMostJournalBands) {
    return Not(absl::StrCat("at most ", kMostJournalBands, " bands"), static_cast<int64_t>(rank.bands.size()));
  }
  int64_t extent = 0;
  for (size_t i = 0; i < rank.bands.size(); ++i) {
    const JournalRank::Band& band = rank.bands[i];
    const auto is_behind = [&](int64_t e) { return PlaceOf(rank.extents[e]) < std::tuple(band.unit, band.parameter); };
    while (extent < rank.trainable_count && is_behind(extent)) ++extent;
    const bool known = extent < rank.trainable_count &&
                       PlaceOf(rank.extents[extent]) == std::tuple(band.unit, band.parameter) &&
                       band.row >= rank.extents[extent].first_row && band.row < rank.extents[extent].end_row;
    const bool rises =
        i == 0 || std::tuple(band.unit, band.parameter, band.row) >
                      std::tuple(rank.bands[i - 1].unit, rank.bands[i - 1].parameter, rank.bands[i - 1].row);
    if (!known || !rises) return Not("bands of rows that the rank owns, in order", band.row);
  }
  return absl::OkStatus();
}

absl::Status CheckRank(const JournalRank& rank) {
  for (const JournalRank::Piece& piece : rank.pieces) {
    const bool named =
        !piece.name.empty() && piece.name.size() <= kMostPieceName && piece.name.find('\0') == piece.name.npos;
    if (!named || piece.size_bytes < 0) return Not("a piece's name and size", piece.size_bytes);
  }
  RETURN_IF_ERROR(CheckExtents(rank));
  return CheckBands(rank);
}

absl::Status CheckScalings(const JournalIdentity& identity, const JournalNumbers& numbers) {
  if (numbers.scalings.size() != identity.book.size()) {
    return Not("a scaling for each parameter of the book", static_cast<int64_t>(numbers.scalings.size()));
  }
  for (size_t i = 0; i < identity.book.size(); ++i) {
    if (!numbers.scalings[i].history.has_value()) continue;
    const auto length = static_cast<int64_t>(numbers.scalings[i].history->amaxes.size());
    if (length != identity.book[i].history_length || length == 0) return Not("a history of the book's length", length);
  }
  return absl::OkStatus();
}

}  // namespace

bool operator==(const PreparedCommit& a, const PreparedCommit& b) {
  const auto equal = [](const Hyperparameters& x, const Hyperparameters& y) {
    return std::all_of(std::begin(kHyperparameters), std::end(kHyperparameters),
                       [&](const HyperparameterTraits& traits) { return x.*traits.member == y.*traits.member; });
  };
  return a.commit_number == b.commit_number && a.has_gradient == b.has_gradient && a.client_states == b.client_states &&
         a.reader_data == b.reader_data && a.save == b.save && a.gradient_scale == b.gradient_scale &&
         a.max_grad_norm == b.max_grad_norm && a.ranks == b.ranks &&
         std::equal(a.groups.begin(), a.groups.end(), b.groups.begin(), b.groups.end(), equal);
}

int LaneBands(const JournalRank& rank, int lane) {
  const int bands = std::max(1, static_cast<int>(rank.bands.size()));
  return (bands - lane + kBandLanes - 1) / kBandLanes;
}

absl::Status CheckIdentity(const JournalIdentity& identity) {
  RETURN_IF_ERROR(CheckWorld(identity));
  if (identity.shard_size < 1) return Not("a shard size", identity.shard_size);
  RETURN_IF_ERROR(CheckBook(identity));
  for (const JournalRank& rank : identity.ranks) {
    if (absl::Status status = CheckRank(rank); !status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("rank ", rank.rank, ": ", status.message()));
    }
  }
  return JournalLayout::Of(ShapeOf(identity, 0)).status();
}

absl::Status CheckNumbers(const JournalIdentity& identity, const JournalNumbers& numbers) {
  if (numbers.version < 0 || numbers.skipped < 0 || numbers.commit_number < numbers.version ||
      numbers.commit_number >= kNumberLimit) {
    return Not("0 <= version <= commit number", numbers.commit_number);
  }
  if (numbers.client_states.size() != identity.ranks.size() || numbers.positions.size() != identity.ranks.size()) {
    return Not("a client state and a position for each rank", static_cast<int64_t>(numbers.positions.size()));
  }
  for (size_t i = 0; i < identity.ranks.size(); ++i) {
    const int64_t position = numbers.positions[i];
    if (position != 0 && position != identity.ranks[i].distance)
      return Not("a position of 0 or the distance", position);
  }
  if (static_cast<int64_t>(numbers.steps.size()) != identity.parameters) {
    return Not("a step count for each parameter", static_cast<int64_t>(numbers.steps.size()));
  }
  if (!numbers.steps.empty() && *std::min_element(numbers.steps.begin(), numbers.steps.end()) < 0) {
    return Not("step counts from 0 on", -1);
  }
  return CheckScalings(identity, numbers);
}

}  // namespace paramshard::server
