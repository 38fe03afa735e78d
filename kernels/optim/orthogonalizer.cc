#include "kernels/optim/orthogonalizer.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/base/simd_clones.h"
#include "kernels/formats/bfloat16.h"
#include "kernels/reduce/gradient_sum.h"

namespace paramshard {
namespace {

// Products of BF16 numbers are exact in float32 (but for those below 2^-126), so that a loop that adds them in a written
// order gives the same bytes with every instruction set. BLAS libraries choose their order by the machine.

// Elements of a product that are kept in registers, and tiles that are kept in the second-level cache.
constexpr int64_t kRegisterRows = 6;
constexpr int64_t kRegisterColumns = 16;
constexpr int64_t kTile = 192;   // a multiple of both
constexpr int64_t kDepth = 256;  // terms of a sum that are packed at a time

using Vector = float __attribute__((vector_size(kRegisterColumns * sizeof(float))));

// A matrix as it is read: element (i, j) is data[i * row_stride + j * column_stride].
struct View {
  const uint16_t* data;
  int64_t row_stride;
  int64_t column_stride;

  PARAMSHARD_ALWAYS_INLINE float At(int64_t row, int64_t column) const {
    return DecodeBFloat16(data[row * row_stride + column * column_stride]);
  }
  View Transposed() const { return {data, column_stride, row_stride}; }
  View From(int64_t row, int64_t column) const {
    return {data + row * row_stride + column * column_stride, row_stride, column_stride};
  }
};

// Operands of a tile, as float32: groups of kRegisterRows rows and of kRegisterColumns columns, term by term.
struct PackedTile {
  float left[kTile * kDepth];
  float right[kTile * kDepth];
  float sums[kTile * kTile];
};

// Packs `count` rows of a view, `depth` columns of each, in groups of `group` rows; zeros fill the last group.
template <int64_t group>
PARAMSHARD_ALWAYS_INLINE void Pack(const View& view, int64_t count, int64_t depth, float* packed) {
  for (int64_t first = 0; first < count; first += group) {
    const int64_t filled = std::min(group, count - first);
    for (int64_t term = 0; term < depth; ++term) {
      for (int64_t i = 0; i < filled; ++i) packed[i] = view.At(first + i, term);
      for (int64_t i = filled; i < group; ++i) packed[i] = 0.0f;
      packed += group;
    }
  }
}

PARAMSHARD_ALWAYS_INLINE void AddTerms(const float* left, const float* right, int64_t depth, float* sums) {
  Vector registers[kRegisterRows];
  for (int64_t i = 0; i < kRegisterRows; ++i) std::memcpy(&registers[i], sums + i * kTile, sizeof(Vector));
  for (int64_t term = 0; term < depth; ++term) {
    Vector factors;
    std::memcpy(&factors, right + term * kRegisterColumns, sizeof(Vector));
    for (int64_t i = 0; i < kRegisterRows; ++i) {
      registers[i] = registers[i] + left[term * kRegisterRows + i] * factors;
    }
  }
  for (int64_t i = 0; i < kRegisterRows; ++i) std::memcpy(sums + i * kTile, &registers[i], sizeof(Vector));
}

// Multiplies `rows` rows of `left` by `columns` rows of `right`, `terms` terms of each: a tile of left right^T.
PARAMSHARD_SIMD_CLONES
void MultiplyTile(const View& left, const View& right, int64_t rows, int64_t columns, int64_t terms, PackedTile& tile) {
  std::fill(std::begin(tile.sums), std::end(tile.sums), 0.0f);
  for (int64_t first = 0; first < terms; first += kDepth) {
    const int64_t depth = std::min(kDepth, terms - first);
    Pack<kRegisterRows>({left.data + first * left.column_stride, left.row_stride, left.column_stride}, rows, depth,
                        tile.left);
    Pack<kRegisterColumns>({right.data + first * right.column_stride, right.row_stride, right.column_stride}, columns,
                           depth, tile.right);
    for (int64_t j = 0; j < columns; j += kRegisterColumns) {
      for (int64_t i = 0; i < rows; i += kRegisterRows) {
        AddTerms(tile.left + i * depth, tile.right + j * depth, depth, tile.sums + i * kTile + j);
      }
    }
  }
}

constexpr int64_t kTileBytes = sizeof(PackedTile);
constexpr int64_t kElementBytes = sizeof(uint16_t);

enum class Symmetry : uint8_t { kNone, kSymmetric };

// Calls `store(i, j, sum)` for each element of the rows x columns product left right^T. Element (i, j) of a symmetric
// product has the terms of (j, i) in the same order, so that one of them is enough.
template <typename Store>
void Multiply(const View& left, const View& right, int64_t rows, int64_t columns, int64_t terms, Symmetry symmetry,
              PackedTile& tile, const Store& store) {
  for (int64_t row = 0; row < rows; row += kTile) {
    for (int64_t column = symmetry == Symmetry::kSymmetric ? row : 0; column < columns; column += kTile) {
      const int64_t tile_rows = std::min(kTile, rows - row);
      const int64_t tile_columns = std::min(kTile, columns - column);
      MultiplyTile(left.From(row, 0), right.From(column, 0), tile_rows, tile_columns, terms, tile);
      for (int64_t i = 0; i < tile_rows; ++i) {
        for (int64_t j = 0; j < tile_columns; ++j) {
          const float sum = tile.sums[i * kTile + j];
          store(row + i, column + j, sum);
          if (symmetry == Symmetry::kSymmetric && column > row) store(column + j, row + i, sum);
        }
      }
    }
  }
}

// Elements of an iteration's products: two Gram matrices, and one of the matrix's size.
int64_t ProductElements(const BFloat16Matrix& matrix) {
  const int64_t small = std::min(matrix.rows, matrix.columns);
  return 2 * small * small + matrix.rows * matrix.columns;
}

class HostOrthogonalizer final : public Orthogonalizer {
 public:
  explicit HostOrthogonalizer(int64_t scratch_bytes)
      : products_(std::max<int64_t>(scratch_bytes - kTileBytes, 0) / kElementBytes) {}

  absl::Status Run(const NewtonSchulz& iteration, absl::Span<const BFloat16Matrix> matrices) override {
    for (const BFloat16Matrix& matrix : matrices) {
      Normalize(matrix, iteration.epsilon);
      for (const NewtonSchulzStep& step : iteration.steps) Iterate(step, matrix);
    }
    return absl::OkStatus();
  }

  int64_t scratch_bytes() const override { return kTileBytes + static_cast<int64_t>(products_.size()) * kElementBytes; }
  std::string description() const override { return "float32 sums in the order of their terms"; }

 private:
  static void Normalize(const BFloat16Matrix& matrix, float epsilon) {
    double squares = 0;
    for (int64_t row = 0; row < matrix.rows; ++row) {
      squares += SumOfSquares({matrix.data + row * matrix.stride, GradientType::kBF16}, matrix.columns).sum;
    }
    const float norm =
        DecodeBFloat16(std::max(EncodeBFloat16(static_cast<float>(std::sqrt(squares))), EncodeBFloat16(epsilon)));
    for (int64_t row = 0; row < matrix.rows; ++row) {
      uint16_t* const elements = matrix.data + row * matrix.stride;
      for (int64_t i = 0; i < matrix.columns; ++i) elements[i] = EncodeBFloat16(DecodeBFloat16(elements[i]) / norm);
    }
  }

  void Iterate(const NewtonSchulzStep& step, const BFloat16Matrix& matrix) {
    const bool is_wide = matrix.rows <= matrix.columns;
    const View x = is_wide ? View{matrix.data, matrix.stride, 1} : View{matrix.data, 1, matrix.stride};
    const int64_t small = std::min(matrix.rows, matrix.columns);
    const int64_t large = std::max(matrix.rows, matrix.columns);
    if (static_cast<int64_t>(products_.size()) < ProductElements(matrix)) products_.resize(ProductElements(matrix));
    uint16_t* const gram = products_.data();
    uint16_t* const polynomial = gram + small * small;
    uint16_t* const next = polynomial + small * small;

    Multiply(x, x, small, small, large, Symmetry::kSymmetric, *tile_,
             [&](int64_t i, int64_t j, float sum) { gram[i * small + j] = EncodeBFloat16(sum); });
    const View g = {gram, small, 1};
    Multiply(g, g, small, small, small, Symmetry::kSymmetric, *tile_, [&](int64_t i, int64_t j, float sum) {
      polynomial[i * small + j] = EncodeBFloat16(step.c * sum + step.b * g.At(i, j));
    });
    Multiply({polynomial, small, 1}, x.Transposed(), small, large, small, Symmetry::kNone, *tile_,
             [&](int64_t i, int64_t j, float sum) { next[i * large + j] = EncodeBFloat16(sum + step.a * x.At(i, j)); });
    for (int64_t i = 0; i < small; ++i) {
      for (int64_t j = 0; j < large; ++j) matrix.data[i * x.row_stride + j * x.column_stride] = next[i * large + j];
    }
  }

  const std::unique_ptr<PackedTile> tile_ = std::make_unique<PackedTile>();
  std::vector<uint16_t> products_;  // of an iteration, rows of BF16
};

}  // namespace

std::unique_ptr<Orthogonalizer> MakeHostOrthogonalizer(int64_t scratch_bytes) {
  return std::make_unique<HostOrthogonalizer>(scratch_bytes);
}

int64_t HostOrthogonalizerBytes(absl::Span<const BFloat16Matrix> matrices) {
  int64_t elements = 0;
  for (const BFloat16Matrix& matrix : matrices) elements = std::max(elements, ProductElements(matrix));
  return kTileBytes + elements * kElementBytes;
}

}  // namespace paramshard
