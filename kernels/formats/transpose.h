// Transposed data of planes whose scales serve rows and columns. Backward products read it.

#ifndef PARAMSHARD_KERNELS_FORMATS_TRANSPOSE_H_
#define PARAMSHARD_KERNELS_FORMATS_TRANSPOSE_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "kernels/formats/format_id.h"

namespace paramshard {

// Bits of an element, 8 or 4. UNIMPLEMENTED for formats of another width.
absl::StatusOr<int> TransposableWidth(Format format);

// Writes the transpose, cols x rows bytes, of a rows x cols matrix of bytes.
void TransposeBytes(const uint8_t* data, int64_t rows, int64_t cols, uint8_t* out);

// The same for elements of 4 bits: `data` is [rows, ceil(cols / 2)] bytes, `out` [cols, ceil(rows / 2)], both with
// element 2j of a row in the low nibble of its byte j. The last high nibble of a row with an odd number of elements is
// zero.
void TransposeNibbles(const uint8_t* data, int64_t rows, int64_t cols, uint8_t* out);

}  // namespace paramshard

#endif  // PARAMSHARD_KERNELS_FORMATS_TRANSPOSE_H_
