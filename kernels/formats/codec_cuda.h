// Reading planes on a GPU: the bytes of DecodePlane() (codec.h), and transposed FP8 data.

#ifndef PARAMSHARD_KERNELS_FORMATS_CODEC_CUDA_H_
#define PARAMSHARD_KERNELS_FORMATS_CODEC_CUDA_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/formats/codec.h"
#include "kernels/formats/format.h"

namespace paramshard::gpu {

// What a plane is decoded to. BF16 is rounded from the decoded float32, NaN as 0x7fff.
enum class DecodedType : uint8_t { kFP32 = 1, kBF16 = 2 };

// Enqueues decoding one plane of a rows x cols matrix into `out`, an array of the decoded type, row-major and
// contiguous. Memory of the current device; data, scales and amax of any alignment. INVALID_ARGUMENT of
// CheckEncodable(), and for a plane that the format lacks.
absl::Status DecodePlane(const Encoding& encoding, Plane plane, ConstPlane encoded, int64_t rows, int64_t cols,
                         DecodedType type, void* out, cudaStream_t stream);

// Enqueues writing the transpose of a rows x cols matrix of bytes. Memory of the current device, of any alignment.
absl::Status TransposeBytes(const uint8_t* data, int64_t rows, int64_t cols, uint8_t* out, cudaStream_t stream);

}  // namespace paramshard::gpu

#endif  // PARAMSHARD_KERNELS_FORMATS_CODEC_CUDA_H_
