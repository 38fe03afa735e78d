// Deterministic initial values of a parameter: a pure function of (seed, parameter index, element index), so that every
// sharding starts from the same weights.
//
// Element e of parameter p draws four 32-bit words w0..w3 = Philox4x32-10(counter, key) with
//   key     = {low32(seed), low32(p)}
//   counter = {low32(e), high32(e), high32(seed), high32(p)}
// and from them two doubles of 53 bits, u = (w0, w1) and v = (w2, w3), in [0, 1) (philox.h). Then, in double and
// rounded to float32 once:
//   uniform  a + (b - a) * u, the next float below b should that round to b or above
//   normal   a + b * sqrt(-2 ln(1 - u)) * cos(2 pi v)      (Box and Muller; ln and cos by the polynomials in
//                                                          initial_values_math.h, the same bits on host and device)
//   truncated normal   the inverse distribution function of a normal, of a probability between those of both ends:
//                      TruncatedNormal in initial_values_math.h

#ifndef PARAMSHARD_KERNELS_RANDOM_INITIAL_VALUES_H_
#define PARAMSHARD_KERNELS_RANDOM_INITIAL_VALUES_H_

#include <cstdint>

#include "absl/status/status.h"

namespace paramshard {

enum class Initializer : uint8_t {
  kZeros = 1,
  kOnes = 2,
  kConstant = 3,
  kNormal = 4,
  kUniform = 5,
  kTruncatedNormal = 6,
};

// The distribution of a parameter's initial values.
struct InitialValue {
  Initializer kind = Initializer::kZeros;
  // The constant; the mean of a normal, truncated or not; the lower end of a uniform distribution. Unused by zeros and
  // ones.
  float a = 0.0f;
  // The standard deviation of a normal, truncated or not; the upper, excluded end of a uniform distribution.
  float b = 0.0f;
  // The ends of a truncated normal: values lie in [low, high], as of PyTorch's trunc_normal_.
  float low = -2.0f;
  float high = 2.0f;
  // Elements [zero_begin, zero_end) of the parameter are zero for every kind, for example an embedding's padding row.
  int64_t zero_begin = 0;
  int64_t zero_end = 0;
};

// INVALID_ARGUMENT unless the kind is known and the numbers that it uses are finite, with b >= 0 (normal), a < b
// (uniform), or b > 0 and low < high (truncated normal); and 0 <= zero_begin <= zero_end.
absl::Status CheckInitialValue(const InitialValue& value);

struct TruncatedNormal;

// Returns the constants that all elements of a truncated normal share (initial_values_math.h). FillInitialValues()
// computes them once.
//
// Requires: CheckInitialValue(value).ok().
TruncatedNormal MakeTruncatedNormal(const InitialValue& value);

// The elements among [first_element, first_element + count) that are zero, counted from `first_element`.
struct ZeroedElements {
  int64_t begin = 0;
  int64_t count = 0;
};
ZeroedElements ZeroedAmong(const InitialValue& value, int64_t first_element, int64_t count);

// Writes elements [first_element, first_element + count) of parameter `parameter_index` into `out`.
//
// Requires: CheckInitialValue(value).ok(), and numbers >= 0.
void FillInitialValues(const InitialValue& value, uint64_t seed, int64_t parameter_index, int64_t first_element,
                       int64_t count, float* out);

}  // namespace paramshard

#endif  // PARAMSHARD_KERNELS_RANDOM_INITIAL_VALUES_H_
