#include "kernels/optim/muon_memory.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/optim/orthogonalizer.h"
#include "kernels/optim/orthogonalizer_memory.h"

namespace paramshard {
namespace {

using ::testing::ElementsAre;

constexpr int64_t kMiB = 1 << 20;

MuonExtent Plain(int64_t rows, int64_t columns) { return {{rows, columns}, std::nullopt}; }

// An extent of `count` equal matrices, one below the other.
MuonExtent Stack(int64_t rows, int64_t columns, int64_t count = 1) {
  MuonMatrices matrices;
  for (int64_t i = 0; i < count; ++i) matrices.parts.push_back({i * rows, 0, rows, columns});
  return {{count * rows, columns}, std::move(matrices)};
}

// Matrices side by side, of these columns each.
MuonExtent Row(int64_t rows, const std::vector<int64_t>& columns) {
  MuonMatrices matrices;
  int64_t end = 0;
  for (const int64_t each : columns) {
    matrices.parts.push_back({0, end, rows, each});
    end += each;
  }
  return {{rows, end}, std::move(matrices)};
}

TEST(MuonMemoryTest, WithoutMuonThereIsNone) {
  EXPECT_EQ(HostMuonMemory({}).Total(), 0);
  EXPECT_EQ(HostMuonMemory({Plain(100, 100)}).Total(), 0);
  EXPECT_EQ(GpuMuonMemory({}, {}).Total(), 0);
  EXPECT_EQ(GpuMuonMemory({Plain(100, 100)}, {}).Total(), 0);
}

TEST(MuonMemoryTest, AHostHasTheLargestUpdateAndTheProductsOfTheLargestMatrix) {
  const MuonMemory memory = HostMuonMemory({Plain(1000, 1000), Stack(10, 20, 9), Stack(30, 50), Row(40, {8, 2})});
  EXPECT_THAT(memory.updates.groups, ElementsAre(ElementsAre(1), ElementsAre(2), ElementsAre(3)));
  EXPECT_EQ(memory.UpdateBytes(), 2 * 9 * 10 * 20);
  const int64_t tile = MakeHostOrthogonalizer()->scratch_bytes();
  EXPECT_GT(tile, 0);
  EXPECT_EQ(memory.product_bytes, tile + 2 * (2 * 30 * 30 + 30 * 50));
  EXPECT_EQ(MakeHostOrthogonalizer(memory.product_bytes)->scratch_bytes(), memory.product_bytes);
}

TEST(MuonMemoryTest, AHostsOrthogonalizerTakesNoMoreThanWhatWasSaid) {
  std::vector<uint16_t> elements(30 * 50, 0x3f80);
  const std::vector<BFloat16Matrix> matrices = {
      {elements.data(), 10, 20, 20}, {elements.data(), 30, 50, 50}, {elements.data(), 50, 30, 30}};
  const int64_t bytes = HostOrthogonalizerBytes(matrices);
  const auto orthogonalizer = MakeHostOrthogonalizer(bytes);
  ASSERT_TRUE(orthogonalizer->Run(NewtonSchulz(), matrices).ok());
  EXPECT_EQ(orthogonalizer->scratch_bytes(), bytes);
}

TEST(MuonMemoryTest, AGpuHasAllUpdatesThatAreThereAtATime) {
  // Whole rows of a multiple of 64 elements are multiplied in place; others have a copy of themselves.
  const MuonMemory memory = GpuMuonMemory({Stack(64, 128), Plain(5, 5), Stack(100, 70)}, {});
  EXPECT_EQ(memory.UpdateBytes(), 2 * (64 * 128 + 7040));
  const int64_t aligned = 2048 + 2 * (64 * 128 + 2 * 64 * 64);
  const int64_t other = 2048 + 2 * (2 * 100 * 128 + 2 * 70 * 128);
  EXPECT_EQ(memory.product_bytes, aligned + other);
}

TEST(MuonMemoryTest, AGpuMultipliesMatricesInPlaceThatLieThere) {
  const auto product_bytes = [](const MuonExtent& extent) { return GpuMuonMemory({extent}, {}).product_bytes; };
  const auto squares = [](int64_t columns) { return 2048 + 2 * 2 * 8 * 64 + 2 * 8 * columns; };
  // The first of two matrices in rows of 1024 elements has the layout of a copy, the second has not.
  EXPECT_EQ(product_bytes(Row(8, {1000, 24})), squares(1024) + squares(2 * 64));
  // It has, and begins in the middle of what products load at a time.
  EXPECT_EQ(product_bytes(Row(8, {12, 1000, 12})), squares(2 * 64) + squares(2 * 1024) + squares(2 * 64));
}

TEST(MuonMemoryTest, AGpuHasProductsOfSomeMatricesOrTheLargestOne) {
  EXPECT_EQ(GpuMuonMemory({Stack(2048, 2048, 100)}, {}).product_bytes, 224 * kMiB);
  EXPECT_EQ(GpuMuonMemory({Stack(2048, 2048), Stack(8192, 8192)}, {}).product_bytes, 2048 + 3 * 128 * kMiB);
}

// The layers of a model with 1.1 billion parameters.
TEST(MuonMemoryTest, WithBandsAGpuHasTheUpdatesOfTwoLayers) {
  std::vector<MuonExtent> extents = {Plain(32768, 2048)};
  std::vector<MatrixShape> shapes = {{32768, 2048}};
  for (int layer = 0; layer < 16; ++layer) {
    for (const MatrixShape& shape : std::vector<MatrixShape>{{2048, 2048}, {1024, 2048}, {8192, 2048}, {2048, 8192}}) {
      extents.push_back(Stack(shape.rows, shape.cols));
      shapes.push_back(shape);
    }
  }
  const MuonMemory all = GpuMuonMemory(extents, {});
  EXPECT_EQ(all.UpdateBytes(), 2 * 16 * 38 * kMiB);
  const MuonMemory some = GpuMuonMemory(extents, CutIntoBands(shapes, BandRule().BandElements(shapes)));
  EXPECT_LE(some.UpdateBytes(), 2 * 2 * kMostGroupElements);
  EXPECT_EQ(some.product_bytes, 224 * kMiB);
}

// A legal spec: a model that no machine has memory for is refused by its bytes.
TEST(MuonMemoryTest, BytesOfTheLargestModelsDoNotOverflow) {
  const std::vector<MuonExtent> extents(1000, Stack((int64_t{1} << 40) - 1, 1));
  for (const MuonMemory& memory : {HostMuonMemory(extents), GpuMuonMemory(extents, {})}) {
    EXPECT_GT(memory.UpdateBytes(), int64_t{1} << 40);
    EXPECT_GT(memory.product_bytes, int64_t{1} << 40);
  }
}

}  // namespace
}  // namespace paramshard
