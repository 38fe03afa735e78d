// Casts against slow references that search the table of values.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/formats/bfloat16.h"
#include "kernels/formats/float16.h"
#include "kernels/formats/float4.h"
#include "kernels/formats/float8.h"
#include "kernels/formats/scale_math.h"

namespace paramshard {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// The magnitudes of a small float type, in the order of their codes, by its definition.
std::vector<double> Magnitudes(int codes, int mantissa_bits, int bias) {
  std::vector<double> values;
  for (int code = 0; code < codes; ++code) {
    const int exponent = code >> mantissa_bits;
    const int mantissa = code & ((1 << mantissa_bits) - 1);
    const int significand = exponent == 0 ? mantissa : mantissa + (1 << mantissa_bits);
    values.push_back(std::ldexp(significand, std::max(exponent, 1) - bias - mantissa_bits));
  }
  return values;
}

// Returns the code of the nearest value; the even code for ties; the largest for values beyond the range.
int NearestCode(const std::vector<double>& values, double magnitude) {
  if (magnitude >= values.back()) return static_cast<int>(values.size()) - 1;
  int below = 0;
  while (values[below + 1] <= magnitude) ++below;
  const double down = magnitude - values[below];
  const double up = values[below + 1] - magnitude;
  if (down == up) return below + (below & 1);
  return down < up ? below : below + 1;
}

// Inputs of every exponent and many mantissas, and the surroundings of every value and midpoint of the type.
std::vector<float> Inputs(const std::vector<double>& values) {
  std::vector<float> inputs;
  constexpr uint64_t kPrimeStride = 9973;
  for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += kPrimeStride) {
    inputs.push_back(std::bit_cast<float>(static_cast<uint32_t>(bits)));
  }
  for (size_t i = 0; i + 1 < values.size(); ++i) {
    for (double center : {values[i], (values[i] + values[i + 1]) / 2}) {
      const float x = static_cast<float>(center);
      for (float near : {x, std::nextafter(x, -kInfinity), std::nextafter(x, kInfinity)}) {
        inputs.push_back(near);
        inputs.push_back(-near);
      }
    }
  }
  return inputs;
}

template <typename Element>
void ExpectNearest(int codes, int mantissa_bits, int bias, int sign_bit, int nan_code) {
  const std::vector<double> values = Magnitudes(codes, mantissa_bits, bias);
  ASSERT_EQ(values.back(), Element::kMax);
  for (float x : Inputs(values)) {
    const int nearest = NearestCode(values, std::fabs(double{x})) | (std::signbit(x) ? sign_bit : 0);
    ASSERT_EQ(Element::Encode(x), std::isnan(x) ? nan_code : nearest) << std::hexfloat << x;
  }
  for (int code = 0; code < codes; ++code) {
    ASSERT_EQ(Element::Decode(static_cast<uint8_t>(code)), values[code]);
    ASSERT_EQ(Element::Decode(static_cast<uint8_t>(code | sign_bit)), -values[code]);
  }
}

TEST(E4M3Test, CastIsNearestEven) { ExpectNearest<E4M3>(0x7f, 3, 7, 0x80, 0x7f); }

TEST(E5M2Test, CastIsNearestEven) { ExpectNearest<E5M2>(0x7c, 2, 15, 0x80, 0x7f); }

TEST(E2M1Test, CastIsNearestEven) { ExpectNearest<E2M1>(0x8, 1, 1, 0x8, 0x7); }

TEST(E5M2Test, InfinityIsDecodedThoughNeverEncoded) {
  EXPECT_EQ(E5M2::Decode(0x7c), kInfinity);
  EXPECT_EQ(E5M2::Decode(0xfc), -kInfinity);
  EXPECT_EQ(E5M2::Encode(kInfinity), 0x7b);
  EXPECT_EQ(E5M2::Encode(-kInfinity), 0xfb);
}

TEST(BFloat16Test, CastIsNearestEven) {
  constexpr uint64_t kPrimeStride = 997;
  for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += kPrimeStride) {
    const float x = std::bit_cast<float>(static_cast<uint32_t>(bits));
    if (std::isnan(x)) {
      ASSERT_EQ(EncodeBFloat16(x), 0x7fff);
      continue;
    }
    const uint32_t kept = static_cast<uint32_t>(bits >> 16);
    const uint32_t dropped = static_cast<uint32_t>(bits & 0xffff);
    const bool up = dropped > 0x8000 || (dropped == 0x8000 && (kept & 1) == 1);
    ASSERT_EQ(EncodeBFloat16(x), kept + (up ? 1 : 0)) << std::hexfloat << x;
  }
}

TEST(BFloat16Test, EveryCodeButNansIsKept) {
  for (uint32_t code = 0; code < 0x10000; ++code) {
    const float value = DecodeBFloat16(static_cast<uint16_t>(code));
    ASSERT_EQ(EncodeBFloat16(value), std::isnan(value) ? 0x7fff : code);
  }
}

TEST(Float16Test, CastIsNearestEven) {
  const std::vector<double> values = Magnitudes(0x7c00, 10, 15);
  ASSERT_EQ(values.back(), kFloat16Max);
  for (float x : Inputs(values)) {
    if (std::isnan(x)) {
      ASSERT_EQ(EncodeFloat16(x), 0x7fff);
      ASSERT_EQ(EncodeFloat16Saturating(x), 0x7fff);
      continue;
    }
    const double magnitude = std::fabs(double{x});
    const int sign = std::signbit(x) ? 0x8000 : 0;
    // Searched by bisection: there are 31744 values.
    const auto above = std::upper_bound(values.begin(), values.end(), magnitude);
    const int below = static_cast<int>(above - values.begin()) - 1;
    const double next = above == values.end() ? 65536.0 : *above;
    const double down = magnitude - values[below];
    const double up = next - magnitude;
    const int nearest = magnitude >= 65536.0 ? 0x7c00 : below + (up < down || (up == down && below % 2 == 1) ? 1 : 0);
    ASSERT_EQ(EncodeFloat16(x), nearest | sign) << std::hexfloat << x;
    ASSERT_EQ(EncodeFloat16Saturating(x), std::min(nearest, 0x7bff) | sign) << std::hexfloat << x;
  }
}

TEST(Float16Test, EveryCodeIsDecodedByItsDefinition) {
  const std::vector<double> values = Magnitudes(0x7c00, 10, 15);
  for (uint32_t code = 0; code < 0x7c00; ++code) {
    ASSERT_EQ(DecodeFloat16(static_cast<uint16_t>(code)), values[code]);
    ASSERT_EQ(DecodeFloat16(static_cast<uint16_t>(code | 0x8000)), -values[code]);
  }
  EXPECT_EQ(DecodeFloat16(0x7c00), kInfinity);
  EXPECT_EQ(DecodeFloat16(0xfc00), -kInfinity);
}

TEST(Float16Test, EveryCodeButNansIsKept) {
  for (uint32_t code = 0; code < 0x10000; ++code) {
    const float value = DecodeFloat16(static_cast<uint16_t>(code));
    ASSERT_EQ(std::isnan(value), (code & 0x7fff) > 0x7c00);
    ASSERT_EQ(EncodeFloat16(value), std::isnan(value) ? 0x7fff : code);
  }
}

TEST(E8M0Test, ScaleIsTheNextPowerOfTwo) {
  constexpr uint32_t kPrimeStride = 9973;
  for (uint64_t bits = 1; bits < 0x7f800000u; bits += kPrimeStride) {
    const float x = std::bit_cast<float>(static_cast<uint32_t>(bits));
    int code = 0;
    while (code < 254 && std::ldexp(1.0, code - 127) < double{x}) ++code;
    ASSERT_EQ(EncodeE8M0RoundUp(x), code) << std::hexfloat << x;
  }
}

TEST(E8M0Test, EndsOfTheRangeAreKept) {
  EXPECT_EQ(EncodeE8M0RoundUp(0.0f), 0);
  EXPECT_EQ(EncodeE8M0RoundUp(0x1p-127f), 0);
  EXPECT_EQ(EncodeE8M0RoundUp(std::nextafter(0x1p-127f, 1.0f)), 1);
  EXPECT_EQ(EncodeE8M0RoundUp(0x1p127f), 254);
  EXPECT_EQ(EncodeE8M0RoundUp(std::numeric_limits<float>::max()), 254);
  EXPECT_EQ(EncodeE8M0RoundUp(kInfinity), 254);
  EXPECT_EQ(EncodeE8M0RoundUp(kNan), 255);
}

TEST(E8M0Test, MultiplierInvertsTheScale) {
  for (uint8_t code = 1; code < 255; ++code) {
    EXPECT_EQ(E8M0EncodeMultiplier(code) * DecodeE8M0(code), 1.0f) << int{code};
  }
  EXPECT_EQ(E8M0EncodeMultiplier(0), 0x1p127f);
  EXPECT_TRUE(std::isnan(E8M0EncodeMultiplier(255)));
}

TEST(ComputeScaleTest, UnusableAmaxGivesOne) {
  for (float amax : {0.0f, kInfinity, kNan}) EXPECT_EQ(ComputeScale(amax, 448.0f, false), 1.0f);
}

TEST(ComputeScaleTest, OverflowGivesTheLargestFloat) {
  EXPECT_EQ(ComputeScale(0x1p-149f, 448.0f, false), std::numeric_limits<float>::max());
  EXPECT_EQ(ComputeScale(0x1p-149f, 448.0f, true), 0x1p127f);
}

TEST(Nvfp4ScaleTest, TensorScaleMapsTheAmaxToTheLargestValue) {
  EXPECT_EQ(ComputeNvfp4TensorScale(2688.0f), 1.0f);
  EXPECT_EQ(ComputeNvfp4TensorScale(1.0f), 2688.0f);
  EXPECT_EQ(ComputeNvfp4TensorScale(0x1p-149f), std::numeric_limits<float>::max());
  for (float amax : {0.0f, kInfinity}) EXPECT_EQ(ComputeNvfp4TensorScale(amax), 1.0f);
}

TEST(Nvfp4ScaleTest, BlockScaleIsTheAmaxOverSix) {
  EXPECT_EQ(ComputeNvfp4BlockScale(2688.0f, 1.0f), 0x7e);
  EXPECT_EQ(ComputeNvfp4BlockScale(6.0f, 1.0f), E4M3::Encode(1.0f));
  EXPECT_EQ(ComputeNvfp4BlockScale(0.0f, 1.0f), 0);
  EXPECT_EQ(ComputeNvfp4BlockScale(kInfinity, 1.0f), 0x7e);
}

// S is at most FLT_MAX, and elements decode by the S that they are encoded with.
TEST(Nvfp4ScaleTest, ElementsOfSmallTensorsDecodeAsTheyAreEncoded) {
  const auto round_trip = [](float value, float amax) {
    const float tensor_scale = ComputeNvfp4TensorScale(amax);
    const uint8_t scale = ComputeNvfp4BlockScale(amax, tensor_scale);
    const uint8_t code = E2M1::Encode(value * Nvfp4EncodeMultiplier(scale, tensor_scale));
    return DecodeNvfp4(E2M1::Decode(code), E4M3::Decode(scale), Nvfp4DecodeAmax(amax));
  };
  for (const float amax : {1e-34f, 8e-36f, 7.9e-36f, 7.8e-36f, 1e-36f, 3e-37f, 2e-38f}) {
    // The largest element takes the largest code, so that only its block's scale is rounded.
    EXPECT_NEAR(round_trip(amax, amax) / amax, 1.0f, 1.0f / 16) << amax;
    EXPECT_NEAR(round_trip(-amax / 2, amax) / amax, -0.5f, 1.0f / 16) << amax;
  }
  for (const float amax : {0.0f, 0x1p-149f, 0x1.fffffcp-127f, 1.0f, 3e38f, kInfinity}) {
    EXPECT_EQ(Nvfp4DecodeAmax(amax), amax);
  }
}

TEST(Nvfp4ScaleTest, EmptyBlockIsEncodedWithTheLargestFloatAndDecodedToZero) {
  EXPECT_EQ(Nvfp4EncodeMultiplier(0, 5.0f), std::numeric_limits<float>::max());
  EXPECT_EQ(Nvfp4EncodeMultiplier(E4M3::Encode(2.0f), 8.0f), 4.0f);
  EXPECT_EQ(DecodeNvfp4(6.0f, 0.0f, 3.0f), 0.0f);
  EXPECT_EQ(DecodeNvfp4(6.0f, 448.0f, 2688.0f), 2688.0f * 2688.0f * (1.0f / 2688.0f));
}

TEST(ComputeScaleTest, PowerOfTwoIsRoundedDown) {
  EXPECT_EQ(ComputeScale(3.0f, 448.0f, false), 448.0f / 3.0f);
  EXPECT_EQ(ComputeScale(3.0f, 448.0f, true), 128.0f);
  EXPECT_EQ(ComputeScale(448.0f, 448.0f, true), 1.0f);
}

}  // namespace
}  // namespace paramshard
