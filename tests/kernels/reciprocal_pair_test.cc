#include "kernels/optim/reciprocal_pair.h"

#include <cmath>
#include <cstdint>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/base/float_bits.h"
#include "kernels/formats/float16.h"
#include "kernels/formats/float8.h"
#include "kernels/optim/fused_step.h"

namespace paramshard {
namespace {

// Quotients that a pair gives wrongly, of all significands.
int64_t WrongQuotients(const ReciprocalPair& pair, float divisor) {
  int64_t wrong = 0;
  for (uint32_t mantissa = 0; mantissa < 1u << 23; ++mantissa) {
    const float dividend = FloatFromBits(0x3f800000u | mantissa);
    wrong += std::fma(dividend, pair.high, dividend * pair.low) != dividend / divisor;
  }
  return wrong;
}

// Bias corrections, ends of the range, and numbers with few odd bits.
std::vector<float> Divisors() {
  std::vector<float> divisors = {1.0f,           0.5f,     0.75f,     0x1.fffffep-1f,
                                 0x1.000002p-1f, 0x1p-24f, 0x1.8p-7f, 0x1.a5a5a4p-1f};
  for (int64_t step : {1, 2, 7, 1000, 12345}) {
    for (float beta : {0.9f, 0.95f, 0.999f}) divisors.push_back(BiasCorrection(beta, step));
  }
  return divisors;
}

TEST(ReciprocalPairTest, WhatIsFoundDividesEveryFloatExactly) {
  for (float divisor : Divisors()) {
    ReciprocalPair pair;
    ASSERT_TRUE(FindReciprocalPair(divisor, pair)) << divisor;
    EXPECT_EQ(WrongQuotients(pair, divisor), 0) << divisor;
  }
}

// Some pairs next to the nearest pair divide exactly, some do not; DividesExactly() agrees with a check of every float.
TEST(ReciprocalPairTest, DividesExactlyAgreesWithEveryFloat) {
  int exact = 0;
  int inexact = 0;
  for (float divisor : {1.0f - 0.9f, 0x1.e4a4dep-1f, 0x1.feb486p-1f, 0x1.246812p-3f}) {
    ReciprocalPair pair = NearestReciprocalPair(divisor);
    for (int places = 0; places <= 3; ++places) {
      const bool divides = DividesExactly(pair, divisor);
      EXPECT_EQ(divides, WrongQuotients(pair, divisor) == 0) << divisor << " and " << places << " places";
      ++(divides ? exact : inexact);
      pair.low = std::nextafter(pair.low, INFINITY);
    }
  }
  EXPECT_GT(exact, 0);
  EXPECT_GT(inexact, 0);
}

// Steps without one take a slower way to the same bytes.
TEST(ReciprocalPairTest, NearlyEveryStepOfATrainingHasOne) {
  constexpr int64_t kSteps = 20000;
  for (float beta : {0.9f, 0.95f, 0.98f, 0.99f, 0.999f, 0.9999f}) {
    int64_t missing = 0;
    for (int64_t step = 1; step <= kSteps; ++step) {
      ReciprocalPair pair;
      missing += FindReciprocalPair(BiasCorrection(beta, step), pair) ? 0 : 1;
    }
    EXPECT_LE(missing, kSteps / 500) << beta;
  }
}

// Scales of blocks of moments.
TEST(ReciprocalPairTest, LargestCodesDivideByTheNearestPair) {
  for (float divisor : {E4M3::kMax, kFloat16Max}) EXPECT_TRUE(DividesExactly(NearestReciprocalPair(divisor), divisor));
}

// 1 - 0.999^286: the quotients of two dividends want different pairs.
TEST(ReciprocalPairTest, ADivisorWithoutAPairIsRefused) {
  ReciprocalPair pair;
  EXPECT_FALSE(FindReciprocalPair(0x1.fda0eep-3f, pair));
  EXPECT_GT(WrongQuotients(pair, 0x1.fda0eep-3f), 0);
}

}  // namespace
}  // namespace paramshard
