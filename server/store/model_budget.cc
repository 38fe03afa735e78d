#include "server/store/model_budget.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/collective/scratch_memory.h"

namespace paramshard::server {
namespace {

// Sums at the commit may take this part, unasked, of what a model leaves free on a GPU: the rest is the trainers'.
constexpr int64_t kKeptGradientsShare = 4;

}  // namespace

ModelBudget::ModelBudget(Options options) : options_(std::move(options)), sums_at_commit_(ChooseSumsAtCommit()) {}

bool ModelBudget::ChooseSumsAtCommit() const {
  const Topology& topology = *options_.topology;
  if (!topology.may_sum_at_commit()) return false;
  if (options_.spec->gradient_sums.has_value()) return options_.spec->gradient_sums == GradientSums::kAtCommit;
  // Kernels that trainers wait for, and copies between ranks, are what it saves.
  if (!topology.on_gpus() || topology.rank_count() == 1) return false;
  int64_t limit = options_.available_bytes;
  for (int rank = 0; rank < ranks(); ++rank) {
    const Bytes wanted = Of(rank, /*sums_at_commit=*/true);
    const int64_t otherwise = Of(rank, /*sums_at_commit=*/false).Total();
    const int64_t spare = std::min(limit, options_.devices[rank]->AvailableBytes()) - otherwise;
    if (wanted.Total() - otherwise > spare / kKeptGradientsShare) return false;
    limit -= wanted.Total();
  }
  return true;
}

ModelBudget::Bytes ModelBudget::Of(int rank, bool sums_at_commit) const {
  const Layout& layout = *options_.layout;
  const int group_rank = options_.topology->GroupRank(rank);
  return {.shards = ShardPlacement::Of(*options_.spec, layout, group_rank, options_.moves).bytes,
          .slots = layout.slots_bytes() + (sums_at_commit ? layout.landing_bytes() : 0),
          .scratch = ScratchBytes(*options_.spec, layout, *options_.topology, rank, sums_at_commit)};
}

std::vector<int64_t> ModelBudget::ScratchBytesByRank() const {
  std::vector<int64_t> bytes;
  for (int rank = 0; rank < ranks(); ++rank) bytes.push_back(Of(rank, sums_at_commit_).scratch);
  return bytes;
}

absl::Status ModelBudget::Check() const {
  // A legal spec may have slots of almost 2^62 bytes, and as much scratch.
  const int64_t most = std::numeric_limits<int64_t>::max() / 4 / ranks();
  std::vector<Bytes> each;
  Bytes all;
  for (int rank = 0; rank < ranks(); ++rank) {
    Bytes& needed = each.emplace_back(Of(rank, sums_at_commit_));
    needed.slots = std::min(needed.slots, most);
    needed.scratch = std::min(needed.scratch, most);
    all.shards += needed.shards;
    all.slots += needed.slots;
    all.scratch += needed.scratch;
  }
  RETURN_IF_ERROR(CheckFits(all, options_.available_bytes, ""));
  for (int rank = 0; rank < ranks(); ++rank) {
    const ComputeDevice& device = *options_.devices[rank];
    RETURN_IF_ERROR(CheckFits(each[rank], device.AvailableBytes(), absl::StrCat(" on ", device.Name())));
  }
  return absl::OkStatus();
}

absl::Status ModelBudget::CheckFits(const Bytes& needed, int64_t available, absl::string_view where) const {
  const ShardBytes& shards = needed.shards;
  const int64_t total = needed.Total();
  if (total <= available) return absl::OkStatus();
  std::string moments;
  for (const MomentTraits& moment : kMomentKinds) {
    absl::StrAppend(&moments, ", ", moment.name, " ", shards.moments[moment.kind]);
  }
  const std::string room =
      options_.moves.moves ? absl::StrCat(", room that steps move the state into ", shards.room) : "";
  return absl::ResourceExhaustedError(
      absl::StrCat("create model ", options_.spec->name, ": ", total, " bytes needed", where, " (master ",
                   shards.master, moments, room, ", gradients ", shards.gradients, ", planes ", shards.planes,
                   ", slots ", needed.slots, ", scratch ", needed.scratch, "), ", available, " bytes free"));
}

}  // namespace paramshard::server
