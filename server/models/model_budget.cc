#include "server/models/model_budget.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/data_plane/scratch_memory.h"

namespace paramshard::server {
namespace {

// Part of what a model leaves free on a GPU that sums at the commit may take unasked: the rest is the trainers'.
constexpr int64_t kKeptGradientsShare = 4;

}  // namespace

ModelBudget::ModelBudget(Options options)
    : options_(std::move(options)), muon_bytes_(CountMuon()), sums_at_commit_(ChooseSumsAtCommit()) {}

// Zero where the state alone does not fit: grouping the updates of a spec that no device has memory for takes long.
std::vector<int64_t> ModelBudget::CountMuon() const {
  const ModelSpec& spec = *options_.spec;
  std::vector<int64_t> bytes;
  for (int rank = 0; rank < ranks(); ++rank) {
    const ComputeDevice& device = *options_.devices[rank];
    const ShardPlacement placement =
        ShardPlacement::Of(spec, *options_.layout, options_.topology->GroupRank(rank), options_.moves);
    const bool fits = placement.bytes.Total() <= device.AvailableBytes();
    bytes.push_back(fits ? device.MuonBytes(MuonExtentsOf(spec, placement), placement.moves.bands) : 0);
  }
  return bytes;
}

bool ModelBudget::ChooseSumsAtCommit() const {
  const Topology& topology = *options_.topology;
  if (!topology.may_sum_at_commit()) return false;
  if (options_.spec->gradient_sums.has_value()) return options_.spec->gradient_sums == GradientSums::kAtCommit;
  // Summing at the commit saves kernels that trainers wait for, and copies between ranks.
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
  const ShardPlacement placement = ShardPlacement::Of(*options_.spec, layout, group_rank, options_.moves);
  return {.shards = placement.bytes,
          .slots = layout.slots_bytes() + (sums_at_commit ? layout.landing_bytes(group_rank) : 0),
          .scratch = ScratchBytes(*options_.spec, layout, *options_.topology, rank, sums_at_commit),
          .muon = muon_bytes_[rank],
          .image = options_.image_bytes.empty() || !on_cpu() ? 0 : options_.image_bytes[rank],
          .plane_copy = on_cpu() ? placement.plane_copy_bytes : 0};
}

std::vector<int64_t> ModelBudget::SlotsBytesByRank() const {
  std::vector<int64_t> bytes;
  for (int rank = 0; rank < ranks(); ++rank) bytes.push_back(Of(rank, sums_at_commit_).slots);
  return bytes;
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
    needed.image = std::min(needed.image, most);
    all.shards += needed.shards;
    all.slots += needed.slots;
    all.scratch += needed.scratch;
    all.muon += needed.muon;
    all.image += needed.image;
    all.plane_copy += needed.plane_copy;
  }
  RETURN_IF_ERROR(CheckFits(all, options_.available_bytes, ""));
  RETURN_IF_ERROR(CheckCopiesFit());
  for (int rank = 0; rank < ranks(); ++rank) {
    const ComputeDevice& device = *options_.devices[rank];
    RETURN_IF_ERROR(CheckFits(each[rank], device.AvailableBytes(), absl::StrCat(" on ", device.Name())));
  }
  return absl::OkStatus();
}

absl::Status ModelBudget::CheckCopiesFit() const {
  if (on_cpu()) return absl::OkStatus();
  int64_t planes = 0;
  for (int rank = 0; rank < ranks(); ++rank) {
    planes += ShardPlacement::Of(*options_.spec, *options_.layout, options_.topology->GroupRank(rank), options_.moves)
                  .plane_copy_bytes;
  }
  const int64_t needed = std::accumulate(options_.image_bytes.begin(), options_.image_bytes.end(), planes);
  const int64_t available = AvailableHostBytes();
  if (needed <= available) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("create model ", options_.spec->name, ": ", needed,
                                                   " bytes of host memory needed (copies for saves, --save-dir, ",
                                                   needed - planes, ", copies of planes without a master, --keeper, ",
                                                   planes, "), ", available, " bytes free"));
}

absl::Status ModelBudget::CheckFits(const Bytes& needed, int64_t available, absl::string_view where) const {
  const ShardBytes& shards = needed.shards;
  const int64_t total = needed.Total();
  if (total <= available) return absl::OkStatus();
  std::string moments;
  for (const MomentTraits& moment : kMomentKinds) {
    const std::string names = MomentNames(options_.spec->groups, moment.kind);
    if (!names.empty()) absl::StrAppend(&moments, ", ", names, " ", shards.moments[moment.kind]);
  }
  const std::string room =
      options_.moves.moves ? absl::StrCat(", room that steps move the state into ", shards.room) : "";
  const std::string muon = needed.muon > 0 ? absl::StrCat(", updates of Muon and their products ", needed.muon) : "";
  const std::string image = needed.image > 0 ? absl::StrCat(", copy to be saved ", needed.image) : "";
  const std::string plane_copy =
      needed.plane_copy > 0 ? absl::StrCat(", copy of planes without a master ", needed.plane_copy) : "";
  return absl::ResourceExhaustedError(absl::StrCat(
      "create model ", options_.spec->name, ": ", total, " bytes needed", where, " (master ", shards.master, moments,
      room, ", gradients ", shards.gradients, ", planes ", shards.planes, ", slots ", needed.slots, ", scratch ",
      needed.scratch, muon, image, plane_copy, "), ", available, " bytes free"));
}

}  // namespace paramshard::server
