#include "kernels/optim/orthogonalizer_cuda.h"

#include <cuda_runtime.h>

#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/base/status_macros.h"
#include "kernels/gpu/status.h"
#include "tests/kernels/gpu_test.h"
#include "tests/kernels/orthogonalizer_contract.h"
#include "tests/support/status_matchers.h"

namespace paramshard::gpu {
namespace {

// PARAMSHARD_CUBLASLT_LIBRARY, or the one that the dynamic linker finds.
absl::StatusOr<const CublasLt*> LoadedLibrary() {
  const char* const path = std::getenv("PARAMSHARD_CUBLASLT_LIBRARY");
  return CublasLt::Load(path == nullptr ? "" : path);
}

class CudaSubject {
 public:
  static std::optional<std::string> WhyNot() {
    int count = 0;
    if (const absl::Status status = ToStatus(cudaGetDeviceCount(&count), "count GPUs"); !status.ok() || count == 0) {
      return absl::StrCat("no GPU: ", status.ToString());
    }
    const auto library = LoadedLibrary();
    return library.ok() ? std::nullopt : std::optional<std::string>(library.status().ToString());
  }

  absl::Status Run(const NewtonSchulz& iteration, BFloat16Rows& matrix) {
    if (orthogonalizer_ == nullptr) {
      ASSIGN_OR_RETURN(const CublasLt* const library, LoadedLibrary());
      ASSIGN_OR_RETURN(stream_, Stream::Create(kDevice));
      ASSIGN_OR_RETURN(orthogonalizer_, MakeCudaOrthogonalizer(*library, kDevice, stream_.get()));
    }
    DeviceArray<uint16_t> elements(matrix.elements);
    RETURN_IF_ERROR(orthogonalizer_->Run(iteration, {{elements.data(), matrix.rows, matrix.columns, matrix.stride}}));
    RETURN_IF_ERROR(stream_.Synchronize());
    matrix.elements = elements.Download();
    return absl::OkStatus();
  }

  std::string description() const { return orthogonalizer_->description(); }

 private:
  static constexpr int kDevice = 0;

  Stream stream_;
  std::unique_ptr<Orthogonalizer> orthogonalizer_;
};

}  // namespace
}  // namespace paramshard::gpu

namespace paramshard {

INSTANTIATE_TYPED_TEST_SUITE_P(Cuda, OrthogonalizerContract, gpu::CudaSubject);

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

TEST(CudaOrthogonalizerTest, EveryProcessAndObjectGivesTheSameBytesAndNamesItsAlgorithms) {
  if (const auto reason = CudaSubject::WhyNot()) GTEST_SKIP() << *reason;
  const BFloat16Rows matrix(1024, 4096, 4096, RandomFloats(3).Normal(int64_t{1024} * 4096, 1.0f));
  BFloat16Rows first = matrix;
  BFloat16Rows second = matrix;
  CudaSubject one;
  CudaSubject other;
  ASSERT_TRUE(one.Run(NewtonSchulz(), first).ok());
  ASSERT_TRUE(other.Run(NewtonSchulz(), second).ok());
  EXPECT_EQ(first.elements, second.elements);
  EXPECT_THAT(one.description(), testing::AllOf(testing::StartsWith("cuBLASLt 13."), testing::HasSubstr("algorithm")));
  RecordProperty("algorithms", one.description());
}

}  // namespace
}  // namespace paramshard::gpu
