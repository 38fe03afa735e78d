#include "kernels/reduce/gradient_sum.h"

#include <algorithm>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/base/float_bits.h"
#include "kernels/base/simd_clones.h"
#include "kernels/formats/bfloat16.h"

namespace paramshard {
namespace {

// Elements that are summed at a time: their partial sums stay in the first-level cache while the sources pass.
constexpr int64_t kStripe = 1024;

struct FloatGradient {
  using Stored = float;
  PARAMSHARD_ALWAYS_INLINE static float Load(Stored stored) { return stored; }
};

struct BFloat16Gradient {
  using Stored = uint16_t;
  PARAMSHARD_ALWAYS_INLINE static float Load(Stored stored) { return DecodeBFloat16(stored); }
};

template <typename Gradient>
PARAMSHARD_ALWAYS_INLINE const typename Gradient::Stored* At(const void* source, int64_t index) {
  return static_cast<const typename Gradient::Stored*>(source) + index;
}

template <typename Gradient>
PARAMSHARD_ALWAYS_INLINE void Convert(const typename Gradient::Stored* __restrict source, int64_t count,
                                      float* __restrict sum) {
  for (int64_t i = 0; i < count; ++i) sum[i] = Gradient::Load(source[i]);
}

template <typename Gradient>
PARAMSHARD_ALWAYS_INLINE void Add(const typename Gradient::Stored* __restrict source, int64_t count,
                                  float* __restrict sum) {
  for (int64_t i = 0; i < count; ++i) sum[i] = sum[i] + Gradient::Load(source[i]);
}

PARAMSHARD_ALWAYS_INLINE void Store(const float* __restrict sum, int64_t count, bool overwrite,
                                    float* __restrict accumulator) {
  if (overwrite) {
    for (int64_t i = 0; i < count; ++i) accumulator[i] = CanonicalNan(sum[i]);
  } else {
    for (int64_t i = 0; i < count; ++i) accumulator[i] = CanonicalNan(accumulator[i] + sum[i]);
  }
}

template <typename Gradient>
PARAMSHARD_ALWAYS_INLINE void SumStripes(const void* const* sources, int64_t source_count, int64_t count,
                                         bool overwrite, float* accumulator) {
  float sum[kStripe];
  for (int64_t first = 0; first < count; first += kStripe) {
    const int64_t length = std::min(kStripe, count - first);
    Convert<Gradient>(At<Gradient>(sources[0], first), length, sum);
    for (int64_t s = 1; s < source_count; ++s) Add<Gradient>(At<Gradient>(sources[s], first), length, sum);
    Store(sum, length, overwrite, accumulator + first);
  }
}

PARAMSHARD_SIMD_CLONES
void SumFloats(const void* const* sources, int64_t source_count, int64_t count, bool overwrite, float* accumulator) {
  SumStripes<FloatGradient>(sources, source_count, count, overwrite, accumulator);
}

PARAMSHARD_SIMD_CLONES
void SumBFloat16s(const void* const* sources, int64_t source_count, int64_t count, bool overwrite, float* accumulator) {
  SumStripes<BFloat16Gradient>(sources, source_count, count, overwrite, accumulator);
}

}  // namespace

int64_t GradientBytes(GradientType type) { return type == GradientType::kFP32 ? 4 : 2; }

void SumGradients(absl::Span<const void* const> sources, GradientType type, int64_t count, bool overwrite,
                  float* accumulator) {
  PARAMSHARD_CHECK(!sources.empty());
  const int64_t source_count = static_cast<int64_t>(sources.size());
  if (type == GradientType::kFP32) {
    SumFloats(sources.data(), source_count, count, overwrite, accumulator);
  } else {
    SumBFloat16s(sources.data(), source_count, count, overwrite, accumulator);
  }
}

SquareSum SumGradientsAndSquares(absl::Span<const void* const> sources, GradientType type, int64_t count,
                                 bool overwrite, float* accumulator) {
  std::vector<const void*> chunk_sources(sources.begin(), sources.end());
  SquareSumBuilder squares;
  for (int64_t first = 0; first < count; first += kSquareSumChunk) {
    const int64_t length = std::min(kSquareSumChunk, count - first);
    SumGradients(chunk_sources, type, length, overwrite, accumulator + first);
    squares.AddChunk(accumulator + first, length);
    for (const void*& source : chunk_sources) {
      source = static_cast<const uint8_t*>(source) + length * GradientBytes(type);
    }
  }
  return squares.Finish();
}

}  // namespace paramshard
