#include "kernels/optim/adam_cuda.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/base/float_bits.h"
#include "kernels/base/status_macros.h"
#include "kernels/gpu/memory.h"
#include "kernels/gpu/pinned_memory.h"
#include "kernels/gpu/status.h"
#include "kernels/gpu/stream.h"
#include "kernels/optim/adam_kernels.h"
#include "kernels/optim/shifted_rows.h"

namespace paramshard::gpu {
namespace {

constexpr int kQuad = 4;

// True for null, too.
bool IsAligned(const void* address, int64_t bytes) { return reinterpret_cast<uintptr_t>(address) % bytes == 0; }

// How many elements of `size` bytes an address is past one that is aligned to `alignment` elements.
int PhaseOf(const void* address, int64_t size, int alignment) {
  return static_cast<int>(reinterpret_cast<uintptr_t>(address) / size % alignment);
}

DeviceExtent ToDeviceExtent(const AdamExtent& extent) {
  const MatrixShape walked = WalkedShape(extent.encoding.format, extent.rows, extent.columns);
  DeviceExtent device_extent = {};
  device_extent.gradient = extent.gradient;
  device_extent.master = extent.state.master;
  device_extent.exp_avg = extent.state.exp_avg.data;
  device_extent.exp_avg_sq = extent.state.exp_avg_sq.data;
  device_extent.row_wise = extent.row_wise;
  device_extent.column_wise = extent.column_wise;
  device_extent.rows = walked.rows;
  device_extent.columns = walked.cols;
  device_extent.encoding = extent.encoding;
  device_extent.phase = PhaseOf(extent.state.master, sizeof(float), kShiftAlignment);
  return device_extent;
}

// True for null, too.
bool IsInPhase(const void* address, int64_t size, int phase) {
  return address == nullptr || PhaseOf(address, size, kQuad) == phase % kQuad;
}

AdamAccess AccessOf(const DeviceExtent& extent, MomentType exp_avg, MomentType exp_avg_sq) {
  const int64_t plane_quad = DataBytes(extent.encoding, 1, kQuad);
  const bool in_phase = IsInPhase(extent.gradient, sizeof(float), extent.phase) &&
                        IsInPhase(extent.exp_avg, MomentBytes(exp_avg), extent.phase) &&
                        IsInPhase(extent.exp_avg_sq, MomentBytes(exp_avg_sq), extent.phase);
  if (!in_phase) return AdamAccess::kStrided;
  const bool quads = extent.phase % kQuad == 0 && extent.columns % kQuad == 0 &&
                     IsAligned(extent.row_wise.data, plane_quad) && IsAligned(extent.column_wise.data, plane_quad) &&
                     IsAligned(extent.column_wise.scales, kQuad);
  // Rows that begin inside of a sector cost more than their own bytes.
  const bool whole_sectors = extent.rows <= 1 || extent.columns % kShiftAlignment == 0;
  return quads && whole_sectors ? AdamAccess::kQuads : AdamAccess::kShifted;
}

MatrixShape TilesOf(const DeviceExtent& extent) {
  const MatrixShape tile = GpuTileShape(extent.encoding.format);
  return {(extent.rows + tile.rows - 1) / tile.rows, (extent.columns + tile.cols - 1) / tile.cols};
}

// Whether formats without scales are in better company with 128 x 128 blocks than with MXFP8.
bool IsMostlyLarge(absl::Span<const AdamExtent> extents) {
  const auto count = [&](Format format) {
    return std::count_if(extents.begin(), extents.end(),
                         [&](const AdamExtent& extent) { return extent.encoding.format == format; });
  };
  return count(Format::kFP8Block128x128) > count(Format::kMXFP8);
}

// Bit by bit: -0 is another weight decay than 0.
bool AreSame(const AdamStep& a, const AdamStep& b) {
  for (float AdamStep::*const member :
       {&AdamStep::learning_rate, &AdamStep::beta1, &AdamStep::beta2, &AdamStep::epsilon, &AdamStep::weight_decay,
        &AdamStep::bias_correction1, &AdamStep::bias_correction2, &AdamStep::gradient_scale}) {
    if (FloatBits(a.*member) != FloatBits(b.*member)) return false;
  }
  return a.mode == b.mode;
}

// The extents that one launch takes, and their active tiles' place in the table.
struct KindTiles {
  AdamKind kind;
  std::vector<uint32_t> extents;
  int64_t first_tile = 0;
  int64_t tile_count = 0;
};

}  // namespace

class FusedAdamPlan::Impl {
 public:
  explicit Impl(int device) : device_(device) {}

  absl::Status Allocate(absl::Span<const AdamExtent> extents);
  absl::Status Step(absl::Span<const std::optional<AdamStep>> steps, cudaStream_t stream);
  absl::Status Encode(cudaStream_t stream);

 private:
  void AddToKind(const AdamKind& kind, uint32_t extent);
  absl::Status Activate(std::vector<bool> active, cudaStream_t stream);
  void ListTiles(const std::vector<bool>& active);
  void ListTilesOf(uint32_t extent);
  absl::Status UploadConstants(absl::Span<const std::optional<AdamStep>> steps, cudaStream_t stream);
  AdamLaunch LaunchOf(const KindTiles& kind) const;

  // Constant after Create().
  int device_;
  std::vector<DeviceExtent> extents_;
  DeviceMemory device_extents_;
  DeviceMemory device_constants_;
  DeviceMemory device_tiles_;
  PinnedArray<AdamConstants> constants_;
  DeviceMemory device_constants_of_;
  PinnedArray<uint32_t> constants_of_;
  PinnedArray<AdamTile> tiles_;

  // The extents whose tiles the table holds, kind by kind.
  std::vector<bool> active_;
  std::vector<KindTiles> kinds_;
  int64_t tile_count_ = 0;
};

absl::Status FusedAdamPlan::Impl::Allocate(absl::Span<const AdamExtent> extents) {
  int64_t most_tiles = 0;
  const bool mostly_large = IsMostlyLarge(extents);
  for (const AdamExtent& extent : extents) {
    RETURN_IF_ERROR(CheckEncodable(extent.encoding));
    const DeviceExtent& added = extents_.emplace_back(ToDeviceExtent(extent));
    const AdamState& state = extent.state;
    const AdamAccess access = AccessOf(added, state.exp_avg.type, state.exp_avg_sq.type);
    const bool large = extent.encoding.format == Format::kFP8Block128x128 ||
                       (extent.encoding.format != Format::kMXFP8 && mostly_large);
    AddToKind({state.exp_avg.type, state.exp_avg_sq.type, access, large}, static_cast<uint32_t>(extents_.size() - 1));
    const MatrixShape tiles = TilesOf(added);
    most_tiles += tiles.rows * tiles.cols;
  }
  const int accessors[] = {device_};
  const auto count = static_cast<int64_t>(extents_.size());
  ASSIGN_OR_RETURN(device_extents_,
                   DeviceMemory::Create(device_, count * sizeof(DeviceExtent), accessors, /*shareable=*/false));
  ASSIGN_OR_RETURN(device_constants_,
                   DeviceMemory::Create(device_, count * sizeof(AdamConstants), accessors, /*shareable=*/false));
  ASSIGN_OR_RETURN(device_constants_of_,
                   DeviceMemory::Create(device_, count * sizeof(uint32_t), accessors, /*shareable=*/false));
  ASSIGN_OR_RETURN(device_tiles_,
                   DeviceMemory::Create(device_, most_tiles * sizeof(AdamTile), accessors, /*shareable=*/false));
  ASSIGN_OR_RETURN(constants_, PinnedArray<AdamConstants>::Create(count));
  ASSIGN_OR_RETURN(constants_of_, PinnedArray<uint32_t>::Create(count));
  ASSIGN_OR_RETURN(tiles_, PinnedArray<AdamTile>::Create(most_tiles));
  const DeviceScope scope(device_);
  RETURN_IF_ERROR(ToStatus(
      cudaMemcpy(device_extents_.data(), extents_.data(), count * sizeof(DeviceExtent), cudaMemcpyHostToDevice),
      "upload the extents of a fused step"));
  // A copy from memory that is not pinned may return before its last bytes have arrived.
  return AwaitStream(device_, nullptr);
}

void FusedAdamPlan::Impl::AddToKind(const AdamKind& kind, uint32_t extent) {
  auto place = std::find_if(kinds_.begin(), kinds_.end(), [&](const KindTiles& other) { return other.kind == kind; });
  if (place == kinds_.end()) place = kinds_.insert(kinds_.end(), KindTiles{kind, {}});
  place->extents.push_back(extent);
}

// The table changes rarely: the same extents have gradients in most steps.
absl::Status FusedAdamPlan::Impl::Activate(std::vector<bool> active, cudaStream_t stream) {
  if (active == active_) return absl::OkStatus();
  ListTiles(active);
  active_.clear();
  RETURN_IF_ERROR(ToStatus(cudaMemcpyAsync(device_tiles_.data(), tiles_.data(), tile_count_ * sizeof(AdamTile),
                                           cudaMemcpyHostToDevice, stream),
                           "upload the tiles of a fused step"));
  active_ = std::move(active);
  return absl::OkStatus();
}

void FusedAdamPlan::Impl::ListTiles(const std::vector<bool>& active) {
  tile_count_ = 0;
  for (KindTiles& kind : kinds_) {
    kind.first_tile = tile_count_;
    for (uint32_t extent : kind.extents) {
      if (active[extent]) ListTilesOf(extent);
    }
    kind.tile_count = tile_count_ - kind.first_tile;
  }
}

void FusedAdamPlan::Impl::ListTilesOf(uint32_t extent) {
  const MatrixShape tiles = TilesOf(extents_[extent]);
  for (int64_t row = 0; row < tiles.rows; ++row) {
    for (int64_t column = 0; column < tiles.cols; ++column) {
      tiles_[tile_count_++] = {extent, static_cast<uint32_t>(row), static_cast<uint32_t>(column)};
    }
  }
}

AdamLaunch FusedAdamPlan::Impl::LaunchOf(const KindTiles& kind) const {
  return {reinterpret_cast<const DeviceExtent*>(device_extents_.data()),
          reinterpret_cast<const AdamConstants*>(device_constants_.data()),
          reinterpret_cast<const uint32_t*>(device_constants_of_.data()),
          reinterpret_cast<const AdamTile*>(device_tiles_.data()) + kind.first_tile, kind.tile_count};
}

absl::Status FusedAdamPlan::Impl::UploadConstants(absl::Span<const std::optional<AdamStep>> steps,
                                                  cudaStream_t stream) {
  uint32_t count = 0;
  for (size_t i = 0; i < steps.size(); ++i) {
    if (!steps[i].has_value()) continue;
    if (count == 0 || !AreSame(constants_[count - 1].step, *steps[i]))
      constants_[count++] = MakeAdamConstants(*steps[i]);
    constants_of_[i] = count - 1;
  }
  RETURN_IF_ERROR(ToStatus(cudaMemcpyAsync(device_constants_.data(), constants_.data(), count * sizeof(AdamConstants),
                                           cudaMemcpyHostToDevice, stream),
                           "upload the constants of a fused step"));
  return ToStatus(cudaMemcpyAsync(device_constants_of_.data(), constants_of_.data(), steps.size() * sizeof(uint32_t),
                                  cudaMemcpyHostToDevice, stream),
                  "upload the constants of a fused step");
}

absl::Status FusedAdamPlan::Impl::Step(absl::Span<const std::optional<AdamStep>> steps, cudaStream_t stream) {
  PARAMSHARD_CHECK(steps.size() == extents_.size());
  const DeviceScope scope(device_);
  std::vector<bool> active(steps.size());
  for (size_t i = 0; i < steps.size(); ++i) active[i] = steps[i].has_value();
  RETURN_IF_ERROR(Activate(std::move(active), stream));
  if (tile_count_ == 0) return absl::OkStatus();
  RETURN_IF_ERROR(UploadConstants(steps, stream));
  for (const KindTiles& kind : kinds_) {
    if (kind.tile_count == 0) continue;
    RETURN_IF_ERROR(ToStatus(LaunchAdamStep(kind.kind, LaunchOf(kind), stream), "launch a fused step"));
  }
  return absl::OkStatus();
}

absl::Status FusedAdamPlan::Impl::Encode(cudaStream_t stream) {
  const DeviceScope scope(device_);
  RETURN_IF_ERROR(Activate(std::vector<bool>(extents_.size(), true), stream));
  for (const KindTiles& kind : kinds_) {
    if (kind.tile_count == 0) continue;
    RETURN_IF_ERROR(ToStatus(LaunchAdamEncode(kind.kind, LaunchOf(kind), stream), "launch an encoding"));
  }
  return absl::OkStatus();
}

absl::StatusOr<FusedAdamPlan> FusedAdamPlan::Create(int device, absl::Span<const AdamExtent> extents) {
  auto impl = std::make_unique<Impl>(device);
  RETURN_IF_ERROR(impl->Allocate(extents));
  return FusedAdamPlan(std::move(impl));
}

FusedAdamPlan::FusedAdamPlan(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
FusedAdamPlan::FusedAdamPlan(FusedAdamPlan&& other) noexcept = default;
FusedAdamPlan& FusedAdamPlan::operator=(FusedAdamPlan&& other) noexcept = default;
FusedAdamPlan::~FusedAdamPlan() = default;

absl::Status FusedAdamPlan::Step(absl::Span<const std::optional<AdamStep>> steps, cudaStream_t stream) {
  return impl_->Step(steps, stream);
}

absl::Status FusedAdamPlan::Encode(cudaStream_t stream) { return impl_->Encode(stream); }

}  // namespace paramshard::gpu
