#include "kernels/products/matrix_products.h"

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/base/status_macros.h"
#include "kernels/formats/bfloat16.h"
#include "kernels/gpu/cublas_lt.h"
#include "kernels/products/cublas_lt_products.h"
#include "kernels/products/hopper_products.h"
#include "tests/kernels/gpu_test.h"
#include "tests/kernels/random_floats.h"
#include "tests/support/status_matchers.h"

namespace paramshard::gpu {
namespace {

// A matrix on the host and on the GPU; elements between rows are kPadding.
class StoredMatrix {
 public:
  static constexpr uint16_t kPadding = 0x4242;

  StoredMatrix(int64_t rows, int64_t columns, RandomFloats& random)
      : rows_(rows), columns_(columns), stride_((columns + 15) / 8 * 8), elements_(rows * stride_, kPadding) {
    const std::vector<float> values = random.Normal(rows * columns, 1.0f);
    for (int64_t i = 0; i < rows * columns; ++i) {
      elements_[i / columns * stride_ + i % columns] = EncodeBFloat16(values[i]);
    }
    on_gpu_ = DeviceArray<uint16_t>(elements_);
  }

  double At(int64_t row, int64_t column) const { return DecodeBFloat16(elements_[row * stride_ + column]); }
  Operand View(bool is_transposed = false) const { return {on_gpu_.data(), stride_, is_transposed}; }
  void Download() { elements_ = on_gpu_.Download(); }
  const std::vector<uint16_t>& elements() const { return elements_; }

  // Elements behind a row that no product may write.
  void ExpectPadding() const {
    for (int64_t row = 0; row < rows_; ++row) {
      for (int64_t i = (columns_ + 7) / 8 * 8; i < stride_; ++i)
        ASSERT_EQ(elements_[row * stride_ + i], kPadding) << row;
    }
  }

 private:
  int64_t rows_, columns_, stride_;
  std::vector<uint16_t> elements_;
  DeviceArray<uint16_t> on_gpu_;
};

// Operands and result of a product, and the result in float64.
struct Case {
  Case(int64_t rows, int64_t columns, int64_t terms, bool left_is_transposed, bool right_is_transposed,
       float addend_factor, uint64_t seed)
      : random(seed),
        left(left_is_transposed ? terms : rows, left_is_transposed ? rows : terms, random),
        right(right_is_transposed ? columns : terms, right_is_transposed ? terms : columns, random),
        addend(rows, columns, random),
        result(rows, columns, random),
        product({.left = left.View(left_is_transposed),
                 .right = right.View(right_is_transposed),
                 .addend = addend.View(),
                 .result = result.View(),
                 .rows = rows,
                 .columns = columns,
                 .terms = terms,
                 .factor = 0.75f,
                 .addend_factor = addend_factor}) {}

  double Expected(int64_t row, int64_t column) const {
    double sum = 0;
    for (int64_t k = 0; k < product.terms; ++k) {
      sum += (product.left.is_transposed ? left.At(k, row) : left.At(row, k)) *
             (product.right.is_transposed ? right.At(column, k) : right.At(k, column));
    }
    const double added = product.addend_factor == 0 ? 0 : product.addend_factor * addend.At(row, column);
    return product.factor * sum + added;
  }

  void ExpectResult() {
    result.Download();
    result.ExpectPadding();
    for (int64_t i = 0; i < product.rows; ++i) {
      for (int64_t j = 0; j < product.columns; ++j) {
        const double expected = Expected(i, j);
        ASSERT_NEAR(result.At(i, j), expected, std::fabs(expected) * 0x1p-8 + 1e-3) << i << ", " << j;
      }
    }
  }

  RandomFloats random;
  StoredMatrix left, right, addend, result;
  MatrixProduct product;
};

struct Library {
  static absl::StatusOr<std::unique_ptr<MatrixProducts>> Make() {
    const char* const path = std::getenv("PARAMSHARD_CUBLASLT_LIBRARY");
    ASSIGN_OR_RETURN(const CublasLt* const library, CublasLt::Load(path == nullptr ? "" : path));
    return MakeCublasLtProducts(*library, 0);
  }
};
struct Own {
  static absl::StatusOr<std::unique_ptr<MatrixProducts>> Make() { return MakeHopperProducts(0); }
};

template <typename Engine>
class MatrixProductsTest : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    auto products = Engine::Make();
    if (!products.ok()) GTEST_SKIP() << products.status();
    products_ = *std::move(products);
  }

  void Run(const std::vector<MatrixProduct>& products) {
    ASSERT_OK(products_->Enqueue(products, stream()));
    Synchronize();
  }

  std::unique_ptr<MatrixProducts> products_;
};
using Engines = testing::Types<Library, Own>;
TYPED_TEST_SUITE(MatrixProductsTest, Engines);

TYPED_TEST(MatrixProductsTest, ProductsAreNearFloat64) {
  uint64_t seed = 100;
  struct Shape {
    int64_t rows, columns, terms;
  };
  for (const Shape& shape : {Shape{1, 1, 1}, Shape{64, 256, 64}, Shape{128, 256, 16}, Shape{300, 520, 200},
                             Shape{257, 65, 449}, Shape{8, 1000, 72}, Shape{320, 512, 264}}) {
    for (const auto& [left_is_transposed, right_is_transposed] :
         {std::pair(false, true), {true, false}, {false, false}}) {
      for (const float addend_factor : {0.0f, -1.5f}) {
        SCOPED_TRACE(absl::StrCat(shape.rows, " x ", shape.columns, " x ", shape.terms,
                                  left_is_transposed ? " T" : " N", right_is_transposed ? "T" : "N", " addend factor ",
                                  addend_factor));
        Case one(shape.rows, shape.columns, shape.terms, left_is_transposed, right_is_transposed, addend_factor,
                 ++seed);
        this->Run({one.product});
        one.ExpectResult();
        if (this->HasFailure()) return;
      }
    }
  }
}

TYPED_TEST(MatrixProductsTest, SymmetricProductsAreWhole) {
  for (const int64_t size : {40, 256, 300, 777}) {
    for (const bool is_transposed : {false, true}) {
      SCOPED_TRACE(absl::StrCat(size, is_transposed ? " transposed" : ""));
      Case one(size, size, 200, is_transposed, !is_transposed, -0.5f, 7);
      one.product.right = one.left.View(!is_transposed);
      // A symmetric addend: a Gram matrix of its own.
      Case addend(size, size, 64, false, true, 0, 8);
      addend.product.right = addend.left.View(true);
      addend.product.is_symmetric = true;
      one.product.addend = addend.result.View();
      one.product.is_symmetric = true;
      this->Run({addend.product});
      this->Run({one.product});
      one.result.Download();
      one.result.ExpectPadding();
      addend.result.Download();
      for (int64_t i = 0; i < size; ++i) {
        for (int64_t j = 0; j < size; ++j) {
          double expected = 0;
          for (int64_t k = 0; k < 200; ++k) {
            expected += is_transposed ? one.left.At(k, i) * one.left.At(k, j) : one.left.At(i, k) * one.left.At(j, k);
          }
          expected = 0.75 * expected - 0.5 * addend.result.At(i, j);
          ASSERT_NEAR(one.result.At(i, j), expected, std::fabs(expected) * 0x1p-8 + 1e-3) << i << ", " << j;
        }
      }
    }
  }
}

// More products than one launch has, and a product with more tiles.
TYPED_TEST(MatrixProductsTest, BytesDoNotDependOnProductsBeside) {
  std::vector<std::unique_ptr<Case>> cases;
  std::vector<MatrixProduct> products;
  for (int i = 0; i < 30; ++i) {
    cases.push_back(std::make_unique<Case>(64 + 37 * i, 900 - 29 * i, 16 + 24 * i, i % 3 == 1, i % 3 == 0,
                                           i % 2 == 0 ? 0.0f : 1.25f, 200 + i));
    products.push_back(cases.back()->product);
  }
  cases.push_back(std::make_unique<Case>(2051 * 256, 8, 8, false, true, 0.0f, 300));
  products.push_back(cases.back()->product);
  this->Run(products);
  for (const auto& one : cases) {
    one->result.Download();
    const std::vector<uint16_t> together = one->result.elements();
    EXPECT_EQ(cudaMemset(one->product.result.data, 0x42, together.size() * sizeof(uint16_t)), cudaSuccess);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    this->Run({one->product});
    one->result.Download();
    EXPECT_EQ(one->result.elements(), together);
  }
  cases.back()->ExpectResult();
}

}  // namespace
}  // namespace paramshard::gpu
