// The arithmetic of a shard, on a device of the kind that PARAMSHARD_TEST_DEVICES says.
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/reduce/gradient_sum.h"
#include "server/device/compute_device.h"
#include "tests/support/environment.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Floats = std::vector<float>;

absl::Span<const uint8_t> Bytes(const Floats& values) {
  return absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(values.data()), values.size() * sizeof(float));
}

// Gradients of a few extents, each in memory of its own; state and planes are not touched.
class SumSquaresTest : public ::testing::TestWithParam<GradientType> {
 protected:
  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(const Device id, ParseDevice(absl::StrCat(test::TestDevices(), ":0")));
    absl::StatusOr<std::vector<std::unique_ptr<ComputeDevice>>> devices = OpenDevices({id});
    if (!devices.ok() && id.kind == DeviceKind::kCuda) GTEST_SKIP() << devices.status();
    ASSERT_OK(devices.status());
    device_ = std::move(devices->front());
    for (size_t i = 0; i < kRows.size(); ++i) {
      expected_.push_back(Encode(Values(kRows[i] * kColumns, static_cast<int>(i))));
      ExtentTensors& tensors = tensors_.emplace_back();
      tensors.gradient = {Upload(expected_.back()), GetParam()};
      tensors.rows = kRows[i];
      tensors.columns = kColumns;
    }
    ASSERT_OK_AND_ASSIGN(arithmetic_, device_->MakeArithmetic(tensors_, {}));
  }

  static Floats Values(int64_t count, int seed) {
    Floats values;
    for (int64_t i = 0; i < count; ++i) values.push_back(0.01f * static_cast<float>((i * 37 + seed * 11) % 1009 - 500));
    return values;
  }

  // Encodes values in the type of the accumulators.
  static std::vector<uint8_t> Encode(const Floats& values) {
    std::vector<uint8_t> bytes(values.size() * GradientBytes(GetParam()));
    SumGradients({values.data()}, GradientType::kFP32, static_cast<int64_t>(values.size()), true,
                 {bytes.data(), GetParam()});
    return bytes;
  }

  void* Upload(absl::Span<const uint8_t> bytes) {
    absl::StatusOr<Memory> memory = device_->Allocate("test", static_cast<int64_t>(bytes.size()), Sharing::kPrivate);
    EXPECT_OK(memory.status());
    EXPECT_OK(device_->Write(memory->data(), bytes));
    memories_.push_back(*std::move(memory));
    return memories_.back().data();
  }

  // The sum of `sources` into an extent's gradient, here and in expected_.
  SumTask Sum(size_t extent, const std::vector<Floats>& sources, bool overwrite) {
    SumTask sum;
    sum.count = tensors_[extent].elements();
    sum.overwrite = overwrite;
    sum.accumulator = tensors_[extent].gradient;
    std::vector<const void*> host;
    for (const Floats& source : sources) {
      sum.sources.push_back(Upload(Bytes(source)));
      host.push_back(source.data());
    }
    SumGradients(host, sum.type, sum.count, overwrite, {expected_[extent].data(), GetParam()});
    return sum;
  }

  void ExpectSums(const std::vector<bool>& active, const std::vector<SumTask>& sums) {
    ASSERT_OK_AND_ASSIGN(const std::vector<SquareSum> squares, arithmetic_->SumSquares(active, sums));
    ASSERT_EQ(squares.size(), tensors_.size());
    for (size_t i = 0; i < tensors_.size(); ++i) {
      SCOPED_TRACE(absl::StrCat("extent ", i));
      SquareSum expected;
      if (active[i]) expected = SumOfSquares({expected_[i].data(), GetParam()}, tensors_[i].elements());
      EXPECT_EQ(squares[i].non_finite, expected.non_finite);
      if (expected.non_finite == 0) {
        EXPECT_EQ(squares[i].sum, expected.sum);
      }
      ASSERT_OK_AND_ASSIGN(const HostView got, device_->Read(static_cast<const uint8_t*>(tensors_[i].gradient.data),
                                                             static_cast<int64_t>(expected_[i].size())));
      EXPECT_EQ(got.bytes(), absl::MakeConstSpan(expected_[i]));
    }
  }

  static constexpr int64_t kColumns = 100;
  const std::vector<int64_t> kRows = {3, 1, 82, 500};

  std::unique_ptr<ComputeDevice> device_;
  std::vector<Memory> memories_;
  std::vector<ExtentTensors> tensors_;
  std::vector<std::vector<uint8_t>> expected_;
  std::unique_ptr<ShardArithmetic> arithmetic_;
};

INSTANTIATE_TEST_SUITE_P(Accumulators, SumSquaresTest, ::testing::Values(GradientType::kFP32, GradientType::kBF16),
                         [](const auto& info) { return info.param == GradientType::kFP32 ? "FP32" : "BF16"; });

TEST_P(SumSquaresTest, SumsThatWereLeftAreMadeOnTheWay) {
  const Floats first = Values(82 * kColumns, 5);
  const Floats second = Values(82 * kColumns, 6);
  ExpectSums({true, true, true, true}, {Sum(2, {first, second}, true), Sum(0, {Values(3 * kColumns, 7)}, false)});
  ExpectSums({true, false, false, true}, {Sum(3, {Values(500 * kColumns, 8)}, true)});
  ExpectSums({true, true, true, true}, {});
  ExpectSums({false, false, false, false}, {});
}

TEST_P(SumSquaresTest, WhatIsNotFiniteIsCountedInWhatWasSummed) {
  Floats huge(500 * kColumns, std::numeric_limits<float>::max());
  ExpectSums({true, true, true, true}, {Sum(3, {huge, huge}, true)});
}

TEST_P(SumSquaresTest, SumsOfAnythingButWholeActiveExtentsAreRefused) {
  const SumTask whole = Sum(1, {Values(kColumns, 9)}, true);
  SumTask part = whole;
  part.count -= 1;
  const auto is_refused = StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("sums of whole extents"));
  EXPECT_THAT(arithmetic_->SumSquares({true, false, true, true}, {whole}), is_refused);
  EXPECT_THAT(arithmetic_->SumSquares({true, true, true, true}, {part}), is_refused);
}

}  // namespace
}  // namespace paramshard::server
