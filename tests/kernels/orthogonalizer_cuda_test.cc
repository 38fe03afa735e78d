#include "kernels/optim/orthogonalizer_cuda.h"

#include <cuda_runtime.h>

#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/base/status_macros.h"
#include "kernels/gpu/cublas_lt.h"
#include "kernels/gpu/status.h"
#include "kernels/gpu/stream.h"
#include "kernels/products/cublas_lt_products.h"
#include "kernels/products/hopper_products.h"
#include "tests/kernels/golden_step.h"
#include "tests/kernels/gpu_test.h"
#include "tests/kernels/orthogonalizer_contract.h"
#include "tests/support/status_matchers.h"

namespace paramshard::gpu {
namespace {

constexpr int kDevice = 0;

using ProductsOr = absl::StatusOr<std::unique_ptr<MatrixProducts>>;

// PARAMSHARD_CUBLASLT_LIBRARY, or the one that the dynamic linker finds.
ProductsOr MakeLibraryProducts() {
  const char* const path = std::getenv("PARAMSHARD_CUBLASLT_LIBRARY");
  ASSIGN_OR_RETURN(const CublasLt* const library, CublasLt::Load(path == nullptr ? "" : path));
  return MakeCublasLtProducts(*library, kDevice);
}

ProductsOr MakeOwnProducts() { return MakeHopperProducts(kDevice); }

template <ProductsOr (*kMakeProducts)()>
class CudaSubject {
 public:
  static std::optional<std::string> WhyNot() {
    int count = 0;
    if (const absl::Status status = ToStatus(cudaGetDeviceCount(&count), "count GPUs"); !status.ok() || count == 0) {
      return absl::StrCat("no GPU: ", status.ToString());
    }
    const ProductsOr products = kMakeProducts();
    return products.ok() ? std::nullopt : std::optional<std::string>(products.status().ToString());
  }

  absl::Status Run(const NewtonSchulz& iteration, BFloat16Rows& matrix) { return RunAll(iteration, {&matrix}); }

  absl::Status RunAll(const NewtonSchulz& iteration, const std::vector<BFloat16Rows*>& matrices) {
    if (orthogonalizer_ == nullptr) {
      ASSIGN_OR_RETURN(std::unique_ptr<MatrixProducts> products, kMakeProducts());
      ASSIGN_OR_RETURN(stream_, Stream::Create(kDevice));
      ASSIGN_OR_RETURN(orthogonalizer_, MakeCudaOrthogonalizer(std::move(products), kDevice, stream_.get()));
    }
    std::vector<DeviceArray<uint16_t>> elements;
    std::vector<BFloat16Matrix> on_gpu;
    for (const BFloat16Rows* const matrix : matrices) {
      elements.emplace_back(matrix->elements);
      on_gpu.push_back({elements.back().data(), matrix->rows, matrix->columns, matrix->stride});
    }
    RETURN_IF_ERROR(orthogonalizer_->Run(iteration, on_gpu));
    RETURN_IF_ERROR(stream_.Synchronize());
    for (size_t i = 0; i < matrices.size(); ++i) matrices[i]->elements = elements[i].Download();
    return absl::OkStatus();
  }

  std::string description() const { return orthogonalizer_->description(); }

 private:
  Stream stream_;
  std::unique_ptr<Orthogonalizer> orthogonalizer_;
};

using LibrarySubject = CudaSubject<MakeLibraryProducts>;
using OwnSubject = CudaSubject<MakeOwnProducts>;
using Subjects = testing::Types<LibrarySubject, OwnSubject>;

}  // namespace
}  // namespace paramshard::gpu

namespace paramshard {

INSTANTIATE_TYPED_TEST_SUITE_P(Cuda, OrthogonalizerContract, gpu::Subjects);

}  // namespace paramshard

namespace paramshard::gpu {
namespace {

TEST(CublasLtTest, AMissingLibraryIsNamed) {
  EXPECT_THAT(CublasLt::Load("/nowhere/libcublasLt.so").status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, testing::HasSubstr("/nowhere/libcublasLt.so")));
}

TEST(CublasLtTest, AnotherLibraryIsNamed) {
  EXPECT_THAT(CublasLt::Load("libm.so.6").status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, testing::HasSubstr("libm.so.6 has no function")));
}

TEST(CublasLtTest, TheDescriptionNamesVersionAndAlgorithms) {
  if (const auto reason = LibrarySubject::WhyNot()) GTEST_SKIP() << *reason;
  LibrarySubject subject;
  BFloat16Rows matrix(1024, 4096, 4096, RandomFloats(3).Normal(int64_t{1024} * 4096, 1.0f));
  ASSERT_OK(subject.Run(NewtonSchulz(), matrix));
  EXPECT_THAT(subject.description(),
              testing::AllOf(testing::StartsWith("cuBLASLt 13."), testing::HasSubstr("algorithm")));
}

template <typename Subject>
class CudaOrthogonalizerTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const auto reason = Subject::WhyNot()) GTEST_SKIP() << *reason;
  }
};
TYPED_TEST_SUITE(CudaOrthogonalizerTest, Subjects);

TYPED_TEST(CudaOrthogonalizerTest, EveryObjectGivesTheSameBytes) {
  const BFloat16Rows matrix(1024, 4096, 4096, RandomFloats(3).Normal(int64_t{1024} * 4096, 1.0f));
  BFloat16Rows first = matrix;
  BFloat16Rows second = matrix;
  ASSERT_OK(TypeParam().Run(NewtonSchulz(), first));
  ASSERT_OK(TypeParam().Run(NewtonSchulz(), second));
  EXPECT_EQ(first.elements, second.elements);
}

// More matrices than one launch or the memory for products has.
TYPED_TEST(CudaOrthogonalizerTest, MatricesAtOnceHaveTheBytesOfEachAlone) {
  struct Shape {
    int64_t rows, columns, stride;
  };
  const Shape shapes[] = {{512, 1024, 1024},  {1024, 512, 512}, {65, 600, 601},     {600, 65, 77},   {1, 40, 40},
                          {2048, 4096, 4096}, {300, 300, 304},  {4096, 2048, 2048}, {257, 513, 520}, {256, 256, 256},
                          {2048, 2048, 2048}, {13, 7, 8},       {2048, 6144, 6144}, {40, 1, 3},      {768, 2048, 2048}};
  for (const size_t steps : {5u, 2u}) {
    NewtonSchulz iteration;
    iteration.steps.resize(steps);
    std::vector<BFloat16Rows> together;
    uint64_t seed = 50;
    for (const Shape& shape : shapes) {
      together.emplace_back(shape.rows, shape.columns, shape.stride,
                            RandomFloats(++seed).Normal(shape.rows * shape.columns, 1.0f));
    }
    std::vector<BFloat16Rows> alone = together;
    TypeParam subject;
    std::vector<BFloat16Rows*> all;
    for (BFloat16Rows& matrix : together) all.push_back(&matrix);
    ASSERT_OK(subject.RunAll(iteration, all));
    for (size_t i = 0; i < alone.size(); ++i) {
      ASSERT_OK(subject.Run(iteration, alone[i]));
      EXPECT_EQ(together[i].elements, alone[i].elements) << i;
    }
  }
}

TYPED_TEST(CudaOrthogonalizerTest, GoldenUpdatesAreNear) {
  for (const GoldenCase& golden : GoldenCases("muon_step")) {
    SCOPED_TRACE(golden.name());
    const int64_t rows = golden.rows();
    const int64_t cols = golden.cols();
    const std::vector<uint16_t> directions = golden.Values<uint16_t>("expected_direction");
    const std::vector<uint16_t> updates = golden.Values<uint16_t>("expected_update");
    for (size_t first = 0; first < directions.size(); first += rows * cols) {
      BFloat16Rows update(rows, cols, cols, std::vector<float>(rows * cols));
      std::copy_n(directions.begin() + first, rows * cols, update.elements.begin());
      ASSERT_OK(TypeParam().Run(IterationOf(golden), update));
      double difference = 0;
      double size = 0;
      for (int64_t i = 0; i < rows * cols; ++i) {
        const double expected = DecodeBFloat16(updates[first + i]);
        difference += std::pow(DecodeBFloat16(update.elements[i]) - expected, 2);
        size += expected * expected;
      }
      EXPECT_LE(std::sqrt(difference / size), kTolerance);
    }
  }
}

}  // namespace
}  // namespace paramshard::gpu
