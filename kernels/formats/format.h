// The formats that a parameter's planes are encoded in. kFormats holds the traits that sizes, layouts and the course of
// a commit follow from.
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
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/formats/format_id.h"

namespace paramshard {

// Element types that a format's codes may have.
enum class ElementTypes : uint8_t { kAny, kFloat8, kFloat4 };

// Stored type of a scale.
enum class ScaleType : uint8_t { kNone, kFloat32, kE8M0, kE4M3 };

// Use of the amax of the whole tensor, over all ranks.
enum class AmaxUse : uint8_t {
  kNone,
  kLaterSteps,      // it makes the scales of later steps
  kBeforeEncoding,  // without it the planes cannot be encoded
};

// Rounding of scales down to powers of two: never, on request (power_of_two_scales), or unless requested otherwise.
enum class PowerOfTwoScales : uint8_t { kNever, kOnRequest, kByDefault };

// Stands for the whole tensor, however large, in the shape of a block.
inline constexpr int64_t kUnbounded = INT64_MAX;

// One format. The functions below follow from these constants.
struct FormatTraits {
  Format format;
  const char* name;
  int element_bits;
  ElementTypes elements;
  ScaleType scale_type;
  // The elements that one scale serves, clipped to the matrix at its edges; {0, 0} without scales, or without the
  // column-wise plane.
  MatrixShape row_wise_block;
  MatrixShape column_wise_block;
  // Rows that must stay together because they share a scale. Extents are cut at multiples of it.
  int granule_rows;
  AmaxUse amax_use;
  // Size of the amax that is stored with the row-wise plane.
  int amax_bytes;
  PowerOfTwoScales power_of_two_scales;
};

// All formats, by number. Code that serves every format iterates over this list; differences between formats are fields
// here, or a `switch` without `default`, for which the compiler names a missing format.
inline constexpr FormatTraits kFormats[] = {
    {Format::kFP32,
     "FP32",
     32,
     ElementTypes::kAny,
     ScaleType::kNone,
     {},
     {},
     1,
     AmaxUse::kNone,
     0,
     PowerOfTwoScales::kNever},
    {Format::kBF16,
     "BF16",
     16,
     ElementTypes::kAny,
     ScaleType::kNone,
     {},
     {},
     1,
     AmaxUse::kNone,
     0,
     PowerOfTwoScales::kNever},
    {Format::kFP16,
     "FP16",
     16,
     ElementTypes::kAny,
     ScaleType::kNone,
     {},
     {},
     1,
     AmaxUse::kNone,
     0,
     PowerOfTwoScales::kNever},
    {Format::kFP8TensorCurrent,
     "FP8_TENSOR_CURRENT",
     8,
     ElementTypes::kFloat8,
     ScaleType::kFloat32,
     {kUnbounded, kUnbounded},
     {},
     1,
     AmaxUse::kBeforeEncoding,
     0,
     PowerOfTwoScales::kOnRequest},
    {Format::kFP8TensorDelayed,
     "FP8_TENSOR_DELAYED",
     8,
     ElementTypes::kFloat8,
     ScaleType::kFloat32,
     {kUnbounded, kUnbounded},
     {},
     1,
     AmaxUse::kLaterSteps,
     0,
     PowerOfTwoScales::kNever},
    {Format::kFP8Block128x128,
     "FP8_BLOCK_128X128",
     8,
     ElementTypes::kFloat8,
     ScaleType::kFloat32,
     {128, 128},
     {},
     128,
     AmaxUse::kNone,
     0,
     PowerOfTwoScales::kByDefault},
    {Format::kMXFP8,
     "MXFP8",
     8,
     ElementTypes::kFloat8,
     ScaleType::kE8M0,
     {1, 32},
     {32, 1},
     32,
     AmaxUse::kNone,
     0,
     PowerOfTwoScales::kNever},
    {Format::kMXFP8_2D,
     "MXFP8_2D",
     8,
     ElementTypes::kFloat8,
     ScaleType::kE8M0,
     {32, 32},
     {},
     32,
     AmaxUse::kNone,
     0,
     PowerOfTwoScales::kNever},
    {Format::kNVFP4_2D,
     "NVFP4_2D",
     4,
     ElementTypes::kFloat4,
     ScaleType::kE4M3,
     {16, 16},
     {},
     16,
     AmaxUse::kBeforeEncoding,
     4,
     PowerOfTwoScales::kNever},
};

// The number of a format is its place in the list, from 1.
constexpr bool FormatsAreInOrder() {
  int number = 0;
  for (const FormatTraits& traits : kFormats) {
    if (static_cast<int>(traits.format) != ++number) return false;
  }
  return true;
}
static_assert(FormatsAreInOrder());

// Requires a format of the list.
const FormatTraits& TraitsOf(Format format);

// "FP32", "FP8_BLOCK_128X128", ...; "E4M3", ... and "NONE". "UNKNOWN" for a number outside the enumeration.
absl::string_view FormatName(Format format);
absl::string_view ElementTypeName(ElementType element);

// The names of all formats: "FP32, BF16, ... or NVFP4_2D".
std::string FormatNames();

// The inverse of the names above, which are matched exactly. INVALID_ARGUMENT for any other text.
absl::StatusOr<Format> ParseFormat(absl::string_view name);
absl::StatusOr<ElementType> ParseElementType(absl::string_view name);

// Ok when EncodePlanes and DecodePlane take this encoding. INVALID_ARGUMENT for an encoding that makes no sense (MXFP8
// of E2M1). Call it before any function that takes an Encoding: these functions CHECK it.
absl::Status CheckEncodable(const Encoding& encoding);

// Returns the default element type of an encoding: the first one that fits, E4M3 or E2M1.
ElementType DefaultElement(Format format);

// True where power_of_two_scales decides bytes.
bool ReadsPowerOfTwoScales(Format format);

// Returns the default of power_of_two_scales, as in TransformerEngine: any scale for a whole tensor, powers of two for
// blocks. True for formats that do not read it.
bool DefaultPowerOfTwoScales(Format format);

// FormatTraits::granule_rows.
int64_t GranuleRows(Format format);

// NeedsAmax: true if encoded bytes depend on the amax of the whole tensor, over all ranks. EncodesAfterAmax: true if
// encoding has to wait for it.
bool NeedsAmax(Format format);
bool EncodesAfterAmax(Format format);

// True for MXFP8, whose column-wise plane is encoded from the master by itself. Elsewhere columns are read from the
// row-wise plane.
bool HasColumnPlane(Format format);

// Size in bytes of the data of one plane. `rows` and `cols` are not negative, and rows * cols * 4 fits 63 bits.
int64_t DataBytes(const Encoding& encoding, int64_t rows, int64_t cols);

// Number of scales of one plane, as a matrix; {0, 0} when the format has no scales or not this plane.
MatrixShape ScaleShape(const Encoding& encoding, Plane plane, int64_t rows, int64_t cols);

// Size in bytes of the scales of one plane; 0 if it has none.
int64_t ScaleBytes(const Encoding& encoding, Plane plane, int64_t rows, int64_t cols);

// Elements of a plane that share a scale; one element if there are no scales.
MatrixShape ScaleBlock(const Encoding& encoding, Plane plane);

// Returns the offset in bytes of an element's scale in the scales of a plane with rows of `cols` elements. The scale of
// the whole tensor comes first.
int64_t ScaleOffset(const Encoding& encoding, Plane plane, int64_t row, int64_t col, int64_t cols);

// Size in bytes of the amax that is stored with the row-wise plane; 0 if there is none.
int64_t AmaxBytes(Format format);

}  // namespace paramshard

#endif  // PARAMSHARD_KERNELS_FORMATS_FORMAT_H_
