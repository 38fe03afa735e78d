#include "kernels/products/hopper_products.h"

#include <cuda.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/gpu/driver.h"
#include "kernels/gpu/status.h"
#include "kernels/gpu/stream.h"
#include "kernels/products/hopper_launch.h"
#include "kernels/products/tile_schedule.h"

namespace paramshard::gpu {
namespace {

// Grows when results change.
constexpr int kVersion = 1;

// Time of a tile besides its terms, in stages.
constexpr int64_t kStagesOfResult = 4;

int64_t CeilDivide(int64_t size, int64_t step) { return (size + step - 1) / step; }

struct Capability {
  int major = 0;
  int minor = 0;

  bool is_hopper() const { return major == 9 && minor == 0; }
};

absl::StatusOr<Capability> CapabilityOf(int device) {
  Capability capability;
  RETURN_IF_ERROR(ToStatus(cudaDeviceGetAttribute(&capability.major, cudaDevAttrComputeCapabilityMajor, device),
                           "ask for the compute capability"));
  RETURN_IF_ERROR(ToStatus(cudaDeviceGetAttribute(&capability.minor, cudaDevAttrComputeCapabilityMinor, device),
                           "ask for the compute capability"));
  return capability;
}

// Rows and columns of a matrix as it is stored.
struct Extents {
  int64_t rows;
  int64_t columns;

  Extents TransposedIf(bool condition) const { return condition ? Extents{columns, rows} : *this; }
};

// The tiles of one launch.
struct Schedule {
  std::vector<uint64_t> tiles;
  std::vector<uint16_t> first_tiles;  // by worker, and the end
};

class HopperProducts final : public MatrixProducts {
 public:
  static absl::StatusOr<std::unique_ptr<MatrixProducts>> Create(int device) {
    const DeviceScope scope(device);
    ASSIGN_OR_RETURN(const Capability capability, CapabilityOf(device));
    if (!capability.is_hopper()) {
      return absl::UnimplementedError(absl::StrCat("multiply: want a GPU of compute capability 9.0, got ",
                                                   capability.major, ".", capability.minor));
    }
    ASSIGN_OR_RETURN(const Driver* const driver, Driver::Get());
    ASSIGN_OR_RETURN(const int workers, hopper::CountWorkers());
    return std::unique_ptr<MatrixProducts>(new HopperProducts(device, workers, *driver));
  }

  absl::Status Enqueue(absl::Span<const MatrixProduct> products, cudaStream_t stream) override {
    const DeviceScope scope(device_);
    while (!products.empty()) {
      const size_t count = std::min<size_t>(products.size(), hopper::kMostProducts);
      RETURN_IF_ERROR(EnqueueSome(products.first(count), stream));
      products.remove_prefix(count);
    }
    return absl::OkStatus();
  }

  std::string description() const override {
    return absl::StrCat("paramshard's for compute capability 9.0, version ", kVersion);
  }

 private:
  HopperProducts(int device, int workers, const Driver& driver) : device_(device), workers_(workers), driver_(driver) {}

  absl::Status EnqueueSome(absl::Span<const MatrixProduct> products, cudaStream_t stream) {
    std::vector<TileGrid> grids;
    for (const MatrixProduct& product : products) {
      hopper::DeviceProduct& described = launch_.products[grids.size()];
      RETURN_IF_ERROR(Describe(product, described));
      grids.push_back({.rows = CeilDivide(product.rows, hopper::kTileRows),
                       .columns = CeilDivide(product.columns, hopper::kTileColumns),
                       .cost = described.stages + kStagesOfResult,
                       .is_symmetric = product.is_symmetric});
    }
    for (const Schedule& schedule : SchedulesOf(grids)) {
      std::copy(schedule.tiles.begin(), schedule.tiles.end(), launch_.tiles);
      std::copy(schedule.first_tiles.begin(), schedule.first_tiles.end(), launch_.first_tiles);
      RETURN_IF_ERROR(hopper::Enqueue(launch_, static_cast<int>(schedule.first_tiles.size()) - 1, stream));
    }
    return absl::OkStatus();
  }

  // All layers of a model have the same few.
  const std::vector<Schedule>& SchedulesOf(const std::vector<TileGrid>& grids) {
    std::vector<Schedule>& schedules = schedules_[grids];
    if (!schedules.empty()) return schedules;
    const std::vector<Tile> tiles = TilesOf(grids);
    for (size_t first = 0; first < tiles.size(); first += hopper::kMostTiles) {
      const absl::Span<const Tile> some = absl::MakeConstSpan(tiles).subspan(first, hopper::kMostTiles);
      Schedule& schedule = schedules.emplace_back();
      schedule.first_tiles.push_back(0);
      const int workers = static_cast<int>(std::min<size_t>(some.size(), workers_));
      for (const std::vector<Tile>& assigned : AssignTiles(grids, some, workers)) {
        for (const Tile& tile : assigned) {
          schedule.tiles.push_back(hopper::Packed(tile.grid, tile.row, tile.column));
        }
        schedule.first_tiles.push_back(static_cast<uint16_t>(schedule.tiles.size()));
      }
    }
    return schedules;
  }

  absl::Status Describe(const MatrixProduct& product, hopper::DeviceProduct& described) const {
    described.stages = static_cast<int32_t>(CeilDivide(product.terms, hopper::kTerms));
    described.factor = product.factor;
    described.addend_factor = product.addend_factor;
    described.left_is_transposed = product.left.is_transposed;
    described.right_is_transposed = !product.right.is_transposed;
    described.is_symmetric = product.is_symmetric;
    if (described.left_is_transposed && !described.right_is_transposed) {
      return absl::UnimplementedError("multiply: a left operand that is transposed, and a right one that is");
    }
    const Extents left = {product.rows, product.terms};
    const Extents right = {product.columns, product.terms};
    const Extents result = {product.rows, product.columns};
    RETURN_IF_ERROR(MapOperand(product.left, left, described.left_is_transposed, described.left));
    RETURN_IF_ERROR(MapOperand(product.right, right, described.right_is_transposed, described.right));
    if (product.addend_factor != 0) {
      RETURN_IF_ERROR(Map(product.addend, result, hopper::kBoxWidth, described.addend));
    }
    return Map(product.result, result, hopper::kBoxWidth, described.result);
  }

  absl::Status MapOperand(const Operand& operand, const Extents& extents, bool is_transposed, CUtensorMap& map) const {
    return Map(operand, extents.TransposedIf(is_transposed), is_transposed ? hopper::kTerms : hopper::kBlockRows, map);
  }

  // Describes boxes of `box_rows`.
  absl::Status Map(const Operand& operand, const Extents& extents, uint32_t box_rows, CUtensorMap& map) const {
    const cuuint64_t sizes[] = {static_cast<cuuint64_t>(extents.columns), static_cast<cuuint64_t>(extents.rows)};
    const cuuint64_t strides[] = {static_cast<cuuint64_t>(operand.stride) * sizeof(uint16_t)};
    const cuuint32_t box[] = {hopper::kBoxWidth, box_rows};
    const cuuint32_t steps[] = {1, 1};
    return ToStatus(
        driver_.tensor_map_encode_tiled(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, operand.data, sizes, strides, box,
                                        steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                        CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
        "describe a matrix");
  }

  // Constant after construction.
  const int device_;
  const int workers_;
  const Driver& driver_;

  hopper::Launch launch_ = {};
  std::map<std::vector<TileGrid>, std::vector<Schedule>> schedules_;
};

}  // namespace

absl::StatusOr<bool> IsHopper(int device) {
  ASSIGN_OR_RETURN(const Capability capability, CapabilityOf(device));
  return capability.is_hopper();
}

absl::StatusOr<std::unique_ptr<MatrixProducts>> MakeHopperProducts(int device) {
  return HopperProducts::Create(device);
}

}  // namespace paramshard::gpu
