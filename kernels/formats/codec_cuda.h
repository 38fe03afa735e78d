// Reading planes on a GPU: the bytes of DecodePlane() (codec.h).

#ifndef PARAMSHARD_KERNELS_FORMATS_CODEC_CUDA_H_
#define PARAMSHARD_KERNELS_FORMATS_CODEC_CUDA_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/formats/codec.h"
#include "kernels/formats/format_id.h"

namespace paramshard::gpu {

// Type of decoded elements. BF16 is rounded from the decoded float32, NaN as 0x7fff.
enum class DecodedType : uint8_t { kFP32 = 1, kBF16 = 2 };

// One plane of a rows x cols matrix, and the target of its decoding.
struct PlaneDecode {
  Encoding encoding;
  Plane plane = Plane::kRowWise;
  ConstPlane encoded;
  int64_t rows = 0;
  int64_t cols = 0;
  DecodedType type = DecodedType::kFP32;
  void* out = nullptr;  // an array of the type, row-major and contiguous
};

// Enqueues decoding planes, in one launch for up to 16 that are alike: of one encoding, plane, type and kind of
// alignment. Memory of the current device; data, scales and amax of any alignment, `out` aligned for its elements. The
// up to 3 bytes before and after the data, as far as they share 4 aligned ones with it, are read. INVALID_ARGUMENT of
// CheckEncodable(), and for a plane that the format lacks; then nothing is enqueued.
//
// Fastest where data and `out` are aligned to 16 bytes and `cols` is a multiple of 8.
absl::Status DecodePlanes(absl::Span<const PlaneDecode> planes, cudaStream_t stream);
inline absl::Status DecodePlane(const Encoding& encoding, Plane plane, ConstPlane encoded, int64_t rows, int64_t cols,
                                DecodedType type, void* out, cudaStream_t stream) {
  const PlaneDecode one = {encoding, plane, encoded, rows, cols, type, out};
  return DecodePlanes(absl::MakeConstSpan(&one, 1), stream);
}

}  // namespace paramshard::gpu

#endif  // PARAMSHARD_KERNELS_FORMATS_CODEC_CUDA_H_
