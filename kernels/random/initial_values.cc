#include "kernels/random/initial_values.h"

#include <algorithm>
#include <cmath>

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

absl::Status CheckConstant(const InitialValue& value) {
  if (std::isfinite(value.a)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("initial constant: a finite value expected, got ", value.a));
}

absl::Status CheckNormal(const InitialValue& value) {
  if (std::isfinite(value.a) && std::isfinite(value.b) && value.b >= 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "initial normal: finite mean and standard deviation >= 0 expected, got ", value.a, " and ", value.b));
}

absl::Status CheckUniform(const InitialValue& value) {
  if (std::isfinite(value.a) && std::isfinite(value.b) && value.a < value.b) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("initial uniform: finite a < b expected, got ", value.a, " and ", value.b));
}

}  // namespace

absl::Status CheckInitialValue(const InitialValue& value) {
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
  }
  return absl::InvalidArgumentError(absl::StrCat("unknown initializer ", static_cast<int>(value.kind)));
}

void FillInitialValues(const InitialValue& value, uint64_t seed, int64_t parameter_index, int64_t first_element,
                       int64_t count, float* out) {
  PARAMSHARD_CHECK(CheckInitialValue(value).ok());
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
  }
}

}  // namespace paramshard
