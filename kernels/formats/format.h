// The formats that a parameter's planes are encoded in, and the sizes that follow from them.
//
// A parameter is seen as a matrix of `rows` x `cols`. A plane is its data plus, for block formats, compact scales: one
// entry per block, edge blocks included, no padding.
//
// | format             | data of a plane            | scales of a plane                                            |
// | ------------------ | -------------------------- | ------------------------------------------------------------ |
// | FP32               | f32 [M, K]                 | none                                                         |
// | BF16, FP16         | u16 [M, K]                 | none                                                         |
// | FP8_TENSOR_*       | u8 [M, K]                  | f32 scale_inv [1]                                            |
// | FP8_BLOCK_128X128  | u8 [M, K]                  | f32 scale_inv [ceil(M/128), ceil(K/128)]                     |
// | MXFP8              | u8 [M, K], in both planes  | E8M0 [M, ceil(K/32)] row-wise, [ceil(M/32), K] column-wise   |
// | MXFP8_2D           | u8 [M, K]                  | E8M0 [ceil(M/32), ceil(K/32)]                                |
// | NVFP4_2D           | u8 [M, ceil(K/2)]          | E4M3 [ceil(M/16), ceil(K/16)], and f32 amax [1] apart        |

#ifndef PARAMSHARD_KERNELS_FORMATS_FORMAT_H_
#define PARAMSHARD_KERNELS_FORMATS_FORMAT_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

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

// What one element of a quantized plane is. FP32, BF16 and FP16 ignore it.
enum class ElementType : uint8_t { kNone = 0, kE4M3 = 1, kE5M2 = 2, kE2M1 = 3 };

// Row-wise is what the forward GEMM reads, column-wise the backward one.
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

// "FP32", "FP8_BLOCK_128X128", ...; "E4M3", ... and "NONE". "UNKNOWN" for a number outside the enumeration.
absl::string_view FormatName(Format format);
absl::string_view ElementTypeName(ElementType element);

// The inverse of the names above, which are matched exactly. InvalidArgument for any other text.
absl::StatusOr<Format> ParseFormat(absl::string_view name);
absl::StatusOr<ElementType> ParseElementType(absl::string_view name);

// Ok when EncodePlanes and DecodePlane take this encoding. InvalidArgument for an encoding that makes no sense (MXFP8
// of E2M1). Call it before any function that takes an Encoding: those CHECK it.
absl::Status CheckEncodable(const Encoding& encoding);

// What an encoding's element is where nobody says: E2M1 for NVFP4_2D, else E4M3.
ElementType DefaultElement(Format format);

// True where power_of_two_scales decides bytes: FP8_TENSOR_CURRENT and FP8_BLOCK_128X128.
bool ReadsPowerOfTwoScales(Format format);

// What power_of_two_scales is where nobody says, as in TransformerEngine: any scale for a whole tensor, powers of two
// for blocks. True for formats that do not read it.
bool DefaultPowerOfTwoScales(Format format);

// Rows that must stay together because they share a scale: 128 for FP8_BLOCK_128X128, 32 for MXFP8 and MXFP8_2D, 16 for
// NVFP4_2D, else 1. Extents are cut at multiples of it.
int64_t GranuleRows(Format format);

// True for FP8_TENSOR_CURRENT, FP8_TENSOR_DELAYED and NVFP4_2D: a number that is made from the amax of the whole
// tensor, over all ranks, decides their bytes.
bool NeedsAmax(Format format);

// True for FP8_TENSOR_CURRENT and NVFP4_2D, which can only be encoded once that amax is known. FP8_TENSOR_DELAYED is
// encoded with a scale that earlier amaxes gave.
bool EncodesAfterAmax(Format format);

// True for MXFP8, whose column-wise plane is encoded from the master by itself. Elsewhere columns are read from the
// row-wise plane.
bool HasColumnPlane(Format format);

struct MatrixShape {
  int64_t rows = 0;
  int64_t cols = 0;

  friend bool operator==(const MatrixShape& a, const MatrixShape& b) { return a.rows == b.rows && a.cols == b.cols; }
  friend bool operator!=(const MatrixShape& a, const MatrixShape& b) { return !(a == b); }
};

// Size in bytes of the data of one plane. `rows` and `cols` are not negative, and rows * cols * 4 fits 63 bits.
int64_t DataBytes(const Encoding& encoding, int64_t rows, int64_t cols);

// Number of scales of one plane, as a matrix; {0, 0} when the format has no scales or not this plane.
MatrixShape ScaleShape(const Encoding& encoding, Plane plane, int64_t rows, int64_t cols);

// Size in bytes of those scales; 0 when there are none.
int64_t ScaleBytes(const Encoding& encoding, Plane plane, int64_t rows, int64_t cols);

// Size in bytes of the amax that goes with the row-wise plane: 4 for NVFP4_2D, else 0.
int64_t AmaxBytes(Format format);

}  // namespace paramshard

#endif  // PARAMSHARD_KERNELS_FORMATS_FORMAT_H_
