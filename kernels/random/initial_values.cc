#include "kernels/random/initial_values.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/check.h"
#include "kernels/base/simd_clones.h"
#include "kernels/random/initial_values_math.h"

namespace paramshard {
namespace {

PARAMSHARD_SIMD_CLONES
void FillUniform(float low, float high, uint64_t seed, uint64_t parameter_index, uint64_t first, int64_t count,
                 float* __restrict out) {
  for (int64_t i = 0; i < count; ++i) {
    out[i] = UniformValue(ElementWords(seed, parameter_index, first + i), low, high);
  }
}

PARAMSHARD_SIMD_CLONES
void FillNormal(float mean, float standard_deviation, uint64_t seed, uint64_t parameter_index, uint64_t first,
                int64_t count, float* __restrict out) {
  for (int64_t i = 0; i < count; ++i) {
    out[i] = NormalValue(ElementWords(seed, parameter_index, first + i), mean, standard_deviation);
  }
}

uint64_t DoubleBits(double value) {
  uint64_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

double DoubleFromBits(uint64_t bits) {
  double value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

PARAMSHARD_SIMD_CLONES
void FillTruncatedNormal(const TruncatedNormal& normal, uint64_t seed, uint64_t parameter_index, uint64_t first,
                         int64_t count, float* __restrict out) {
  for (int64_t i = 0; i < count; ++i) {
    out[i] = TruncatedNormalValue(ElementWords(seed, parameter_index, first + i), normal);
  }
}

// The probability that a standard normal is below x <= 0, by bisection of its inverse: so the inverse of an end is that
// end, and no library function decides bits. 2^-1022 where it is smaller.
double LowerTail(double x) {
  // Positive doubles are in the order of their bits.
  uint64_t below = DoubleBits(0x1p-1022);
  uint64_t above = DoubleBits(0.5) + 1;
  while (above - below > 1) {
    const uint64_t middle = below + (above - below) / 2;
    const double probability = DoubleFromBits(middle);
    (InverseNormal(probability - 0.5, probability) <= x ? below : above) = middle;
  }
  return DoubleFromBits(below);
}

absl::Status CheckConstant(const InitialValue& value) {
  if (std::isfinite(value.a)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("initial constant: want a finite value, got ", value.a));
}

absl::Status CheckNormal(const InitialValue& value) {
  if (std::isfinite(value.a) && std::isfinite(value.b) && value.b >= 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("initial normal: want a finite mean and standard deviation >= 0, got ", value.a, " and ", value.b));
}

absl::Status CheckUniform(const InitialValue& value) {
  if (std::isfinite(value.a) && std::isfinite(value.b) && value.a < value.b) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("initial uniform: want finite a < b, got ", value.a, " and ", value.b));
}

absl::Status CheckTruncatedNormal(const InitialValue& value) {
  const bool is_finite =
      std::isfinite(value.a) && std::isfinite(value.b) && std::isfinite(value.low) && std::isfinite(value.high);
  if (is_finite && value.b > 0 && value.low < value.high) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("initial truncated normal: want a finite mean, standard deviation > 0 and low < high, got ", value.a,
                   ", ", value.b, ", ", value.low, " and ", value.high));
}

void FillByKind(const InitialValue& value, uint64_t seed, int64_t parameter_index, int64_t first_element, int64_t count,
                float* out) {
  switch (value.kind) {
    case Initializer::kZeros:
      std::fill_n(out, count, 0.0f);
      return;
    case Initializer::kOnes:
      std::fill_n(out, count, 1.0f);
      return;
    case Initializer::kConstant:
      std::fill_n(out, count, value.a);
      return;
    case Initializer::kNormal:
      return FillNormal(value.a, value.b, seed, parameter_index, first_element, count, out);
    case Initializer::kUniform:
      return FillUniform(value.a, value.b, seed, parameter_index, first_element, count, out);
    case Initializer::kTruncatedNormal:
      return FillTruncatedNormal(MakeTruncatedNormal(value), seed, parameter_index, first_element, count, out);
  }
}

}  // namespace

TruncatedNormal MakeTruncatedNormal(const InitialValue& value) {
  const auto standard = [&](float end) {
    return (static_cast<double>(end) - static_cast<double>(value.a)) / static_cast<double>(value.b);
  };
  double low = standard(value.low);
  double high = standard(value.high);
  TruncatedNormal normal = {value.a, value.b, value.low, value.high, low + high > 0, 0.0, 0.0};
  if (normal.mirrored) {
    std::swap(low, high);
    low = -low;
    high = -high;
  }
  // The lower end is not above the mean now.
  normal.low_probability = LowerTail(low);
  normal.high_probability = high <= 0 ? LowerTail(high) : 1.0 - LowerTail(-high);
  return normal;
}

absl::Status CheckInitialValue(const InitialValue& value) {
  if (value.zero_begin < 0 || value.zero_begin > value.zero_end) {
    return absl::InvalidArgumentError(absl::StrCat("initial value: want 0 <= zero_begin <= zero_end, got ",
                                                   value.zero_begin, " and ", value.zero_end));
  }
  switch (value.kind) {
    case Initializer::kZeros:
    case Initializer::kOnes:
      return absl::OkStatus();
    case Initializer::kConstant:
      return CheckConstant(value);
    case Initializer::kNormal:
      return CheckNormal(value);
    case Initializer::kUniform:
      return CheckUniform(value);
    case Initializer::kTruncatedNormal:
      return CheckTruncatedNormal(value);
  }
  return absl::InvalidArgumentError(absl::StrCat("unknown initializer number ", static_cast<int>(value.kind)));
}

ZeroedElements ZeroedAmong(const InitialValue& value, int64_t first_element, int64_t count) {
  const int64_t begin = std::max(value.zero_begin, first_element);
  const int64_t end = std::min(value.zero_end, first_element + count);
  if (begin >= end) return {};
  return {.begin = begin - first_element, .count = end - begin};
}

void FillInitialValues(const InitialValue& value, uint64_t seed, int64_t parameter_index, int64_t first_element,
                       int64_t count, float* out) {
  PARAMSHARD_CHECK(CheckInitialValue(value).ok());
  FillByKind(value, seed, parameter_index, first_element, count, out);
  const ZeroedElements zeroed = ZeroedAmong(value, first_element, count);
  std::fill_n(out + zeroed.begin, zeroed.count, 0.0f);
}

}  // namespace paramshard
