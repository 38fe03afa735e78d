// Names of formats, elements and planes, and the encoding that they make. What a format means stands in format.h.
#ifndef PARAMSHARD_KERNELS_FORMATS_FORMAT_ID_H_
#define PARAMSHARD_KERNELS_FORMATS_FORMAT_ID_H_

#include <cstdint>

namespace paramshard {

// The numbers are stable: they are stored and sent.
enum class Format : uint8_t {
  kFP32 = 1,
  kBF16 = 2,
  kFP16 = 3,
  kFP8TensorCurrent = 4,
  kFP8TensorDelayed = 5,
  kFP8Block128x128 = 6,
  kMXFP8 = 7,
  kMXFP8_2D = 8,
  kNVFP4_2D = 9,
};

// Type of an element of a quantized plane. FP32, BF16 and FP16 ignore it.
enum class ElementType : uint8_t { kNone = 0, kE4M3 = 1, kE5M2 = 2, kE2M1 = 3 };

// The forward GEMM reads the row-wise plane, the backward GEMM the column-wise plane.
enum class Plane : uint8_t { kRowWise = 0, kColumnWise = 1 };

// Everything that decides the bytes of a parameter's planes besides the master itself.
struct Encoding {
  Format format = Format::kFP32;
  ElementType element = ElementType::kE4M3;
  // Scales rounded down to powers of two. Read by FP8_TENSOR_CURRENT and FP8_BLOCK_128X128 only.
  bool power_of_two_scales = true;

  friend bool operator==(const Encoding& a, const Encoding& b) {
    return a.format == b.format && a.element == b.element && a.power_of_two_scales == b.power_of_two_scales;
  }
  friend bool operator!=(const Encoding& a, const Encoding& b) { return !(a == b); }
};

struct MatrixShape {
  int64_t rows = 0;
  int64_t cols = 0;

  friend bool operator==(const MatrixShape& a, const MatrixShape& b) { return a.rows == b.rows && a.cols == b.cols; }
  friend bool operator!=(const MatrixShape& a, const MatrixShape& b) { return !(a == b); }
};

}  // namespace paramshard

#endif  // PARAMSHARD_KERNELS_FORMATS_FORMAT_ID_H_
