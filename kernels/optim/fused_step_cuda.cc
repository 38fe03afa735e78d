#include "kernels/optim/fused_step_cuda.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/check.h"
#include "kernels/base/float_bits.h"
#include "kernels/base/status_macros.h"
#include "kernels/copy/range_copies_cuda.h"
#include "kernels/formats/fp8_tensor.h"
#include "kernels/formats/scale_math.h"
#include "kernels/gpu/memory.h"
#include "kernels/gpu/pinned_memory.h"
#include "kernels/gpu/status.h"
#include "kernels/gpu/stream.h"
#include "kernels/optim/moved_state.h"
#include "kernels/optim/optimizers.h"
#include "kernels/optim/shifted_rows.h"
#include "kernels/optim/step_kernels.h"

namespace paramshard::gpu {
namespace {

constexpr int kQuad = 4;

// True for null, too.
bool IsAligned(const void* address, int64_t bytes) { return reinterpret_cast<uintptr_t>(address) % bytes == 0; }

// Returns the number of elements of `size` bytes between the last address aligned to `alignment` elements and this one.
int PhaseOf(const void* address, int64_t size, int alignment) {
  return static_cast<int>(reinterpret_cast<uintptr_t>(address) / size % alignment);
}

// True for null, too.
bool IsInPhase(const void* address, int64_t size, int phase) {
  return address == nullptr || PhaseOf(address, size, kQuad) == phase % kQuad;
}

// Returns true if the step walks an extent of the format as one long row: its rows share no scale, or they are encoded
// later, when the amax is known (NVFP4_2D).
bool IsFlat(Format format) { return GpuFormatOf(format).step_tiles == StepTiles::kFlat; }

// Returns true if a flat extent is walked row by row nevertheless, because blocks of moments end with each row.
bool WalksRows(const StepExtent& extent) {
  const auto& moments = extent.state.moments;
  const bool has_scales = std::any_of(moments.begin(), moments.end(),
                                      [](const MutableMoment& moment) { return HasMomentScales(moment.type); });
  return IsFlat(extent.encoding.format) && has_scales && extent.rows > 1 && extent.columns % kMomentBlockSize != 0;
}

DeviceExtent ToDeviceExtent(const StepExtent& extent) {
  DeviceExtent device_extent = {};
  device_extent.gradient = extent.gradient;
  device_extent.master = extent.state.master;
  device_extent.remainder = extent.state.remainder;
  device_extent.weights =
      extent.state.weights != nullptr ? extent.state.weights : reinterpret_cast<uint16_t*>(extent.row_wise.data);
  device_extent.moments = extent.state.moments;
  device_extent.row_wise = extent.row_wise;
  device_extent.column_wise = extent.column_wise;
  device_extent.rows = extent.rows;
  device_extent.columns = extent.columns;
  device_extent.encoding = extent.encoding;
  device_extent.amax_use = TraitsOf(extent.encoding.format).amax_use;
  device_extent.by_rows = WalksRows(extent);
  device_extent.phase = PhaseOf(extent.state.master, sizeof(float), kShiftAlignment);
  return device_extent;
}

// Returns the arrays of the extent that a step moves.
OptimizerState StateOf(const DeviceExtent& extent) {
  return {.master = extent.master,
          .remainder = extent.remainder,
          .moments = extent.moments,
          .weights = extent.remainder != nullptr ? extent.weights : nullptr};
}

absl::Status CheckExtent(const StepExtent& extent, bool moves) {
  RETURN_IF_ERROR(CheckEncodable(extent.encoding));
  if (extent.state.remainder == nullptr || extent.rows * extent.columns == 0) return absl::OkStatus();
  if (moves && extent.state.weights == nullptr) {
    return absl::InvalidArgumentError(
        "fused step: a master with a remainder that moves needs weights of its own, got those of its plane");
  }
  const uint8_t* const plane = extent.row_wise.data;
  const bool aligned = extent.state.weights != nullptr || IsAligned(plane, sizeof(uint16_t));
  if (extent.encoding.format == Format::kBF16 && plane != nullptr && aligned) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("fused step: a master with a remainder needs BF16 weights that are aligned to 2 bytes, got format ",
                   FormatName(extent.encoding.format), plane == nullptr ? " without a plane" : ""));
}

absl::Status CheckBands(absl::Span<const StepExtent> extents, absl::Span<const BandStart> bands) {
  std::vector<MatrixShape> shapes;
  for (const StepExtent& extent : extents) shapes.push_back({extent.rows, extent.columns});
  return paramshard::CheckBands(shapes, bands);
}

// Returns true if no band cuts a tile of the step: bands begin at multiples of kBandTileRows rows and of
// kBandTileElements elements.
constexpr bool BandsHoldTiles() {
  for (const FormatTraits& traits : kFormats) {
    const GpuFormat gpu = GpuFormatOf(traits.format);
    if (gpu.step_tiles != StepTiles::kFlat && kBandTileRows % gpu.step_tile_shape.rows != 0) return false;
  }
  return kBandTileRows % kRowsTileShape.rows == 0 && kBandTileElements % kFlatTileColumns == 0;
}
static_assert(BandsHoldTiles(), "tiles that BandRows() does not count with");

// Returns true if all arrays can be accessed four elements at a time from their first element on.
bool IsInPhase(const DeviceExtent& extent) {
  const auto moment = [&](const MutableMoment& m) { return IsInPhase(m.data, MomentBytes(m.type), extent.phase); };
  const bool split = extent.remainder != nullptr;
  return IsInPhase(extent.gradient.data, GradientBytes(extent.gradient.type), extent.phase) &&
         std::all_of(extent.moments.begin(), extent.moments.end(), moment) &&
         IsInPhase(extent.remainder, sizeof(int16_t), extent.phase) &&
         (!split || IsInPhase(extent.weights, sizeof(uint16_t), extent.phase));
}

// Returns true if no group of four elements contains the beginning of a row or is misaligned in a plane.
bool HasWholeQuads(const DeviceExtent& extent) {
  const int64_t plane_quad = DataBytes(extent.encoding, 1, kQuad);
  const bool is_flat = IsFlat(extent.encoding.format) && !extent.by_rows;
  const int64_t row = is_flat ? extent.rows * extent.columns : extent.columns;
  return extent.phase % kQuad == 0 && row % kQuad == 0 && IsAligned(extent.row_wise.data, plane_quad) &&
         IsAligned(extent.column_wise.data, plane_quad) && IsAligned(extent.column_wise.scales, kQuad);
}

// Returns the number of moments that the extent has: its optimizer's.
int MomentCount(const DeviceExtent& extent) {
  int count = 0;
  while (count < kMomentCount && extent.moments.values[count].data != nullptr) ++count;
  return count;
}

// Returns true if the extent has the moments of the step's optimizer. Muon's is stepped before.
bool IsStepOf(const OptimizerStep& step, const DeviceExtent& extent) {
  if (extent.rows * extent.columns == 0) return IsOptimizer(step.optimizer);
  if (!IsOptimizer(step.optimizer)) return false;
  return MomentCount(extent) == (IsMuon(step.optimizer) ? 0 : TraitsOf(step.optimizer).moment_count);
}

// Returns the types of the moments; FP32 without any.
KernelMoments MomentsOf(const DeviceExtent& extent) {
  const MutableMoment* const first = extent.moments.begin();
  const bool are_equal = std::all_of(first, first + MomentCount(extent),
                                     [&](const MutableMoment& moment) { return moment.type == first->type; });
  return are_equal ? static_cast<KernelMoments>(first->type) : KernelMoments::kAny;
}

// The access, and the moments that a kernel of it takes.
KernelKind KindOf(const DeviceExtent& extent, StepTiles tiles) {
  const KernelMoments moments = MomentsOf(extent);
  const KernelGradients gradients =
      moments == KernelMoments::kAny ? KernelGradients::kAny : static_cast<KernelGradients>(extent.gradient.type);
  const int count = MomentCount(extent);
  const KernelKind strided = {count, KernelMoments::kAny, KernelGradients::kAny, KernelAccess::kStrided, tiles};
  if (!IsInPhase(extent)) return strided;
  const bool can_shift = (moments == KernelMoments::kFP32 || moments == KernelMoments::kBF16) &&
                         extent.remainder == nullptr && extent.columns < std::numeric_limits<int32_t>::max();
  // Rows that begin inside of a sector cost more than their own bytes. With BF16 moments, which leave less time for an
  // element, shifting costs more than that.
  const bool whole_sectors = IsFlat(extent.encoding.format) || extent.rows <= 1 ||
                             extent.columns % kShiftAlignment == 0 || moments == KernelMoments::kBF16;
  if (HasWholeQuads(extent) && (whole_sectors || !can_shift))
    return {count, moments, gradients, KernelAccess::kQuads, tiles};
  if (can_shift) return {count, moments, gradients, KernelAccess::kShifted, tiles};
  return strided;
}

MatrixShape CutInto(const MatrixShape& shape, const MatrixShape& tile) {
  return {(shape.rows + tile.rows - 1) / tile.rows, (shape.cols + tile.cols - 1) / tile.cols};
}

// Returns the numbers of tiles that an extent has in a pass.
MatrixShape TilesOf(const DeviceExtent& extent, KernelPass pass) {
  const Format format = extent.encoding.format;
  const MatrixShape shape = {extent.rows, extent.columns};
  if (shape.rows * shape.cols == 0) return {0, 0};
  const GpuFormat gpu = GpuFormatOf(format);
  if (pass == KernelPass::kEncode && gpu.late_tile_shape.rows != 0) return CutInto(shape, gpu.late_tile_shape);
  if (gpu.step_tiles != StepTiles::kFlat) return CutInto(shape, gpu.step_tile_shape);
  if (extent.by_rows) return CutInto(shape, kRowsTileShape);
  return CutInto({1, shape.rows * shape.cols}, {1, kFlatTileColumns});
}

// The tiles that most extents in blocks have. Flat extents join them, so that they need no launch of their own.
StepTiles CommonTiles(absl::Span<const StepExtent> extents) {
  const auto count = [&](StepTiles tiles) {
    return std::count_if(extents.begin(), extents.end(), [&](const StepExtent& extent) {
      return GpuFormatOf(extent.encoding.format).step_tiles == tiles;
    });
  };
  return count(StepTiles::kFp8Block) > count(StepTiles::kMxfp8) ? StepTiles::kFp8Block : StepTiles::kMxfp8;
}

DeviceScaling ToDeviceScaling(const Encoding& encoding, const TensorScaling& scaling) {
  if (AmaxBytes(encoding.format) > 0) {
    return {ComputeNvfp4TensorScale(scaling.amax), scaling.amax, StoredScaling::kAmax};
  }
  const float multiplier = Fp8TensorScale(encoding, scaling);
  return {multiplier, 1.0f / multiplier, StoredScaling::kScaleInv};
}

// Returns true if ElementsWith<> (elements_cuda.h) has the optimizer.
constexpr bool HasElements(Optimizer optimizer) {
  switch (optimizer) {
    case Optimizer::kAdamW:
    case Optimizer::kAdam:
    case Optimizer::kSgd:
    case Optimizer::kSgdMomentum:
    case Optimizer::kSgdNesterov:
    case Optimizer::kLion:
    case Optimizer::kMuon:
    case Optimizer::kMuonNesterov:
      return true;
  }
  return false;
}

constexpr bool AllHaveElements() {
  for (const OptimizerTraits& traits : kOptimizers) {
    if (!HasElements(traits.optimizer)) return false;
  }
  return true;
}
static_assert(AllHaveElements(), "an optimizer by which no kernel steps");

// Bit by bit: -0 is another weight decay than 0.
static_assert(sizeof(OptimizerStep) == sizeof(Hyperparameters) + 6 * sizeof(float), "a field that is not compared");
bool AreSame(const OptimizerStep& a, const OptimizerStep& b) {
  const auto same = [](float x, float y) { return FloatBits(x) == FloatBits(y); };
  for (const HyperparameterTraits& each : kHyperparameters) {
    if (!same(a.*each.member, b.*each.member)) return false;
  }
  return a.optimizer == b.optimizer && same(a.bias_correction1, b.bias_correction1) &&
         same(a.bias_correction2, b.bias_correction2) && same(a.gradient_scale, b.gradient_scale) &&
         same(a.matrix_rate, b.matrix_rate) && same(a.kept, b.kept);
}

// An array in device memory, written from one in pinned memory.
template <typename T>
class UploadedArray {
 public:
  static absl::StatusOr<UploadedArray> Create(int device, int64_t count) {
    UploadedArray array;
    const int accessors[] = {device};
    ASSIGN_OR_RETURN(array.memory_, DeviceMemory::Create(device, count * sizeof(T), accessors, /*shareable=*/false));
    ASSIGN_OR_RETURN(array.host_, PinnedArray<T>::Create(count));
    return array;
  }

  T& operator[](int64_t i) const { return host_[i]; }
  T* device_data() const { return reinterpret_cast<T*>(memory_.data()); }

  // Enqueues copying the first `count`.
  absl::Status Upload(int64_t count, cudaStream_t stream) const {
    if (count == 0) return absl::OkStatus();
    return ToStatus(cudaMemcpyAsync(memory_.data(), host_.data(), count * sizeof(T), cudaMemcpyHostToDevice, stream),
                    "upload the tables of a fused step");
  }

 private:
  DeviceMemory memory_;
  PinnedArray<T> host_;
};

// The extents that one launch takes, and their active tiles' place in the table.
struct KindTiles {
  KernelKind kind;
  std::vector<uint32_t> extents;
  int64_t first_tile = 0;
  int64_t tile_count = 0;
  // The tile at which each band begins, and at last the end.
  std::vector<int64_t> band_tiles = {};
};

// The tiles of active extents, kind by kind. Uploaded again when other extents are active.
class TileTable {
 public:
  static absl::StatusOr<TileTable> Create(int device, KernelPass pass, const std::vector<DeviceExtent>& extents,
                                          std::vector<KindTiles> kinds, std::vector<BandStart> bands) {
    TileTable table;
    table.pass_ = pass;
    table.kinds_ = std::move(kinds);
    table.bands_ = std::move(bands);
    int64_t most_tiles = 0;
    for (const DeviceExtent& extent : extents) {
      const MatrixShape tiles = TilesOf(extent, pass);
      most_tiles += tiles.rows * tiles.cols;
    }
    ASSIGN_OR_RETURN(table.tiles_, UploadedArray<KernelTile>::Create(device, most_tiles));
    return table;
  }

  const std::vector<KindTiles>& kinds() const { return kinds_; }
  const KernelTile* device_tiles() const { return tiles_.device_data(); }

  absl::Status Activate(const std::vector<DeviceExtent>& extents, const std::vector<bool>& active,
                        cudaStream_t stream) {
    if (active == active_) return absl::OkStatus();
    int64_t count = 0;
    for (KindTiles& kind : kinds_) {
      kind.first_tile = count;
      kind.band_tiles.clear();
      for (uint32_t extent : kind.extents) {
        if (active[extent]) List(extents[extent], extent, count, kind.band_tiles);
      }
      kind.tile_count = count - kind.first_tile;
      kind.band_tiles.resize(bands_.size() + 1, count);
    }
    active_.clear();
    RETURN_IF_ERROR(tiles_.Upload(count, stream));
    active_ = active;
    return absl::OkStatus();
  }

 private:
  void List(const DeviceExtent& extent, uint32_t index, int64_t& count, std::vector<int64_t>& band_tiles) const {
    const MatrixShape tiles = TilesOf(extent, pass_);
    for (int64_t row = 0; row < tiles.rows; ++row) {
      for (int64_t column = 0; column < tiles.cols; ++column) {
        const KernelTile tile = {index, static_cast<uint32_t>(row), static_cast<uint32_t>(column)};
        const int64_t first_row = FirstRow(extent, tile);
        while (band_tiles.size() < bands_.size() && IsBehind(band_tiles.size(), index, first_row)) {
          band_tiles.push_back(count);
        }
        tiles_[count++] = tile;
      }
    }
  }

  // Returns true if the band begins at or before the row.
  bool IsBehind(size_t band, int64_t extent, int64_t row) const {
    const BandStart& start = bands_[band];
    return start.extent < extent || (start.extent == extent && start.row <= row);
  }

  int64_t FirstRow(const DeviceExtent& extent, const KernelTile& tile) const {
    const GpuFormat gpu = GpuFormatOf(extent.encoding.format);
    if (gpu.step_tiles != StepTiles::kFlat) return tile.row * gpu.step_tile_shape.rows;
    if (extent.by_rows) return tile.row * kRowsTileShape.rows;
    return tile.column * kFlatTileColumns / extent.columns;
  }

  KernelPass pass_ = KernelPass::kStep;
  std::vector<KindTiles> kinds_;
  std::vector<BandStart> bands_;
  UploadedArray<KernelTile> tiles_;
  std::vector<bool> active_;
};

void AddToKind(const KernelKind& kind, uint32_t extent, std::vector<KindTiles>& kinds) {
  auto place = std::find_if(kinds.begin(), kinds.end(), [&](const KindTiles& other) { return other.kind == kind; });
  if (place == kinds.end()) place = kinds.insert(kinds.end(), KindTiles{kind, {}});
  place->extents.push_back(extent);
}

constexpr bool OnlyNvfp4HasLateTiles() {
  for (const FormatTraits& traits : kFormats) {
    const bool has_late_tiles = GpuFormatOf(traits.format).late_tile_shape.rows != 0;
    if (has_late_tiles != (traits.format == Format::kNVFP4_2D)) return false;
  }
  return true;
}
static_assert(OnlyNvfp4HasLateTiles(), "late tiles that no kernel encodes");

// A kind of its own in the table of encodings.
constexpr KernelKind kNvfp4Kind = {0, KernelMoments::kAny, KernelGradients::kAny, KernelAccess::kNvfp4,
                                   StepTiles::kFlat};

}  // namespace

class FusedStepPlan::Impl {
 public:
  explicit Impl(int device) : device_(device) {}

  absl::Status Allocate(absl::Span<const StepExtent> extents, std::vector<BandStart> bands);
  void SetPosition(int64_t bytes);
  int band_count() const { return static_cast<int>(bands_.size()); }
  absl::Status Step(absl::Span<const std::optional<OptimizerStep>> steps, absl::Span<const TensorScaling> scalings,
                    cudaStream_t stream);
  absl::Status BeginStep(absl::Span<const std::optional<OptimizerStep>> steps, absl::Span<const TensorScaling> scalings,
                         int64_t distance, cudaStream_t stream);
  absl::Status StepBand(int band, cudaStream_t stream);
  absl::Status Encode(const std::vector<bool>& active, absl::Span<const TensorScaling> scalings, cudaStream_t stream);
  absl::Status EncodeAll(absl::Span<const TensorScaling> scalings, cudaStream_t stream);
  absl::Status EncodeAfterAmax(const std::vector<bool>& active, absl::Span<const TensorScaling> scalings,
                               cudaStream_t stream);
  absl::Status MeasureAmaxes(cudaStream_t stream);
  absl::StatusOr<std::vector<float>> Amaxes(cudaStream_t stream);

 private:
  Format FormatOf(size_t extent) const { return extents_[extent].encoding.format; }
  absl::Status AllocateTables();
  absl::Status UploadConstants(absl::Span<const std::optional<OptimizerStep>> steps, cudaStream_t stream);
  absl::Status StoreScalings(const std::vector<bool>& active, absl::Span<const TensorScaling> scalings,
                             cudaStream_t stream);
  absl::Status ClearAmaxes(cudaStream_t stream);
  // Some tiles of a kind.
  struct TileRange {
    int64_t first = 0;
    int64_t count = 0;
  };
  absl::Status LaunchTiles(const TileTable& table, const KernelKind& kind, KernelPass pass, const TileRange& tiles,
                           cudaStream_t stream);
  absl::Status Launch(TileTable& table, KernelPass pass, const std::vector<bool>& active, cudaStream_t stream);
  // Copies the state that takes no step to its new position.
  absl::Status CopyIdle(int band, cudaStream_t stream) const;

  // Constant after Create().
  int device_;
  bool needs_amax_ = false;
  std::vector<DeviceExtent> extents_;
  std::vector<KindTiles> step_kinds_;
  std::vector<KindTiles> encode_kinds_;
  std::vector<BandStart> bands_;
  DeviceMemory device_extents_;

  UploadedArray<StepConstants> constants_;
  UploadedArray<uint32_t> constants_of_;
  UploadedArray<DeviceScaling> scalings_;
  // Their bits; read back into the pinned part.
  DeviceMemory device_amaxes_;
  PinnedArray<float> amaxes_;
  TileTable step_tiles_;
  TileTable encode_tiles_;

  int64_t position_ = 0;
  // True between BeginStep() and SetPosition(), when StepBand() may be called.
  bool has_begun_ = false;
  // Distance of the latest BeginStep().
  int64_t distance_ = 0;
  std::optional<int> latest_band_;
  std::vector<bool> active_;
};

absl::Status FusedStepPlan::Impl::Allocate(absl::Span<const StepExtent> extents, std::vector<BandStart> bands) {
  bands_ = std::move(bands);
  RETURN_IF_ERROR(CheckBands(extents, bands_));
  const DeviceScope scope(device_);
  if (!bands_.empty()) RETURN_IF_ERROR(LoadCopyRanges());
  const StepTiles common_tiles = CommonTiles(extents);
  for (const StepExtent& extent : extents) {
    RETURN_IF_ERROR(CheckExtent(extent, /*moves=*/!bands_.empty()));
    const Format format = extent.encoding.format;
    const GpuFormat gpu = GpuFormatOf(format);
    const StepTiles tiles = IsFlat(format) ? common_tiles : gpu.step_tiles;
    const DeviceExtent& added = extents_.emplace_back(ToDeviceExtent(extent));
    const auto index = static_cast<uint32_t>(extents_.size() - 1);
    AddToKind(KindOf(added, tiles), index, step_kinds_);
    // Encoding reads no moments and no gradients.
    KernelKind encode_kind = KindOf(added, tiles);
    encode_kind.moment_count = 0;
    encode_kind.moments = KernelMoments::kAny;
    encode_kind.gradients = KernelGradients::kAny;
    AddToKind(gpu.late_tile_shape.rows != 0 ? kNvfp4Kind : encode_kind, index, encode_kinds_);
    needs_amax_ = needs_amax_ || NeedsAmax(format);
  }
  return AllocateTables();
}

absl::Status FusedStepPlan::Impl::AllocateTables() {
  const int accessors[] = {device_};
  const auto count = static_cast<int64_t>(extents_.size());
  ASSIGN_OR_RETURN(device_extents_,
                   DeviceMemory::Create(device_, count * sizeof(DeviceExtent), accessors, /*shareable=*/false));
  ASSIGN_OR_RETURN(device_amaxes_,
                   DeviceMemory::Create(device_, count * sizeof(float), accessors, /*shareable=*/false));
  ASSIGN_OR_RETURN(amaxes_, PinnedArray<float>::Create(count));
  ASSIGN_OR_RETURN(constants_, UploadedArray<StepConstants>::Create(device_, count));
  ASSIGN_OR_RETURN(constants_of_, UploadedArray<uint32_t>::Create(device_, count));
  ASSIGN_OR_RETURN(scalings_, UploadedArray<DeviceScaling>::Create(device_, count));
  ASSIGN_OR_RETURN(step_tiles_,
                   TileTable::Create(device_, KernelPass::kStep, extents_, std::move(step_kinds_), bands_));
  ASSIGN_OR_RETURN(encode_tiles_,
                   TileTable::Create(device_, KernelPass::kEncode, extents_, std::move(encode_kinds_), {}));
  if (count == 0) return absl::OkStatus();
  const DeviceScope scope(device_);
  RETURN_IF_ERROR(ToStatus(
      cudaMemcpy(device_extents_.data(), extents_.data(), count * sizeof(DeviceExtent), cudaMemcpyHostToDevice),
      "upload the extents of a fused step"));
  RETURN_IF_ERROR(ClearAmaxes(nullptr));
  // A copy from memory that is not pinned may return before its last bytes have arrived.
  return AwaitStream(device_, nullptr);
}

absl::Status FusedStepPlan::Impl::UploadConstants(absl::Span<const std::optional<OptimizerStep>> steps,
                                                  cudaStream_t stream) {
  uint32_t count = 0;
  for (size_t i = 0; i < steps.size(); ++i) {
    if (!steps[i].has_value()) continue;
    if (count == 0 || !AreSame(constants_[count - 1].step, *steps[i])) {
      constants_[count++] = MakeStepConstants(*steps[i]);
    }
    constants_of_[i] = count - 1;
  }
  RETURN_IF_ERROR(constants_.Upload(count, stream));
  return constants_of_.Upload(static_cast<int64_t>(steps.size()), stream);
}

// Uploads the scalings of active extents, which encoding uses and stores with their planes.
absl::Status FusedStepPlan::Impl::StoreScalings(const std::vector<bool>& active,
                                                absl::Span<const TensorScaling> scalings, cudaStream_t stream) {
  if (!needs_amax_) return absl::OkStatus();
  if (scalings.size() != extents_.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("fused step: want scalings of ", extents_.size(), " extents, got ", scalings.size()));
  }
  for (size_t i = 0; i < scalings.size(); ++i) {
    const bool is_stored = active[i] && NeedsAmax(FormatOf(i));
    scalings_[i] = is_stored ? ToDeviceScaling(extents_[i].encoding, scalings[i]) : DeviceScaling{};
  }
  const auto count = static_cast<uint32_t>(scalings.size());
  RETURN_IF_ERROR(scalings_.Upload(count, stream));
  return ToStatus(LaunchStoreScalings(reinterpret_cast<const DeviceExtent*>(device_extents_.data()),
                                      scalings_.device_data(), count, stream),
                  "store the scales of tensors");
}

absl::Status FusedStepPlan::Impl::ClearAmaxes(cudaStream_t stream) {
  if (!needs_amax_) return absl::OkStatus();
  return ToStatus(cudaMemsetAsync(device_amaxes_.data(), 0, extents_.size() * sizeof(float), stream), "clear amaxes");
}

absl::Status FusedStepPlan::Impl::LaunchTiles(const TileTable& table, const KernelKind& kind, KernelPass pass,
                                              const TileRange& tiles, cudaStream_t stream) {
  if (tiles.count == 0) return absl::OkStatus();
  const KernelLaunch launch = {reinterpret_cast<const DeviceExtent*>(device_extents_.data()),
                               constants_.device_data(),
                               constants_of_.device_data(),
                               scalings_.device_data(),
                               reinterpret_cast<uint32_t*>(device_amaxes_.data()),
                               table.device_tiles() + tiles.first,
                               tiles.count,
                               position_,
                               distance_,
                               pass};
  if (pass == KernelPass::kStep) return ToStatus(LaunchStep(kind, launch, stream), "launch a fused step");
  return ToStatus(LaunchEncode(kind, launch, stream), "launch an encoding");
}

absl::Status FusedStepPlan::Impl::Launch(TileTable& table, KernelPass pass, const std::vector<bool>& active,
                                         cudaStream_t stream) {
  RETURN_IF_ERROR(table.Activate(extents_, active, stream));
  for (const KindTiles& kind : table.kinds()) {
    RETURN_IF_ERROR(LaunchTiles(table, kind.kind, pass, {kind.first_tile, kind.tile_count}, stream));
  }
  return absl::OkStatus();
}

absl::Status FusedStepPlan::Impl::BeginStep(absl::Span<const std::optional<OptimizerStep>> steps,
                                            absl::Span<const TensorScaling> scalings, int64_t distance,
                                            cudaStream_t stream) {
  PARAMSHARD_CHECK(steps.size() == extents_.size());
  for (size_t i = 0; i < steps.size(); ++i) {
    PARAMSHARD_CHECK(!steps[i].has_value() || IsStepOf(*steps[i], extents_[i]));
  }
  PARAMSHARD_CHECK(distance % kMoveUnit == 0 && position_ + distance >= 0);
  const DeviceScope scope(device_);
  has_begun_ = true;
  latest_band_ = std::nullopt;
  active_.assign(steps.size(), false);
  std::vector<bool> encoded(steps.size());
  for (size_t i = 0; i < steps.size(); ++i) {
    active_[i] = steps[i].has_value();
    encoded[i] = active_[i] && !EncodesAfterAmax(FormatOf(i));
  }
  distance_ = distance;
  RETURN_IF_ERROR(StoreScalings(encoded, scalings, stream));
  RETURN_IF_ERROR(ClearAmaxes(stream));
  RETURN_IF_ERROR(UploadConstants(steps, stream));
  return step_tiles_.Activate(extents_, active_, stream);
}

absl::Status FusedStepPlan::Impl::Step(absl::Span<const std::optional<OptimizerStep>> steps,
                                       absl::Span<const TensorScaling> scalings, cudaStream_t stream) {
  RETURN_IF_ERROR(BeginStep(steps, scalings, /*distance=*/0, stream));
  has_begun_ = false;
  const DeviceScope scope(device_);
  return Launch(step_tiles_, KernelPass::kStep, active_, stream);
}

void FusedStepPlan::Impl::SetPosition(int64_t bytes) {
  PARAMSHARD_CHECK(bytes % kMoveUnit == 0 && bytes >= 0);
  has_begun_ = false;
  position_ = bytes;
}

absl::Status FusedStepPlan::Impl::StepBand(int band, cudaStream_t stream) {
  PARAMSHARD_CHECK(has_begun_ && band >= 0 && band < band_count());
  // A band overwrites bytes that bands before it have read: any other order would lose state.
  const bool in_order =
      distance_ == 0 || !latest_band_.has_value() || (distance_ > 0 ? band < *latest_band_ : band > *latest_band_);
  PARAMSHARD_CHECK(in_order);
  latest_band_ = band;
  const DeviceScope scope(device_);
  for (const KindTiles& kind : step_tiles_.kinds()) {
    const int64_t first = kind.band_tiles[band];
    RETURN_IF_ERROR(
        LaunchTiles(step_tiles_, kind.kind, KernelPass::kStep, {first, kind.band_tiles[band + 1] - first}, stream));
  }
  return distance_ == 0 ? absl::OkStatus() : CopyIdle(band, stream);
}

absl::Status FusedStepPlan::Impl::CopyIdle(int band, cudaStream_t stream) const {
  const BandStart begin = bands_[band];
  const auto extent_count = static_cast<int64_t>(extents_.size());
  const BandStart end = band + 1 < band_count() ? bands_[band + 1] : BandStart{extent_count, 0};
  IdleState idle;
  for (int64_t i = begin.extent; i < extent_count && i <= end.extent; ++i) {
    const DeviceExtent& extent = extents_[i];
    const int64_t first = i == begin.extent ? begin.row : 0;
    const int64_t behind = i == end.extent ? end.row : extent.rows;
    active_[i] ? idle.Cut() : idle.Add(StateOf(extent), extent.columns, first, behind - first);
  }
  std::vector<RangeCopy> copies;
  for (const IdleState::Range& range : idle.ranges()) {
    const uint8_t* const source = range.begin + position_;
    copies.push_back({range.begin + position_ + distance_, source, range.size_bytes});
  }
  return CopyRanges(copies, stream);
}

absl::Status FusedStepPlan::Impl::Encode(const std::vector<bool>& active, absl::Span<const TensorScaling> scalings,
                                         cudaStream_t stream) {
  const DeviceScope scope(device_);
  RETURN_IF_ERROR(StoreScalings(active, scalings, stream));
  return Launch(encode_tiles_, KernelPass::kEncode, active, stream);
}

absl::Status FusedStepPlan::Impl::EncodeAll(absl::Span<const TensorScaling> scalings, cudaStream_t stream) {
  return Encode(std::vector<bool>(extents_.size(), true), scalings, stream);
}

absl::Status FusedStepPlan::Impl::EncodeAfterAmax(const std::vector<bool>& active,
                                                  absl::Span<const TensorScaling> scalings, cudaStream_t stream) {
  PARAMSHARD_CHECK(active.size() == extents_.size());
  std::vector<bool> encoded(active);
  for (size_t i = 0; i < active.size(); ++i) encoded[i] = active[i] && EncodesAfterAmax(FormatOf(i));
  return Encode(encoded, scalings, stream);
}

absl::Status FusedStepPlan::Impl::MeasureAmaxes(cudaStream_t stream) {
  const DeviceScope scope(device_);
  std::vector<bool> active(extents_.size());
  for (size_t i = 0; i < active.size(); ++i) active[i] = NeedsAmax(FormatOf(i));
  RETURN_IF_ERROR(ClearAmaxes(stream));
  return Launch(step_tiles_, KernelPass::kMeasure, active, stream);
}

absl::StatusOr<std::vector<float>> FusedStepPlan::Impl::Amaxes(cudaStream_t stream) {
  const DeviceScope scope(device_);
  std::vector<float> amaxes(extents_.size(), 0.0f);
  if (!needs_amax_) return amaxes;
  RETURN_IF_ERROR(ToStatus(cudaMemcpyAsync(amaxes_.data(), device_amaxes_.data(), amaxes.size() * sizeof(float),
                                           cudaMemcpyDeviceToHost, stream),
                           "read amaxes"));
  RETURN_IF_ERROR(AwaitStream(device_, stream));
  std::copy_n(amaxes_.data(), amaxes.size(), amaxes.begin());
  return amaxes;
}

absl::StatusOr<FusedStepPlan> FusedStepPlan::Create(int device, absl::Span<const StepExtent> extents,
                                                    std::vector<BandStart> bands) {
  auto impl = std::make_unique<Impl>(device);
  RETURN_IF_ERROR(impl->Allocate(extents, std::move(bands)));
  return FusedStepPlan(std::move(impl));
}

FusedStepPlan::FusedStepPlan(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
FusedStepPlan::FusedStepPlan(FusedStepPlan&& other) noexcept = default;
FusedStepPlan& FusedStepPlan::operator=(FusedStepPlan&& other) noexcept = default;
FusedStepPlan::~FusedStepPlan() = default;

absl::Status FusedStepPlan::Step(absl::Span<const std::optional<OptimizerStep>> steps,
                                 absl::Span<const TensorScaling> scalings, cudaStream_t stream) {
  return impl_->Step(steps, scalings, stream);
}

void FusedStepPlan::SetPosition(int64_t bytes) { impl_->SetPosition(bytes); }

int FusedStepPlan::band_count() const { return impl_->band_count(); }

absl::Status FusedStepPlan::BeginStep(absl::Span<const std::optional<OptimizerStep>> steps,
                                      absl::Span<const TensorScaling> scalings, int64_t distance, cudaStream_t stream) {
  return impl_->BeginStep(steps, scalings, distance, stream);
}

absl::Status FusedStepPlan::StepBand(int band, cudaStream_t stream) { return impl_->StepBand(band, stream); }

absl::Status FusedStepPlan::Encode(absl::Span<const TensorScaling> scalings, cudaStream_t stream) {
  return impl_->EncodeAll(scalings, stream);
}

absl::Status FusedStepPlan::EncodeAfterAmax(const std::vector<bool>& active, absl::Span<const TensorScaling> scalings,
                                            cudaStream_t stream) {
  return impl_->EncodeAfterAmax(active, scalings, stream);
}

absl::Status FusedStepPlan::MeasureAmaxes(cudaStream_t stream) { return impl_->MeasureAmaxes(stream); }

absl::StatusOr<std::vector<float>> FusedStepPlan::Amaxes(cudaStream_t stream) { return impl_->Amaxes(stream); }

}  // namespace paramshard::gpu
