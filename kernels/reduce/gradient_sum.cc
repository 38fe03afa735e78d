#include "kernels/reduce/gradient_sum.h"

#include <algorithm>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/base/float_bits.h"
#include "kernels/base/simd_clones.h"
#include "kernels/formats/bfloat16.h"
#include "kernels/formats/unscaled.h"

namespace paramshard {
namespace {

// Elements that are summed at a time: their partial sums stay in the first-level cache while the sources pass.
constexpr int64_t kStripe = 1024;

struct FloatGradient {
  using Stored = float;
  PARAMSHARD_ALWAYS_INLINE static float Load(Stored stored) { return stored; }
  PARAMSHARD_ALWAYS_INLINE static Stored Store(float value) { return CanonicalNan(value); }
};

struct BFloat16Gradient {
  using Stored = uint16_t;
  PARAMSHARD_ALWAYS_INLINE static float Load(Stored stored) { return DecodeBFloat16(stored); }
  PARAMSHARD_ALWAYS_INLINE static Stored Store(float value) { return EncodeBFloat16(value); }
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

template <typename Accumulator>
PARAMSHARD_ALWAYS_INLINE void Store(const float* __restrict sum, int64_t count, bool overwrite,
                                    typename Accumulator::Stored* __restrict accumulator) {
  if (overwrite) {
    for (int64_t i = 0; i < count; ++i) accumulator[i] = Accumulator::Store(sum[i]);
  } else {
    for (int64_t i = 0; i < count; ++i) accumulator[i] = Accumulator::Store(Accumulator::Load(accumulator[i]) + sum[i]);
  }
}

template <typename Gradient, typename Accumulator>
PARAMSHARD_ALWAYS_INLINE void SumStripes(const void* const* sources, int64_t source_count, int64_t count,
                                         bool overwrite, void* accumulator) {
  float sum[kStripe];
  auto* const first_sum = static_cast<typename Accumulator::Stored*>(accumulator);
  for (int64_t first = 0; first < count; first += kStripe) {
    const int64_t length = std::min(kStripe, count - first);
    Convert<Gradient>(At<Gradient>(sources[0], first), length, sum);
    for (int64_t s = 1; s < source_count; ++s) Add<Gradient>(At<Gradient>(sources[s], first), length, sum);
    Store<Accumulator>(sum, length, overwrite, first_sum + first);
  }
}

template <typename Gradient>
PARAMSHARD_ALWAYS_INLINE void SumInto(const void* const* sources, int64_t source_count, int64_t count, bool overwrite,
                                      const MutableGradient& accumulator) {
  switch (accumulator.type) {
    case GradientType::kFP32:
      return SumStripes<Gradient, FloatGradient>(sources, source_count, count, overwrite, accumulator.data);
    case GradientType::kBF16:
      return SumStripes<Gradient, BFloat16Gradient>(sources, source_count, count, overwrite, accumulator.data);
  }
}

PARAMSHARD_SIMD_CLONES
void SumFloats(const void* const* sources, int64_t source_count, int64_t count, bool overwrite,
               const MutableGradient& accumulator) {
  SumInto<FloatGradient>(sources, source_count, count, overwrite, accumulator);
}

PARAMSHARD_SIMD_CLONES
void SumBFloat16s(const void* const* sources, int64_t source_count, int64_t count, bool overwrite,
                  const MutableGradient& accumulator) {
  SumInto<BFloat16Gradient>(sources, source_count, count, overwrite, accumulator);
}

// Adds the next chunk of an array.
void AddChunk(ConstGradient chunk, int64_t count, SquareSumBuilder& squares) {
  if (chunk.type == GradientType::kFP32) return squares.AddChunk(static_cast<const float*>(chunk.data), count);
  float widened[kSquareSumChunk];
  DecodeBFloat16s(static_cast<const uint8_t*>(chunk.data), count, widened);
  squares.AddChunk(widened, count);
}

}  // namespace

void SumGradients(absl::Span<const void* const> sources, GradientType type, int64_t count, bool overwrite,
                  MutableGradient accumulator) {
  PARAMSHARD_CHECK(!sources.empty());
  const int64_t source_count = static_cast<int64_t>(sources.size());
  switch (type) {
    case GradientType::kFP32:
      return SumFloats(sources.data(), source_count, count, overwrite, accumulator);
    case GradientType::kBF16:
      return SumBFloat16s(sources.data(), source_count, count, overwrite, accumulator);
  }
}

SquareSum SumGradientsAndSquares(absl::Span<const void* const> sources, GradientType type, int64_t count,
                                 bool overwrite, MutableGradient accumulator) {
  std::vector<const void*> chunk_sources(sources.begin(), sources.end());
  SquareSumBuilder squares;
  for (int64_t first = 0; first < count; first += kSquareSumChunk) {
    const int64_t length = std::min(kSquareSumChunk, count - first);
    const MutableGradient chunk = GradientAt(accumulator, first);
    SumGradients(chunk_sources, type, length, overwrite, chunk);
    AddChunk(chunk, length, squares);
    for (const void*& source : chunk_sources) {
      source = static_cast<const uint8_t*>(source) + length * GradientBytes(type);
    }
  }
  return squares.Finish();
}

SquareSum SumOfSquares(ConstGradient gradients, int64_t count) {
  SquareSumBuilder squares;
  const auto* const data = static_cast<const uint8_t*>(gradients.data);
  for (int64_t first = 0; first < count; first += kSquareSumChunk) {
    AddChunk({data + first * GradientBytes(gradients.type), gradients.type}, std::min(kSquareSumChunk, count - first),
             squares);
  }
  return squares.Finish();
}

}  // namespace paramshard
