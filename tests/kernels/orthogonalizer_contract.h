// Contract of every Orthogonalizer (kernels/optim/orthogonalizer.h), as a typed test suite.
//
// `Subject` has `absl::Status Run(const NewtonSchulz&, BFloat16Rows&)`, which replaces the matrix by the result of
// Orthogonalizer::Run, and a static `std::optional<std::string> WhyNot()`: the reason for which it cannot run here.

#ifndef PARAMSHARD_TESTS_KERNELS_ORTHOGONALIZER_CONTRACT_H_
#define PARAMSHARD_TESTS_KERNELS_ORTHOGONALIZER_CONTRACT_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/formats/bfloat16.h"
#include "kernels/optim/orthogonalizer.h"
#include "tests/kernels/random_floats.h"
#include "tests/support/random_seed.h"

namespace paramshard {

// Rows of BF16 elements; elements between rows are kPadding.
struct BFloat16Rows {
  static constexpr uint16_t kPadding = 0x4242;

  BFloat16Rows(int64_t rows, int64_t columns, int64_t stride, const std::vector<float>& values)
      : rows(rows), columns(columns), stride(stride), elements(rows * stride, kPadding) {
    for (int64_t i = 0; i < rows * columns; ++i) {
      elements[i / columns * stride + i % columns] = EncodeBFloat16(values[i]);
    }
  }

  double At(int64_t row, int64_t column) const { return DecodeBFloat16(elements[row * stride + column]); }
  BFloat16Matrix View() { return {elements.data(), rows, columns, stride}; }

  int64_t rows, columns, stride;
  std::vector<uint16_t> elements;
};

// The iteration in float64, a second time: rows of the smaller side. With `rounds` it rounds to BF16 where the formula
// does.
class SlowOrthogonalization {
 public:
  SlowOrthogonalization(const BFloat16Rows& matrix, bool rounds)
      : rounds_(rounds),
        is_wide_(matrix.rows <= matrix.columns),
        small_(std::min(matrix.rows, matrix.columns)),
        large_(std::max(matrix.rows, matrix.columns)),
        x_(small_ * large_) {
    for (int64_t i = 0; i < small_; ++i) {
      for (int64_t j = 0; j < large_; ++j) X(i, j) = is_wide_ ? matrix.At(i, j) : matrix.At(j, i);
    }
  }

  void Run(const NewtonSchulz& iteration) {
    double squares = 0;
    for (double x : x_) squares += x * x;
    const double norm = std::max(Round(std::sqrt(squares)), Round(iteration.epsilon));
    for (double& x : x_) x = Round(x / norm);
    for (const NewtonSchulzStep& step : iteration.steps) Iterate(step);
  }

  void Iterate(const NewtonSchulzStep& step) {
    std::vector<double> gram(small_ * small_), polynomial(small_ * small_), next(x_.size());
    for (int64_t i = 0; i < small_; ++i) {
      for (int64_t j = 0; j < small_; ++j) {
        double sum = 0;
        for (int64_t k = 0; k < large_; ++k) sum += X(i, k) * X(j, k);
        gram[i * small_ + j] = Round(sum);
      }
    }
    for (int64_t i = 0; i < small_; ++i) {
      for (int64_t j = 0; j < small_; ++j) {
        double sum = 0;
        for (int64_t k = 0; k < small_; ++k) sum += gram[i * small_ + k] * gram[k * small_ + j];
        polynomial[i * small_ + j] = Round(step.c * sum + step.b * gram[i * small_ + j]);
      }
    }
    for (int64_t i = 0; i < small_; ++i) {
      for (int64_t k = 0; k < small_; ++k) {
        const double factor = polynomial[i * small_ + k];
        for (int64_t j = 0; j < large_; ++j) next[i * large_ + j] += factor * X(k, j);
      }
    }
    for (size_t i = 0; i < x_.size(); ++i) x_[i] = Round(next[i] + step.a * x_[i]);
  }

  // Element of the result in the place of the matrix's.
  double At(int64_t row, int64_t column) { return is_wide_ ? X(row, column) : X(column, row); }

 private:
  double& X(int64_t i, int64_t j) { return x_[i * large_ + j]; }
  double Round(double value) const {
    return rounds_ ? DecodeBFloat16(EncodeBFloat16(static_cast<float>(value))) : value;
  }

  const bool rounds_;
  const bool is_wide_;
  const int64_t small_, large_;
  std::vector<double> x_;
};

// Distance of a result from the reference, relative to the reference, in the Frobenius norm.
inline double RelativeError(const BFloat16Rows& result, SlowOrthogonalization& reference) {
  double difference = 0;
  double size = 0;
  for (int64_t i = 0; i < result.rows; ++i) {
    for (int64_t j = 0; j < result.columns; ++j) {
      const double expected = reference.At(i, j);
      difference += (result.At(i, j) - expected) * (result.At(i, j) - expected);
      size += expected * expected;
    }
  }
  return std::sqrt(difference / size);
}

// Sums in another order round another way to BF16 now and then: usually 1e-4 in all, more where it is an element on the
// diagonal of the Gram matrix of a few rows.
inline constexpr double kStepTolerance = 2e-3;
// Steps magnify what is rounded away.
inline constexpr double kTolerance = 3e-2;

template <typename Subject>
class OrthogonalizerContract : public testing::Test {
 protected:
  void SetUp() override {
    if (const auto reason = Subject::WhyNot()) GTEST_SKIP() << *reason;
  }

  BFloat16Rows Run(const NewtonSchulz& iteration, BFloat16Rows matrix) {
    const absl::Status status = subject_.Run(iteration, matrix);
    EXPECT_TRUE(status.ok()) << status;
    return matrix;
  }

  static BFloat16Rows RandomMatrix(int64_t rows, int64_t columns, int64_t stride, uint64_t seed, float size = 1e-3f) {
    return {rows, columns, stride, RandomFloats(seed).Normal(rows * columns, size)};
  }

  static constexpr uint64_t kSeed = 7;
  Subject subject_;
};

TYPED_TEST_SUITE_P(OrthogonalizerContract);

TYPED_TEST_P(OrthogonalizerContract, EachStepIsNearFloat64InAnyShape) {
  const uint64_t seed = FirstSeed(this->kSeed);
  struct Shape {
    int64_t rows, columns, stride;
  };
  const Shape shapes[] = {{1, 1, 1},       {1, 40, 40},     {40, 1, 3},     {7, 13, 16},
                          {64, 64, 64},    {96, 33, 40},    {33, 96, 96},   {192, 192, 192},
                          {200, 389, 400}, {389, 200, 200}, {65, 600, 601}, {600, 65, 77}};
  for (const Shape& shape : shapes) {
    SCOPED_TRACE(absl::StrCat("seed ", seed, " ", shape.rows, " x ", shape.columns, " stride ", shape.stride));
    const BFloat16Rows matrix = this->RandomMatrix(shape.rows, shape.columns, shape.stride, seed);
    NewtonSchulz iteration = {.steps = {}};
    BFloat16Rows result = this->Run(iteration, matrix);
    SlowOrthogonalization normalized(matrix, /*rounds=*/true);
    normalized.Run(iteration);
    EXPECT_LE(RelativeError(result, normalized), kStepTolerance);
    for (const NewtonSchulzStep& step : NewtonSchulz().steps) {
      SlowOrthogonalization reference(result, /*rounds=*/true);
      reference.Iterate(step);
      iteration.steps.push_back(step);
      result = this->Run(iteration, matrix);
      EXPECT_LE(RelativeError(result, reference), kStepTolerance) << iteration.steps.size();
    }
    SlowOrthogonalization exact(matrix, /*rounds=*/false);
    exact.Run(NewtonSchulz());
    EXPECT_LE(RelativeError(result, exact), kTolerance);
  }
}

TYPED_TEST_P(OrthogonalizerContract, EverySetOfCoefficientsIsUsedInOrder) {
  const BFloat16Rows matrix = this->RandomMatrix(48, 80, 80, this->kSeed);
  const NewtonSchulz iteration = {
      .steps = {{4.0848f, -6.8946f, 2.9270f}, {3.9505f, -6.3029f, 2.6377f}, {2, -1.5f, 0.5f}}, .epsilon = 1e-7f};
  SlowOrthogonalization reference(matrix, /*rounds=*/true);
  reference.Run(iteration);
  EXPECT_LE(RelativeError(this->Run(iteration, matrix), reference), kTolerance);
}

TYPED_TEST_P(OrthogonalizerContract, EpsilonIsTheLeastNorm) {
  // The norm of these is about 6e-9.
  const BFloat16Rows matrix = this->RandomMatrix(6, 6, 6, this->kSeed, /*size=*/1e-9f);
  const NewtonSchulz iteration;
  SlowOrthogonalization reference(matrix, /*rounds=*/true);
  reference.Run(iteration);
  EXPECT_LE(RelativeError(this->Run(iteration, matrix), reference), kTolerance);
}

TYPED_TEST_P(OrthogonalizerContract, ZerosStay) {
  const BFloat16Rows zeros(5, 9, 12, std::vector<float>(45));
  EXPECT_EQ(this->Run(NewtonSchulz(), zeros).elements, zeros.elements);
}

TYPED_TEST_P(OrthogonalizerContract, ElementsBetweenRowsStay) {
  const BFloat16Rows result = this->Run(NewtonSchulz(), this->RandomMatrix(30, 20, 32, this->kSeed));
  for (int64_t row = 0; row < result.rows; ++row) {
    for (int64_t i = result.columns; i < result.stride; ++i) {
      ASSERT_EQ(result.elements[row * result.stride + i], BFloat16Rows::kPadding);
    }
  }
}

TYPED_TEST_P(OrthogonalizerContract, TheSameMatrixGivesTheSameBytesAtEachTimeAndStride) {
  const std::vector<float> values = RandomFloats(this->kSeed).Normal(130 * 70, 1.0f);
  const BFloat16Rows first = this->Run(NewtonSchulz(), {130, 70, 72, values});
  this->Run(NewtonSchulz(), this->RandomMatrix(300, 200, 200, this->kSeed));
  EXPECT_EQ(this->Run(NewtonSchulz(), {130, 70, 72, values}).elements, first.elements);
  const BFloat16Rows other = this->Run(NewtonSchulz(), {130, 70, 96, values});
  for (int64_t row = 0; row < 130; ++row) {
    for (int64_t i = 0; i < 70; ++i) ASSERT_EQ(other.At(row, i), first.At(row, i)) << row << ", " << i;
  }
}

REGISTER_TYPED_TEST_SUITE_P(OrthogonalizerContract, EachStepIsNearFloat64InAnyShape,
                            EverySetOfCoefficientsIsUsedInOrder, EpsilonIsTheLeastNorm, ZerosStay,
                            ElementsBetweenRowsStay, TheSameMatrixGivesTheSameBytesAtEachTimeAndStride);

}  // namespace paramshard

#endif  // PARAMSHARD_TESTS_KERNELS_ORTHOGONALIZER_CONTRACT_H_
